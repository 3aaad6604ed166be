/* CRC-32, by carry-less multiplication where the processor has it.
 *
 * Bytes are a polynomial over GF(2).  128 bits of it are moved 64 (or 16, or 256) bytes ahead by two products
 * with what x to that power leaves, and added to the bytes there; 16 bytes are left in the end, which have
 * the remainder of all.  The constants are x**(8n+32) and x**(8n-32) modulo the polynomial, reflected. */
#include "kernel.h"

#include <string.h>

#define POLYNOMIAL 0xEDB88320u

static uint32_t table[8][256];
static uint32_t powers[64]; /* what 2**k bytes of zeros multiply a remainder with */

/* The product of two remainders, modulo the polynomial; the highest bit is that of x**0. */
static uint32_t times(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (; a; a <<= 1) {
        product ^= a >> 31 ? b : 0;
        b = b >> 1 ^ (b & 1 ? POLYNOMIAL : 0);
    }
    return product;
}

static void make_table(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        table[0][byte] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (int byte = 0; byte < 256; byte++)
            table[k][byte] = table[k - 1][byte] >> 8 ^ table[0][table[k - 1][byte] & 255];
    powers[0] = 1u << 23;
    for (int k = 1; k < 64; k++)
        powers[k] = times(powers[k - 1], powers[k - 1]);
}

uint32_t crc_shift(uint32_t crc, uint64_t zeros)
{
    for (int k = 0; crc && zeros; k++, zeros >>= 1)
        if (zeros & 1)
            crc = times(crc, powers[k]);
    return crc;
}

static inline uint64_t word_at(const uint8_t *data)
{
    uint64_t word;
    memcpy(&word, data, 8);
    return word;
}

static uint32_t by_table(uint32_t crc, const uint8_t *data, size_t length)
{
    for (; length >= 8; data += 8, length -= 8) {
        uint64_t word = word_at(data) ^ crc;
        crc = table[7][word & 255] ^ table[6][word >> 8 & 255] ^ table[5][word >> 16 & 255] ^
              table[4][word >> 24 & 255] ^ table[3][word >> 32 & 255] ^ table[2][word >> 40 & 255] ^
              table[1][word >> 48 & 255] ^ table[0][word >> 56];
    }
    for (; length; data++, length--)
        crc = crc >> 8 ^ table[0][(crc ^ *data) & 255];
    return crc;
}

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#define FOLDS __attribute__((target("pclmul,sse4.1")))
#define FOLDS_WIDE __attribute__((target("pclmul,vpclmulqdq,avx512f,avx512vl")))
typedef __m128i lane;

FOLDS static inline lane load(const uint8_t *data) { return _mm_loadu_si128((const lane *)data); }
FOLDS static inline lane first(uint32_t crc) { return _mm_cvtsi32_si128((int)crc); }
FOLDS static inline lane plus(lane a, lane b) { return _mm_xor_si128(a, b); }
FOLDS static inline void store(uint8_t *data, lane a) { _mm_storeu_si128((lane *)data, a); }

FOLDS static inline lane fold(lane moved, uint64_t low, uint64_t high, lane onto)
{
    lane by = _mm_set_epi64x((long long)high, (long long)low);
    return plus(plus(_mm_clmulepi64_si128(moved, by, 0x00), _mm_clmulepi64_si128(moved, by, 0x11)), onto);
}

static int can_fold(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_PCLMUL) && (c & bit_SSE4_1);
}

/* Whether the processor has the wide instructions, and the system keeps their registers. */
static int can_fold_wide(void)
{
    unsigned a, b, c, d, kept;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return 0;
    __asm__("xgetbv" : "=a"(kept), "=d"(d) : "c"(0));
    return (kept & 0xE6) == 0xE6 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX512F) &&
           (b & bit_AVX512VL) && (c & bit_VPCLMULQDQ);
}

FOLDS_WIDE static inline __m512i fold_wide(__m512i moved, __m512i by, __m512i onto)
{
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(moved, by, 0x00),
                                     _mm512_clmulepi64_epi128(moved, by, 0x11), onto, 0x96);
}

/* The remainder of all but the last 64 bytes and a rest, in four lanes of 16 bytes each. */
FOLDS_WIDE static size_t fold_most_wide(uint32_t crc, const uint8_t *data, size_t length, lane x[4])
{
    const __m512i far = _mm512_set4_epi64(0x1322D1430, 0x11542778A, 0x1322D1430, 0x11542778A);
    const __m512i near = _mm512_set4_epi64(0x1C6E41596, 0x154442BD4, 0x1C6E41596, 0x154442BD4);
    __m512i y[4];
    for (int k = 0; k < 4; k++)
        y[k] = _mm512_loadu_si512(data + 64 * k);
    y[0] = _mm512_xor_si512(y[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    size_t at = 256;
    for (; length - at >= 256; at += 256)
        for (int k = 0; k < 4; k++)
            y[k] = fold_wide(y[k], far, _mm512_loadu_si512(data + at + 64 * k));
    for (int k = 1; k < 4; k++)
        y[k] = fold_wide(y[k - 1], near, y[k]);
    _mm512_storeu_si512(x, y[3]);
    return at;
}

#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <arm_neon.h>
#include <sys/auxv.h>

#define FOLDS __attribute__((target("+crypto")))
#define FOLDS_AND_CRC __attribute__((target("+crypto+crc")))
typedef uint64x2_t lane;

static inline lane load(const uint8_t *data) { return vreinterpretq_u64_u8(vld1q_u8(data)); }
static inline lane first(uint32_t crc) { return vsetq_lane_u64(crc, vdupq_n_u64(0), 0); }
static inline lane plus(lane a, lane b) { return veorq_u64(a, b); }
static inline void store(uint8_t *data, lane a) { vst1q_u8(data, vreinterpretq_u8_u64(a)); }

FOLDS static inline lane fold(lane moved, uint64_t low, uint64_t high, lane onto)
{
    poly64x2_t x = vreinterpretq_p64_u64(moved), by = vreinterpretq_p64_u64(vcombine_u64(vcreate_u64(low), vcreate_u64(high)));
    lane early = vreinterpretq_u64_p128(vmull_p64(vgetq_lane_p64(x, 0), vgetq_lane_p64(by, 0)));
    return plus(plus(early, vreinterpretq_u64_p128(vmull_high_p64(x, by))), onto);
}

static int can_fold(void) { return (getauxval(AT_HWCAP) & HWCAP_PMULL) != 0; }

/* Other units than those that multiply have the CRC of 8 bytes as an instruction: of each ROUND_BYTES the first half
 * is folded, while two streams of instructions take a quarter each. */
enum { TURNS = 64, FOLDED_BYTES = 64 * TURNS, STREAM_BYTES = 32 * TURNS, ROUND_BYTES = FOLDED_BYTES + 2 * STREAM_BYTES };

static int has_crc(void) { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }

/* A remainder times x**33 and another: a product begins one bit late, and the instruction moves it by 32. */
FOLDS_AND_CRC static inline uint32_t product(uint32_t crc, uint32_t by)
{
    return __crc32d(0, vgetq_lane_u64(vreinterpretq_u64_p128(vmull_p64(crc, by)), 0));
}
#endif

#if defined(FOLDS)
FOLDS static inline lane fold_16(lane moved, lane onto) { return fold(moved, 0x1751997D0, 0x0CCAA009E, onto); }
FOLDS static inline lane fold_64(lane moved, lane onto) { return fold(moved, 0x154442BD4, 0x1C6E41596, onto); }

/* Four lanes that follow each other, folded onto the last. */
FOLDS static inline lane in_one(const lane x[4])
{
    return fold_16(fold_16(fold_16(x[0], x[1]), x[2]), x[3]);
}

#if defined(FOLDS_AND_CRC)
/* The remainder of as many rounds as there are; `ahead` moves one over a stream, and over both. */
FOLDS_AND_CRC static uint32_t by_rounds(uint32_t crc, const uint8_t *data, size_t rounds, const uint32_t ahead[2])
{
    for (; rounds; rounds--, data += ROUND_BYTES) {
        const uint8_t *one = data + FOLDED_BYTES, *two = one + STREAM_BYTES;
        uint32_t of_one = 0, of_two = 0;
        lane x[4];
        for (int turn = 0; turn < TURNS; turn++) {
            for (int k = 0; k < 4; k++) {
                lane next = load(data + 64 * turn + 16 * k);
                x[k] = turn ? fold_64(x[k], next) : next;
            }
            if (!turn)
                x[0] = plus(x[0], first(crc));
            for (int k = 0; k < 4; k++) {
                of_one = __crc32d(of_one, word_at(one + 32 * turn + 8 * k));
                of_two = __crc32d(of_two, word_at(two + 32 * turn + 8 * k));
            }
        }
        lane all = in_one(x);
        uint32_t folded = __crc32d(__crc32d(0, vgetq_lane_u64(all, 0)), vgetq_lane_u64(all, 1));
        crc = product(folded, ahead[1]) ^ product(of_one, ahead[0]) ^ of_two;
    }
    return crc;
}
#endif

FOLDS static uint32_t by_folding(uint32_t crc, const uint8_t *data, size_t length, int wide)
{
    lane x[4];
    size_t at = 64;
#if defined(FOLDS_WIDE)
    if (wide && length >= 256)
        at = fold_most_wide(crc, data, length, x);
    else
#endif
    {
        (void)wide;
        for (int k = 0; k < 4; k++)
            x[k] = load(data + 16 * k);
        x[0] = plus(x[0], first(crc));
    }
    for (; length - at >= 64; at += 64)
        for (int k = 0; k < 4; k++)
            x[k] = fold_64(x[k], load(data + at + 16 * k));
    lane all = in_one(x);
    for (; length - at >= 16; at += 16)
        all = fold_16(all, load(data + at));
    uint8_t left[16];
    store(left, all);
    return by_table(by_table(0, left, 16), data + at, length - at);
}

static int folds, folds_wide;
#if defined(FOLDS_AND_CRC)
static int takes_rounds;
static uint32_t ahead[2];
#endif

static void look_at_processor(void)
{
#if defined(FOLDS_WIDE)
    folds_wide = can_fold_wide();
#endif
    folds = can_fold();
#if defined(FOLDS_AND_CRC)
    takes_rounds = folds && has_crc();
    for (int k = 0; k < 2; k++) /* x**7, and 5 bytes less: with the x**33 of `product` that is all of the bytes */
        ahead[k] = crc_shift(1u << 24, (k + 1) * STREAM_BYTES - 5);
#endif
}
#endif

__attribute__((constructor)) static void prepare(void)
{
    make_table();
#if defined(FOLDS)
    look_at_processor();
#endif
}

uint32_t crc_remainder(uint32_t before, const uint8_t *data, size_t length)
{
#if defined(FOLDS_AND_CRC)
    if (takes_rounds && length >= ROUND_BYTES) {
        size_t rounds = length / ROUND_BYTES;
        before = by_rounds(before, data, rounds, ahead);
        data += rounds * ROUND_BYTES, length -= rounds * ROUND_BYTES;
    }
#endif
#if defined(FOLDS)
    if (folds && length >= 64)
        return by_folding(before, data, length, folds_wide);
#endif
    return by_table(before, data, length);
}
