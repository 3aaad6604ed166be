/* Runs of files compared with runs of other files, or of memory, a block at a time: nobody keeps their bytes. */
#include "kernel.h"

#include <string.h>

/* One side of all runs: rows of run k begin `steps[k]` bytes apart, the first at byte `at[k]` of the open file
 * `files[k]`, or at that address where there is no file.  Bytes [held, held_end) of one file are in the room. */
struct side {
    const int64_t *files, *at, *steps;
    uint8_t *room;
    int64_t room_bytes, file, held, held_end;
    int64_t *failed; /* what reading said that failed, and the file that it was for */
};

enum { NO_FILE = -1 };

/* Where bytes [at, end) are in memory, read with those that follow up to `reach`; NULL where they cannot be read. */
static const uint8_t *bring(struct side *side, int64_t file, int64_t at, int64_t end, int64_t reach)
{
    if (file == NO_FILE)
        return (const uint8_t *)(uintptr_t)at;
    if (file != side->file || at < side->held || end > side->held_end) {
        int64_t stop = reach - at < side->room_bytes ? reach : at + side->room_bytes;
        side->file = NO_FILE;
        int64_t went = read_whole((int)file, side->room, (size_t)(stop - at), (uint64_t)at);
        if (went != DONE) {
            side->failed[0] = went, side->failed[1] = file;
            return NULL;
        }
        side->file = file, side->held = at, side->held_end = stop;
    }
    return side->room + (at - side->held);
}

/* How many of so many bytes can be brought at once: what is held of them comes first. */
static int64_t at_once(const struct side *side, int64_t file, int64_t at, int64_t length)
{
    int64_t most = side->room_bytes;
    if (file == side->file && at >= side->held && at < side->held_end)
        most = side->held_end - at;
    return length < most || file == NO_FILE ? length : most;
}

/* How far to read from `at`, in run k, which ends at `end`: over the runs that nearly follow it in its file. */
static int64_t reach_of(const struct side *side, int64_t k, int64_t count, const int64_t *rows,
                        const int64_t *row_bytes, int64_t at, int64_t end)
{
    if (side->files[k] == NO_FILE)
        return end;
    for (int64_t j = k + 1; j < count && end - at < side->room_bytes && rows[j] == 1; j++) {
        if (side->files[j] == NO_FILE)
            continue;
        if (side->files[j] != side->files[k] || side->at[j] < end || side->at[j] - end > NEAR_BYTES)
            break;
        end = side->at[j] + row_bytes[j];
    }
    return end;
}

static int equal_bytes(struct side *left, struct side *right, int64_t k, int64_t count, const int64_t *rows,
                       const int64_t *row_bytes, int64_t row)
{
    int64_t at = left->at[k] + row * left->steps[k], end = at + row_bytes[k];
    int64_t away = right->at[k] + row * right->steps[k] - at;
    while (at < end) {
        int64_t length = at_once(left, left->files[k], at, end - at);
        length = at_once(right, right->files[k], at + away, length);
        int64_t reach = end, other = end + away;
        if (rows[k] == 1) {
            reach = reach_of(left, k, count, rows, row_bytes, at, end);
            other = reach_of(right, k, count, rows, row_bytes, at + away, end + away);
        }
        const uint8_t *x = bring(left, left->files[k], at, at + length, reach);
        const uint8_t *y = x ? bring(right, right->files[k], at + away, at + away + length, other) : NULL;
        if (!y || memcmp(x, y, (size_t)length))
            return 0;
        at += length;
    }
    return 1;
}

/* Whether the rows of run j lie between those of run k, so that they are read together. */
static int is_between(const struct side *side, const int64_t *row_bytes, int64_t k, int64_t j)
{
    return side->files[j] == side->files[k] && side->steps[j] == side->steps[k] && side->at[j] >= side->at[k] &&
           side->at[j] + row_bytes[j] <= side->at[k] + side->steps[k];
}

/* Whether rows [row, row + n) of run j are equal; `shared` is the side whose rows lie between those of run k, up to
 * `width` bytes from the beginning of each of them. */
static int equal_rows(struct side *left, struct side *right, const struct side *shared, int64_t width,
                      const int64_t *row_bytes, int64_t k, int64_t j, int64_t row, int64_t n)
{
    struct side *sides[2] = {left, right};
    const uint8_t *found[2];
    for (int s = 0; s < 2; s++) {
        struct side *side = sides[s];
        int64_t first = side == shared ? k : j, step = side->steps[first];
        int64_t at = side->at[first] + row * step;
        int64_t end = at + (n - 1) * step + (side == shared ? width : row_bytes[j]);
        found[s] = bring(side, side->files[first], at, end, end);
        if (!found[s])
            return 0;
        found[s] += side->at[j] - side->at[first];
    }
    for (int64_t i = 0; i < n; i++)
        if (memcmp(found[0] + i * left->steps[j], found[1] + i * right->steps[j], (size_t)row_bytes[j]))
            return 0;
    return 1;
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Compare run k, and the runs after it whose rows lie between its own: one past the last of them, or k where one differs. */
static int64_t compare_rows(struct side *left, struct side *right, int64_t k, int64_t count, const int64_t *rows,
                            const int64_t *row_bytes)
{
    const struct side *shared = left;
    int64_t end = k + 1, width = row_bytes[k], widest = larger(left->steps[k], right->steps[k]);
    if (end < count && rows[end] == rows[k] && !is_between(left, row_bytes, k, end))
        shared = right;
    for (; end < count && rows[end] == rows[k] && is_between(shared, row_bytes, k, end); end++) {
        width = larger(width, shared->at[end] + row_bytes[end] - shared->at[k]);
        widest = larger(widest, larger(left->steps[end], right->steps[end]));
    }
    int64_t some = left->room_bytes / widest;
    if (some < 2) {
        for (int64_t row = 0; row < rows[k]; row++)
            if (!equal_bytes(left, right, k, count, rows, row_bytes, row))
                return k;
        return k + 1;
    }
    for (int64_t row = 0; row < rows[k]; row += some) {
        int64_t n = rows[k] - row < some ? rows[k] - row : some;
        for (int64_t j = k; j < end; j++)
            if (!equal_rows(left, right, shared, width, row_bytes, k, j, row, n))
                return k;
    }
    return end;
}

/* How many runs, from the first on, are known to be equal: all, or none from the first on that differs or cannot be
 * read.  Run k is `rows[k]` rows of `row_bytes[k]` bytes on both sides.  `failed` has two numbers for each side. */
EXPORT int64_t intarsia_equal_runs(int64_t count, const int64_t *left_files, const int64_t *left_at,
                                   const int64_t *left_steps, const int64_t *right_files, const int64_t *right_at,
                                   const int64_t *right_steps, const int64_t *rows, const int64_t *row_bytes,
                                   uint8_t *left_room, uint8_t *right_room, int64_t room_bytes,
                                   int64_t *failed)
{
    struct side left = {left_files, left_at, left_steps, left_room, room_bytes, NO_FILE, 0, 0, failed};
    struct side right = {right_files, right_at, right_steps, right_room, room_bytes, NO_FILE, 0, 0, failed + 2};
    int64_t k = 0, next;
    for (; k < count; k = next) {
        if (rows[k] == 1)
            next = k + equal_bytes(&left, &right, k, count, rows, row_bytes, 0);
        else
            next = compare_rows(&left, &right, k, count, rows, row_bytes);
        if (next == k)
            break;
    }
    return k;
}
