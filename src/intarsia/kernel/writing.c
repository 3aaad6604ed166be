/* Bytes written to a file at a place, whole, a little by each call. */
#include "kernel.h"

#include <errno.h>
#include <unistd.h>

/* From 128 KiB on some kernels look for pages of that size, which takes longer than to copy into small ones. */
enum { CALL_BYTES = 65536 };

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

/* Write buffers one after another: buffer k is `lengths[k]` bytes at `data[k]`. */
EXPORT int64_t intarsia_write(int file, uint64_t at, uint64_t count, const uint64_t *data, const uint64_t *lengths)
{
    for (uint64_t k = 0; k < count; k++) {
        int64_t went = write_whole(file, (const uint8_t *)(uintptr_t)data[k], lengths[k], at);
        if (went != DONE)
            return went;
        at += lengths[k];
    }
    return DONE;
}
