/* What the elements of matrices show, taken as whole numbers, in one pass over their bytes: the sum of each row and
 * each column, the greatest and the least magnitude, the bits that are in use, and on demand the sums of `sums.c`.
 * A zero with a sign counts as zero. */
#include "kernel.h"

#include <string.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Columns that are summed in one go, in the nearest cache; as many elements, and MOST_ROWS, fit into a sum. */
enum { TILE = 2048, MOST_ROWS = 65536 };

/* A matrix: the byte of a file where it begins, or its place in memory; where its sums go, those of rows first; what is
 * wanted beside them; and which byte of its tensor the first one is. */
struct matrix {
    uint64_t at, rows, columns, itemsize, sign_bit, sums_at, wanted, start;
};
enum { CRC = 1, PAGES = 2, FACTS = 4, REPEATS = 8 };

/* What it shows.  `used` has no sign that only zeros have; a matrix is `odd` if its sums may show a fault. */
struct seen {
    uint64_t most, least, used, signed_zero, total, odd, hash[2], pages, crc;
};

#define T uint8_t
#define S uint32_t
#define LOOK look_1
#include "look.h"
#define T uint16_t
#define S uint32_t
#define LOOK look_2
#include "look.h"
#define T uint32_t
#define S uint64_t
#define LOOK look_4
#include "look.h"
#define T uint64_t
#define S uint64_t
#define LOOK look_8
#include "look.h"

ALWAYS_INLINE void look(const uint8_t *data, size_t rows, size_t columns, const struct matrix *of, uint64_t *row_sums,
                        uint64_t *column_sums, struct seen *seen)
{
    if (of->itemsize == 1)
        look_1(data, rows, columns, of->sign_bit, row_sums, column_sums, seen);
    else if (of->itemsize == 2)
        look_2(data, rows, columns, of->sign_bit, row_sums, column_sums, seen);
    else if (of->itemsize == 4)
        look_4(data, rows, columns, of->sign_bit, row_sums, column_sums, seen);
    else
        look_8(data, rows, columns, of->sign_bit, row_sums, column_sums, seen);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void look_wide(const uint8_t *data, size_t rows, size_t columns,
                                                      const struct matrix *of, uint64_t *row_sums,
                                                      uint64_t *column_sums, struct seen *seen)
{
    look(data, rows, columns, of, row_sums, column_sums, seen);
}
#endif

static void look_any(const uint8_t *data, size_t rows, size_t columns, const struct matrix *of, uint64_t *row_sums,
                     uint64_t *column_sums, struct seen *seen)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        look_wide(data, rows, columns, of, row_sums, column_sums, seen);
        return;
    }
#endif
    look(data, rows, columns, of, row_sums, column_sums, seen);
}

/* A sum of sums that are mixed, each with its place (SplitMix64), in twice 64 bits. */
static void add_hash(const uint64_t *sums, uint64_t count, uint64_t hash[2])
{
    for (uint64_t k = 0; k < count; k++) {
        uint64_t state = sums[k] + (k + 1) * 0x9E3779B97F4A7C15u;
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9u;
        state = (state ^ state >> 27) * 0x94D049BB133111EBu;
        state ^= state >> 31;
        hash[0] += state;
        hash[1] += (state ^ state >> 29) * 0xD6E8FEB86659FD93u;
    }
}

static int are_alike(const uint64_t *sums, uint64_t count)
{
    uint64_t differs = 0;
    for (uint64_t k = 1; k < count; k++)
        differs |= sums[k] ^ sums[0];
    return !differs;
}

/* Whether two of the equal parts that an axis is cut into begin alike. */
static int may_repeat(const uint64_t *sums, uint64_t length, const uint64_t *cuts, uint64_t cut_count)
{
    for (uint64_t c = 0; c < cut_count; c++) {
        uint64_t parts = cuts[c], each = length / parts, same = 0;
        if (length % parts || each < cuts[cut_count])
            continue;
        for (uint64_t j = 1; j < parts; j++)
            for (uint64_t k = 0; k < j; k++)
                same |= sums[j * each] == sums[k * each];
        if (same)
            return 1;
    }
    return 0;
}

/* Whether the sums of a whole matrix may show a fault: then they are looked at more closely. */
static int is_odd(const struct matrix *of, const uint64_t *row_sums, const uint64_t *column_sums, const uint64_t *cuts,
                  uint64_t cut_count)
{
    uint64_t rows = of->rows, columns = of->columns, zero = 0;
    for (uint64_t k = 0; k < rows + columns; k++)
        zero |= row_sums[k] == 0;
    if (zero || (rows > 1 ? row_sums[rows - 1] == row_sums[rows - 2] : are_alike(column_sums, columns)))
        return 1;
    return (of->wanted & REPEATS) &&
           (may_repeat(row_sums, rows, cuts, cut_count) || may_repeat(column_sums, columns, cuts, cut_count));
}

static uint64_t end_of(const struct matrix *of) { return of->at + of->rows * of->columns * of->itemsize; }

/* Survey matrices of a file, or of memory where `file` is below zero.  Those that nearly follow each other are read by
 * one call, as far as the room holds them.  `cuts` are the numbers of parts that axes are looked at for repeats of, and
 * after them the least length of a part. */
EXPORT int64_t intarsia_survey(int file, uint64_t count, const struct matrix *matrices, uint64_t *sums,
                               struct seen *found, const uint64_t *cuts, uint64_t cut_count, uint8_t *room,
                               uint64_t room_bytes)
{
    uint64_t held = 0, held_end = 0; /* bytes [held, held_end) of the file are in the room */
    for (uint64_t m = 0; m < count; m++) {
        const struct matrix *of = matrices + m;
        uint64_t row_bytes = of->columns * of->itemsize, row = 0, column = 0;
        uint64_t rows_at_once = row_bytes && row_bytes <= room_bytes ? room_bytes / row_bytes : 1;
        uint64_t columns_at_once = row_bytes <= room_bytes ? of->columns : room_bytes / of->itemsize;
        uint64_t *row_sums = sums + of->sums_at, *column_sums = row_sums + of->rows;
        struct seen seen = {.least = UINT64_MAX};
        struct sum sum = {0, 0};
        rows_at_once = rows_at_once < MOST_ROWS ? rows_at_once : MOST_ROWS;
        memset(row_sums, 0, (of->rows + of->columns) * sizeof *sums);
        while (row < of->rows && of->columns) {
            uint64_t rows = of->rows - row < rows_at_once ? of->rows - row : rows_at_once;
            uint64_t width = of->columns - column < columns_at_once ? of->columns - column : columns_at_once;
            uint64_t inside = row * row_bytes + column * of->itemsize, length = rows * width * of->itemsize;
            uint64_t here = of->at + inside;
            const uint8_t *data = (const uint8_t *)(uintptr_t)here;
            if (file >= 0) {
                if (here < held || here + length > held_end) {
                    uint64_t reach = here + length;
                    for (uint64_t j = m + 1; reach == end_of(matrices + j - 1) && j < count; j++) {
                        uint64_t at = matrices[j].at, end = end_of(matrices + j);
                        if (at < reach || at - reach > NEAR_BYTES || end - here > room_bytes)
                            break;
                        reach = end;
                    }
                    held = here, held_end = reach;
                    int64_t went = read_whole(file, room, reach - here, here);
                    if (went != DONE)
                        return went;
                }
                data = room + (here - held);
            }
            look_any(data, rows, width, of, row_sums + row, column_sums + column, &seen);
            if (of->wanted & PAGES)
                add_bytes(&sum, data, length, of->start + inside);
            else if (of->wanted & CRC)
                sum.crc = crc_remainder(sum.crc, data, length);
            column += width;
            if (column == of->columns)
                row += rows, column = 0;
        }
        for (uint64_t k = 0; k < of->rows; k++)
            seen.total += row_sums[k];
        seen.pages = sum.pages, seen.crc = sum.crc;
        if (of->wanted & FACTS) {
            add_hash(row_sums, of->rows + of->columns, seen.hash);
            seen.odd = (uint64_t)is_odd(of, row_sums, column_sums, cuts, cut_count);
        }
        found[m] = seen;
    }
    return DONE;
}
