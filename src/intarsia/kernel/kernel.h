/* What the files of the kernel share.  No Python in here: bytes, lengths and places come from the caller,
 * who has checked them; the answer is numbers. */
#ifndef INTARSIA_KERNEL_H
#define INTARSIA_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "words of tensors are little-endian; on other machines the sums are taken in Python"
#endif

#define EXPORT __attribute__((visibility("default")))

enum { PAGE_BYTES = 4096, NEAR_BYTES = 4096 };

/* What a call that reads says where all went well, and where a file ended early; else -errno. */
enum { DONE = 0, ENDED = 1 };

/* The linear part of the CRC-32 of bytes that follow others with the remainder `before`. */
uint32_t crc_remainder(uint32_t before, const uint8_t *data, size_t length);

/* A remainder, after so many more bytes that are zero. */
uint32_t crc_shift(uint32_t crc, uint64_t zeros);

/* Both sums of bytes of a tensor, the first being its byte `start`, added to those of the bytes before. */
struct sum {
    uint64_t pages;
    uint32_t crc;
};
void add_bytes(struct sum *sum, const uint8_t *data, size_t length, uint64_t start);

/* Fill a buffer from a place of a file, whole. */
int64_t read_whole(int file, uint8_t *data, size_t length, uint64_t at);

/* Write all of a buffer at a place of a file. */
int64_t write_whole(int file, const uint8_t *data, size_t length, uint64_t at);

#endif
