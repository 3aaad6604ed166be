/* Runs of a file that are read and summed a block at a time: nobody keeps their bytes. */
#include "kernel.h"

#include <errno.h>
#include <unistd.h>

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
