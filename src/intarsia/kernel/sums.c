/* The two sums of `run/sums/hashing.py`: words of 64 bits added up in pages that have keys, and a CRC-32. */
#include "kernel.h"

#include <string.h>

/* What stays in the nearest cache between the two passes over it. */
enum { BLOCK_BYTES = 32768 };

typedef uint64_t pair __attribute__((vector_size(16)));
typedef uint64_t loose_pair __attribute__((vector_size(16), aligned(1), may_alias));

/* The key of a page: SplitMix64 with the seed 0, the last bit set. */
static uint64_t key_of(uint64_t page)
{
    uint64_t state = (page + 1) * 0x9E3779B97F4A7C15u;
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9u;
    state = (state ^ state >> 27) * 0x94D049BB133111EBu;
    return (state ^ state >> 31) | 1;
}

/* The sum of words of which the first begins `start % 8` bytes before the data. */
static uint64_t add_words(const uint8_t *data, size_t length, uint64_t start)
{
    uint64_t total = 0, word;
    for (; length && start % 8; data++, start++, length--)
        total += (uint64_t)*data << 8 * (start % 8);
    pair a = {0, 0}, b = a, c = a, d = a; /* none waits for another */
    for (; length >= 64; data += 64, length -= 64) {
        const loose_pair *at = (const loose_pair *)data;
        a += at[0], b += at[1], c += at[2], d += at[3];
    }
    a += b + (c + d);
    total += a[0] + a[1];
    for (; length >= 8; data += 8, length -= 8) {
        memcpy(&word, data, 8);
        total += word;
    }
    for (size_t k = 0; k < length; k++)
        total += (uint64_t)data[k] << 8 * k;
    return total;
}

static uint64_t add_pages(const uint8_t *data, size_t length, uint64_t start)
{
    uint64_t total = 0;
    while (length) {
        size_t left = PAGE_BYTES - start % PAGE_BYTES, some = length < left ? length : left;
        total += key_of(start / PAGE_BYTES) * add_words(data, some, start);
        data += some, start += some, length -= some;
    }
    return total;
}

void add_bytes(struct sum *sum, const uint8_t *data, size_t length, uint64_t start)
{
    while (length) {
        size_t left = BLOCK_BYTES - start % PAGE_BYTES, some = length < left ? length : left;
        sum->crc = crc_remainder(sum->crc, data, some);
        sum->pages += add_pages(data, some, start);
        data += some, start += some, length -= some;
    }
}

/* The sums of runs in memory: run k is `lengths[k]` bytes at `data[k]`, the first being byte `starts[k]` of its tensor. */
EXPORT void intarsia_sum_memory(uint64_t count, const uint64_t *data, const uint64_t *lengths,
                                const uint64_t *starts, uint64_t *pages, uint32_t *crcs)
{
    for (uint64_t k = 0; k < count; k++) {
        struct sum sum = {0, 0};
        add_bytes(&sum, (const uint8_t *)(uintptr_t)data[k], lengths[k], starts[k]);
        pages[k] = sum.pages, crcs[k] = sum.crc;
    }
}
