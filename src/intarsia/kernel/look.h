/* One pass over a block of elements of the type T, for `survey.c`, which names the function LOOK: the sums of rows and
 * of columns (in S, which holds TILE of the greatest elements), and what their magnitudes and signs show.
 * Written so that compilers make vector instructions of the inner loops. */

ALWAYS_INLINE void LOOK(const uint8_t *data, size_t rows, size_t columns, uint64_t sign_bit, uint64_t *row_sums,
                        uint64_t *column_sums, struct seen *seen)
{
    typedef T loose __attribute__((aligned(1), may_alias));
    const loose *elements = (const loose *)data;
    const T sign = (T)sign_bit, magnitude = (T)~sign;
    T most = 0, least = (T)~(T)0, used = 0, signed_zero = 0;
    for (size_t first = 0; first < columns; first += TILE) {
        size_t width = columns - first < TILE ? columns - first : TILE, row = 0;
        S down[TILE];
        memset(down, 0, width * sizeof *down);
        for (; row + 4 <= rows; row += 4) {
            const loose *a = elements + row * columns + first, *b = a + columns, *c = b + columns, *d = c + columns;
            S in_a = 0, in_b = 0, in_c = 0, in_d = 0;
            for (size_t k = 0; k < width; k++) {
                T p = a[k], q = b[k], r = c[k], s = d[k];
                T no_p = (T)-(p == sign), no_q = (T)-(q == sign), no_r = (T)-(r == sign), no_s = (T)-(s == sign);
                signed_zero |= no_p | no_q | no_r | no_s;
                p &= (T)~no_p, q &= (T)~no_q, r &= (T)~no_r, s &= (T)~no_s;
                used |= p | q | r | s;
                in_a += p, in_b += q, in_c += r, in_d += s;
                down[k] += (S)p + q + ((S)r + s);
                p &= magnitude, q &= magnitude, r &= magnitude, s &= magnitude;
                T high = p > q ? p : q, high_too = r > s ? r : s, low = p < q ? p : q, low_too = r < s ? r : s;
                high = high > high_too ? high : high_too, low = low < low_too ? low : low_too;
                most = most > high ? most : high, least = least < low ? least : low;
            }
            row_sums[row] += in_a, row_sums[row + 1] += in_b, row_sums[row + 2] += in_c, row_sums[row + 3] += in_d;
        }
        for (; row < rows; row++) {
            const loose *a = elements + row * columns + first;
            S in_a = 0;
            for (size_t k = 0; k < width; k++) {
                T p = a[k], no_p = (T)-(p == sign);
                signed_zero |= no_p;
                p &= (T)~no_p;
                used |= p;
                in_a += p;
                down[k] += p;
                p &= magnitude;
                most = most > p ? most : p, least = least < p ? least : p;
            }
            row_sums[row] += in_a;
        }
        for (size_t k = 0; k < width; k++)
            column_sums[first + k] += down[k];
    }
    seen->most = seen->most > most ? seen->most : most;
    seen->least = seen->least < least ? seen->least : least;
    seen->used |= used;
    seen->signed_zero |= signed_zero != 0;
}

#undef LOOK
#undef T
#undef S
