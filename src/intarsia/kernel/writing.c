/* Bytes written to a file at a place, whole, a little by each call. */
#include "kernel.h"

#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

/* From 128 KiB on some kernels look for pages of that size, which takes longer than to copy into small ones. */
enum { CALL_BYTES = 65536, VECTORS = 64 };

int64_t write_whole(int file, const uint8_t *data, size_t length, uint64_t at)
{
    while (length) {
        ssize_t count = pwrite(file, data, length < CALL_BYTES ? length : CALL_BYTES, (off_t)at);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return count < 0 ? -errno : -EIO;
        data += count, at += (uint64_t)count, length -= (size_t)count;
    }
    return DONE;
}

/* Write buffers one after another: buffer k is `lengths[k]` bytes at `data[k]`.  Each call takes as many bytes as
 * pay, of as many buffers. */
EXPORT int64_t intarsia_write(int file, uint64_t at, uint64_t count, const uint64_t *data, const uint64_t *lengths)
{
    uint64_t k = 0, done = 0; /* of buffer k */
    while (k < count) {
        struct iovec parts[VECTORS];
        size_t used = 0, total = 0;
        for (uint64_t j = k, skipped = done; j < count && used < VECTORS && total < CALL_BYTES; j++, skipped = 0) {
            size_t left = lengths[j] - skipped, room = CALL_BYTES - total, some = left < room ? left : room;
            parts[used++] = (struct iovec){(uint8_t *)(uintptr_t)data[j] + skipped, some};
            total += some;
        }
        ssize_t went = total ? pwritev(file, parts, (int)used, (off_t)at) : 0;
        if (went < 0 && errno == EINTR)
            continue;
        if (went < 0 || (total && !went))
            return went < 0 ? -errno : -EIO;
        at += (uint64_t)went, done += (uint64_t)went;
        for (; k < count && done >= lengths[k]; k++)
            done -= lengths[k];
    }
    return DONE;
}

/* Write pieces to files: piece k is `lengths[k]` bytes at `data[k]`, for byte `at[k]` of `files[k]`.  Those that follow
 * each other are written by one call.  Where that fails, `stopped` is the first of them. */
EXPORT int64_t intarsia_write_pieces(uint64_t count, const uint64_t *files, const uint64_t *at, const uint64_t *data,
                                     const uint64_t *lengths, uint64_t *stopped)
{
    for (uint64_t first = 0, k; first < count; first = k) {
        uint64_t end = at[first] + lengths[first];
        for (k = first + 1; k < count && files[k] == files[first] && at[k] == end; k++)
            end += lengths[k];
        int64_t went = intarsia_write((int)files[first], at[first], k - first, data + first, lengths + first);
        if (went != DONE) {
            *stopped = first;
            return went;
        }
    }
    return DONE;
}
