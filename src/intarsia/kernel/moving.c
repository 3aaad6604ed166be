/* Bytes moved from files to files a block at a time, and summed while they lie in a core's cache. */
#include "kernel.h"

#include <string.h>

/* Bytes that are rows, one after another; the first is byte `start` of a tensor, which has `after` bytes more, and
 * whose sums are those of the number `sum`.  They come from `from` files and go to `to` files, whose sides follow
 * each other. */
struct strip {
    uint64_t rows, row_bytes, start, after, sum, from, to;
};

/* What a file holds of the rows of a strip: `width` bytes of each from `offset` on, row after row from byte `at` on.
 * What a side is given follows what the sides before it were of the same `box`. */
struct side {
    uint64_t file, at, offset, width, box;
};

/* Bytes [at, end) of a file, which lie in a block. */
struct held {
    uint64_t file, at, end;
};

/* Whether a strip is consecutive bytes of one file. */
static int is_run(const struct strip *strip, const struct side *side)
{
    return strip->from == 1 && side->width == strip->row_bytes;
}

/* Read a strip into a block, and with it as many of those after it as follow it in the file. */
static int64_t bring_near(const struct strip *strip, const struct strip *last, const struct side *side, uint8_t *block,
                          uint64_t block_bytes, struct held *held)
{
    uint64_t file = side->file, at = side->at, length = strip->rows * strip->row_bytes, near = 0;
    if (file == held->file && at >= held->at && at + length <= held->end)
        return DONE;
    for (; strip < last && is_run(strip, side) && side->file == file && side->at == at + near; strip++) {
        uint64_t more = strip->rows * strip->row_bytes;
        if (near + more > block_bytes)
            break;
        near += more, side += 1 + strip->to;
    }
    int64_t went = read_whole((int)file, block, near, at);
    if (went == ENDED && near > length) /* perhaps it is another strip that ends early */
        went = read_whole((int)file, block, near = length, at);
    *held = (struct held){file, at, went == DONE ? at + near : 0};
    return went;
}

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

/* Move strips, one after another.  `pages` and `crcs` become the sums of each number in its tensor, `box_crcs` the
 * remainder of what was given to each box, and `box_bytes` its length; all of them are zero before.  Where a call
 * fails, `stopped` is the side that it was for.  A row fits into `block_bytes`, of which the room has two. */
EXPORT int64_t intarsia_move(uint64_t count, const struct strip *strips, const struct side *sides, uint64_t *pages,
                             uint32_t *crcs, uint32_t *box_crcs, uint64_t *box_bytes, uint8_t *room,
                             uint64_t block_bytes, uint64_t *stopped)
{
    uint8_t *apart = room + block_bytes;
    const struct side *first = sides;
    struct held held = {0, 0, 0};
    for (const struct strip *strip = strips, *last = strips + count; strip < last; strip++) {
        const struct side *to = first + strip->from, *end = to + strip->to, *side = first;
        uint64_t row_bytes = strip->row_bytes, most = block_bytes / row_bytes, length = strip->rows * row_bytes;
        int fits = is_run(strip, first) && length <= block_bytes;
        struct sum sum = {0, 0};
        for (uint64_t done = 0, rows; done < strip->rows; done += rows) {
            const uint8_t *block = room;
            int64_t went = DONE;
            rows = strip->rows - done < most ? strip->rows - done : most;
            if (fits) {
                went = bring_near(strip, last, first, room, block_bytes, &held);
                block = room + (first->at - held.at), side = went == DONE ? to : first;
            } else {
                held.end = 0;
                for (side = first; side < to && went == DONE; side += went == DONE)
                    went = bring(side, done, rows, row_bytes, room, apart);
            }
            if (went == DONE)
                add_bytes(&sum, block, rows * row_bytes, strip->start + done * row_bytes);
            for (; side < end && went == DONE; side += went == DONE)
                went = put(side, done, rows, row_bytes, block, apart, box_crcs + side->box);
            if (went != DONE) {
                *stopped = (uint64_t)(side - sides);
                return went;
            }
        }
        pages[strip->sum] += sum.pages, crcs[strip->sum] ^= crc_shift(sum.crc, strip->after);
        for (side = to; side < end; side++) {
            box_bytes[side->box] += strip->rows * side->width;
            if (side->width == row_bytes)
                box_crcs[side->box] = crc_shift(box_crcs[side->box], length) ^ sum.crc;
        }
        first = end;
    }
    return DONE;
}
