/* Runs of a file: read into buffers, or a block at a time to be summed, where nobody keeps their bytes. */
#include "kernel.h"

#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

enum { VECTORS = 64 };

int64_t read_whole(int file, uint8_t *data, size_t length, uint64_t at)
{
    while (length) {
        ssize_t count = pread(file, data, length, (off_t)at);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return count < 0 ? -errno : ENDED;
        data += count, at += (uint64_t)count, length -= (size_t)count;
    }
    return DONE;
}

/* Fill buffers with runs of a file: run k is `lengths[k]` bytes from `at[k]` on, and goes to `data[k]`.  Those that nearly
 * follow each other are read by one call, with `unused`, of NEAR_BYTES, for what lies between. */
EXPORT int64_t intarsia_read_runs(int file, uint64_t count, const uint64_t *at, const uint64_t *lengths,
                                  const uint64_t *data, uint8_t *unused)
{
    for (uint64_t k = 0; k < count;) {
        struct iovec parts[VECTORS];
        int used = 0;
        uint64_t start = at[k], end = at[k], first = k;
        for (; k < count && used + 2 <= VECTORS; k++) {
            if (k > first && (at[k] < end || at[k] - end > NEAR_BYTES))
                break;
            if (at[k] > end)
                parts[used++] = (struct iovec){unused, at[k] - end};
            parts[used++] = (struct iovec){(void *)(uintptr_t)data[k], lengths[k]};
            end = at[k] + lengths[k];
        }
        ssize_t went = preadv(file, parts, used, (off_t)start);
        if (went < 0 && errno != EINTR)
            return -errno;
        for (uint64_t j = first; j < k; j++) { /* what one call did not bring */
            uint64_t done = went > 0 ? start + (uint64_t)went : start;
            uint64_t skipped = done <= at[j] ? 0 : done - at[j] < lengths[j] ? done - at[j] : lengths[j];
            uint8_t *rest = (uint8_t *)(uintptr_t)data[j] + skipped;
            int64_t more = read_whole(file, rest, lengths[j] - skipped, at[j] + skipped);
            if (more != DONE)
                return more;
        }
    }
    return DONE;
}

/* The sums of runs of a file: run k is `lengths[k]` bytes from `at[k]` on, the first being byte `starts[k]` of its
 * tensor.  Runs that nearly follow each other are read by one call, as far as the room holds them. */
EXPORT int64_t intarsia_sum_file(int file, uint64_t count, const uint64_t *at, const uint64_t *lengths,
                                 const uint64_t *starts, uint64_t *pages, uint32_t *crcs, uint8_t *room,
                                 uint64_t room_bytes)
{
    uint64_t held = 0, held_end = 0; /* bytes [held, held_end) of the file are in the room */
    for (uint64_t k = 0; k < count; k++) {
        struct sum sum = {0, 0};
        uint64_t here = at[k], end = at[k] + lengths[k];
        while (here < end) {
            if (here < held || here >= held_end) {
                uint64_t reach = end;
                for (uint64_t j = k + 1; j < count && reach - here < room_bytes; j++) {
                    if (at[j] < reach || at[j] - reach > NEAR_BYTES)
                        break;
                    reach = at[j] + lengths[j];
                }
                held = here, held_end = reach - here < room_bytes ? reach : here + room_bytes;
                int64_t went = read_whole(file, room, held_end - held, held);
                if (went != DONE)
                    return went;
            }
            uint64_t stop = end < held_end ? end : held_end;
            add_bytes(&sum, room + (here - held), stop - here, starts[k] + (here - at[k]));
            here = stop;
        }
        pages[k] = sum.pages, crcs[k] = sum.crc;
    }
    return DONE;
}
