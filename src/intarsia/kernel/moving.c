/* Bytes moved from files to files a block at a time, and summed while they lie in a core's cache. */
#include "kernel.h"

#include <string.h>

/* Bytes that are rows, one after another; the first is byte `start` of a tensor.  They come from `from` files and
 * go to `to` files, whose sides follow each other. */
struct strip {
    uint64_t rows, row_bytes, start, from, to;
};

/* What a file holds of the rows of a strip: `width` bytes of each from `offset` on, row after row from byte `at` on. */
struct side {
    uint64_t file, at, offset, width;
};

static int64_t bring(const struct side *side, uint64_t done, uint64_t rows, uint64_t row_bytes, uint8_t *block,
                     uint8_t *apart)
{
    uint64_t width = side->width, at = side->at + done * width;
    if (width == row_bytes)
        return read_whole((int)side->file, block, rows * width, at);
    int64_t went = read_whole((int)side->file, apart, rows * width, at);
    for (uint64_t row = 0; went == DONE && row < rows; row++)
        memcpy(block + row * row_bytes + side->offset, apart + row * width, width);
    return went;
}

static int64_t put(const struct side *side, uint64_t done, uint64_t rows, uint64_t row_bytes, const uint8_t *block,
                   uint8_t *apart, uint32_t *crc)
{
    uint64_t width = side->width, at = side->at + done * width;
    if (width == row_bytes)
        return write_whole((int)side->file, block, rows * width, at);
    for (uint64_t row = 0; row < rows; row++)
        memcpy(apart + row * width, block + row * row_bytes + side->offset, width);
    *crc = crc_remainder(*crc, apart, rows * width);
    return write_whole((int)side->file, apart, rows * width, at);
}

/* Move strips, one after another.  `pages` and `crcs` become the sums of each strip, `side_crcs` the CRC-32 of what
 * each side is given.  Where a call fails, `stopped` is the side that it was for.  A row fits into `block_bytes`,
 * of which the room has two. */
EXPORT int64_t intarsia_move(uint64_t count, const struct strip *strips, const struct side *sides, uint64_t *pages,
                             uint32_t *crcs, uint32_t *side_crcs, uint8_t *room, uint64_t block_bytes,
                             uint64_t *stopped)
{
    uint8_t *block = room, *apart = room + block_bytes;
    const struct side *first = sides;
    for (uint64_t k = 0; k < count; k++) {
        const struct strip *strip = strips + k;
        const struct side *to = first + strip->from, *end = to + strip->to;
        uint64_t most = block_bytes / strip->row_bytes;
        struct sum sum = {0, 0};
        for (uint64_t done = 0, rows; done < strip->rows; done += rows) {
            rows = strip->rows - done < most ? strip->rows - done : most;
            for (const struct side *side = first; side < end; side++) {
                uint32_t *crc = side_crcs + (side - sides);
                if (side == to)
                    add_bytes(&sum, block, rows * strip->row_bytes, strip->start + done * strip->row_bytes);
                int64_t went = side < to ? bring(side, done, rows, strip->row_bytes, block, apart)
                                         : put(side, done, rows, strip->row_bytes, block, apart, crc);
                if (went != DONE) {
                    *stopped = (uint64_t)(side - sides);
                    return went;
                }
            }
        }
        pages[k] = sum.pages, crcs[k] = sum.crc;
        for (const struct side *side = to; side < end; side++)
            if (side->width == strip->row_bytes)
                side_crcs[side - sides] = sum.crc;
        first = end;
    }
    return DONE;
}
