/* Layers of one model, for one type of numbers and one width of vectors: included by kernels.c once for each, which
 * defines REAL, LANES (numbers in a vector), BLOCK (four times as many sums are in registers at once), TARGET (what the
 * processor must know) and NAME(function). `blocks` is the number of vectors that hold a batch.
 *
 * Activations are kept as numbers of the type STORED, in arrays of `stored`, vectors of LANES of them: LOAD(x, k) returns
 * the k-th as a vec, STORE(y, k, value) sets it.
 *
 * Every loop over places of a kernel goes by a window (program.h), so that kernels of any size, stride, padding and
 * dilation are one text, and a linear layer is a convolution of images of one pixel. */

#undef vec
#undef stored
#undef truth

typedef REAL NAME(vec) __attribute__((vector_size(LANES * sizeof(REAL))));
#define vec NAME(vec)
typedef STORED NAME(stored) __attribute__((vector_size(LANES * sizeof(STORED))));
#define stored NAME(stored)

/* The result of a comparison of vectors, and `value` where it is true, 0 elsewhere. */
typedef __typeof__((vec){0} <= 0) NAME(truth);
#define truth NAME(truth)
#define WHERE(test, value) ((vec)((test) & (truth)(value)))

/* `value` where a ReLU of `x` lets it through, 0 elsewhere. What is no number passes, as in torch. */
#define RECTIFIED(value, x) WHERE(~((x) <= 0), value)

/* Set the first vectors of sum[count] to the sums of the lanes of them all. A step takes two vectors, each with sums in
 * groups of 2 h lanes, and makes one, in which each half of a group is added to the other, half a group from either
 * vector. So the sum of vector i ends in the lane whose number has the bits of i in reverse. */
#undef EVERY
#undef FOLD_ALL
#undef LANE_OF
#if LANES == 16
#define EVERY(f, h)                                                                                                    \
    f(0, h), f(1, h), f(2, h), f(3, h), f(4, h), f(5, h), f(6, h), f(7, h), f(8, h), f(9, h), f(10, h), f(11, h),      \
        f(12, h), f(13, h), f(14, h), f(15, h)
#define FOLD_ALL(sum, count) FOLD(sum, count, 8) FOLD(sum, count, 4) FOLD(sum, count, 2) FOLD(sum, count, 1)
#define LANE_OF(i) (((i) & 1) << 3 | ((i) & 2) << 1 | ((i) & 4) >> 1 | ((i) & 8) >> 3)
#elif LANES == 8
#define EVERY(f, h) f(0, h), f(1, h), f(2, h), f(3, h), f(4, h), f(5, h), f(6, h), f(7, h)
#define FOLD_ALL(sum, count) FOLD(sum, count, 4) FOLD(sum, count, 2) FOLD(sum, count, 1)
#define LANE_OF(i) (((i) & 1) << 2 | ((i) & 2) | ((i) & 4) >> 2)
#else
#define EVERY(f, h) f(0, h), f(1, h), f(2, h), f(3, h)
#define FOLD_ALL(sum, count) FOLD(sum, count, 2) FOLD(sum, count, 1)
#define LANE_OF(i) (((i) & 1) << 1 | ((i) & 2) >> 1)
#endif
#define STAYS(i, h) ((i) & (h) ? LANES + (i) : (i))
#define MOVES(i, h) ((i) & (h) ? LANES + (i) - (h) : (i) + (h))
#define FOLD(sum, count, h)                                                                                            \
    EACH(k, (count) * (h) / LANES)                                                                                     \
    sum[k] = __builtin_shufflevector(sum[2 * k], sum[2 * k + 1], EVERY(STAYS, h)) +                                    \
             __builtin_shufflevector(sum[2 * k], sum[2 * k + 1], EVERY(MOVES, h));

/* Set total[count] to the sums of the lanes of sum[count]: of as many as fill vectors, all at once. */
#define LANE_SUMS(total, sum, count)                                                                                   \
    if ((count) % LANES == 0) {                                                                                        \
        REAL folded[LANES * (count)];                                                                                  \
        FOLD_ALL(sum, count)                                                                                           \
        memcpy(folded, sum, (count) * sizeof(REAL));                                                                   \
        EACH(k, count) total[k] = folded[(k) / LANES * LANES + LANE_OF((k) % LANES)];                                  \
    } else                                                                                                             \
        EACH(k, count) {                                                                                               \
            total[k] = 0;                                                                                              \
            EACH(l, LANES) total[k] += sum[k][l];                                                                      \
        }

#if !MIXED /* see bf16.h */

/* A block of `outs` channels and `pixs` pixels, which are summed in registers: constants, so that the loops unroll. */
#define CONVOLVE_BLOCK(outs, pixs, together)                                                                           \
    {                                                                                                                  \
        vec sum[outs][pixs];                                                                                           \
        EACH(k, outs) EACH(l, pixs) sum[k][l] = (vec){0} + (bias ? bias[o + k] : 0);                                   \
        for (long c = 0; c < inputs; c++) {                                                                            \
            const vec *from = x + c * x_pixels * blocks + b;                                                           \
            const REAL *weight = w + o * w_output + c * w_input;                                                       \
            for (long t = 0; t < taps; t++) {                                                                          \
                const int32_t *pixel = window + t * y_pixels + p;                                                      \
                int inside = together;                                                                                 \
                EACH(l, pixs) inside &= pixel[l] >= 0;                                                                 \
                if (inside) { /* a weight is read once for all pixels */                                               \
                    vec value[pixs];                                                                                   \
                    EACH(l, pixs) value[l] = from[pixel[l] * blocks];                                                  \
                    EACH(k, outs) EACH(l, pixs) sum[k][l] += weight[k * w_output + t] * value[l];                      \
                } else                                                                                                 \
                    EACH(l, pixs) if (pixel[l] >= 0) EACH(k, outs)                                                     \
                        sum[k][l] += weight[k * w_output + t] * from[pixel[l] * blocks];                               \
            }                                                                                                          \
        }                                                                                                              \
        EACH(k, outs) EACH(l, pixs) y[((o + k) * y_pixels + p + l) * blocks + b] =                                     \
            rectify ? RECTIFIED(sum[k][l], sum[k][l]) : sum[k][l];                                                     \
    }

/* Return for how many pixels, from one on, to compute sums at once: BLOCK if most taps are inside for all of them, half
 * as many where taps are of use to some only, as in the gradient of a convolution with strides. */
static inline long NAME(pixels_at_once)(const int32_t *pixel, long taps, long y_pixels, long left)
{
    long inside = 0;
    for (long t = 0; t < taps && left >= BLOCK; t++) {
        int all = 1;
        EACH(l, BLOCK) all &= pixel[t * y_pixels + l] >= 0;
        inside += all;
    }
    return 2 * inside > taps ? BLOCK : left >= BLOCK / 2 ? BLOCK / 2 : 1;
}

/* y[o, p] = bias[o] + sum over c, t of w[o, c, t] x[c, window[t, p]], and with `rectify` a ReLU of that.
 *
 * The gradient of x is such a sum, too: of that of y, with outputs and inputs exchanged, and the window that leads back.
 * w_output, w_input: distances in w between outputs and between inputs. bias: [outputs], or NULL. */
TARGET static void NAME(convolve)(vec *y, const vec *x, const REAL *w, const REAL *bias, const int32_t *window,
                                  long outputs, long inputs, long taps, long w_output, long w_input, long x_pixels,
                                  long y_pixels, long blocks, int rectify)
{
    for (long p = 0, pixs, outs; p < y_pixels; p += pixs) {
        pixs = NAME(pixels_at_once)(window + p, taps, y_pixels, y_pixels - p);
        for (long b = 0; b < blocks; b++)
            for (long o = 0; o < outputs; o += outs) {
                outs = pixs == BLOCK ? 4 : 8;
                if (o + outs > outputs)
                    outs = 1;
                if (pixs == BLOCK && outs == 4)
                    CONVOLVE_BLOCK(4, BLOCK, 1)
                else if (pixs == BLOCK)
                    CONVOLVE_BLOCK(1, BLOCK, 1)
                else if (pixs == BLOCK / 2 && outs == 8)
                    CONVOLVE_BLOCK(8, BLOCK / 2, 0)
                else if (pixs == BLOCK / 2)
                    CONVOLVE_BLOCK(1, BLOCK / 2, 0)
                else if (outs == 8)
                    CONVOLVE_BLOCK(8, 1, 0)
                else
                    CONVOLVE_BLOCK(1, 1, 0)
            }
    }
}

/* Sums over pixels and samples for `outs` x `ins` channels and all taps. */
#define WEIGHT_BLOCK(outs, ins)                                                                                        \
    for (long t = 0; t < taps; t++) {                                                                                  \
        vec sum[outs * ins];                                                                                           \
        EACH(k, outs * ins) sum[k] = (vec){0};                                                                         \
        for (long p = 0; p < y_pixels; p++) {                                                                          \
            const long q = window[t * y_pixels + p];                                                                   \
            if (q < 0)                                                                                                 \
                continue;                                                                                              \
            for (long b = 0; b < blocks; b++) {                                                                        \
                vec left[outs], right[ins];                                                                            \
                EACH(k, outs) left[k] = dy[((o + k) * y_pixels + p) * blocks + b];                                     \
                EACH(l, ins) right[l] = x[((c + l) * x_pixels + q) * blocks + b];                                      \
                EACH(k, outs) EACH(l, ins) sum[k * ins + l] += left[k] * right[l];                                     \
            }                                                                                                          \
        }                                                                                                              \
        REAL total[outs * ins];                                                                                        \
        LANE_SUMS(total, sum, outs * ins)                                                                              \
        EACH(k, outs) EACH(l, ins) dw[((o + k) * inputs + c + l) * taps + t] += total[k * ins + l];                    \
    }

/* dw[o, c, t] += sum over p and samples of dy[o, p] x[c, window[t, p]]: [outputs, inputs, taps]. */
TARGET static void NAME(convolve_weights)(REAL *dw, const vec *x, const vec *dy, const int32_t *window, long outputs,
                                          long inputs, long taps, long x_pixels, long y_pixels, long blocks)
{
    for (long o = 0; o < outputs; o += o + 4 <= outputs ? 4 : 1)
        for (long c = 0; c < inputs; c += o + 4 > outputs ? 1 : c + BLOCK <= inputs ? BLOCK : c + 3 == inputs ? 3 : 1)
            if (o + 4 <= outputs && c + BLOCK <= inputs)
                WEIGHT_BLOCK(4, BLOCK)
            else if (o + 4 <= outputs && c + 3 == inputs) /* colours */
                WEIGHT_BLOCK(4, 3)
            else if (o + 4 <= outputs)
                WEIGHT_BLOCK(4, 1)
            else
                WEIGHT_BLOCK(1, 1)
}

/* Exchange rows and columns of a square of LANES vectors: in each step, the halves of blocks of 2 h rows and columns that
 * are not on the diagonal. */
#undef STAYS_ABOVE
#undef STAYS_BELOW
#undef TURN
#undef TURN_ALL
#define STAYS_ABOVE(i, h) ((i) & (h) ? LANES + (i) - (h) : (i))
#define STAYS_BELOW(i, h) ((i) & (h) ? LANES + (i) : (i) + (h))
#define TURN(row, h)                                                                                                   \
    EACH(k, LANES) if (!((k) & (h)))                                                                                   \
    {                                                                                                                  \
        const vec above = row[k], below = row[(k) + (h)];                                                              \
        row[k] = __builtin_shufflevector(above, below, EVERY(STAYS_ABOVE, h));                                         \
        row[(k) + (h)] = __builtin_shufflevector(above, below, EVERY(STAYS_BELOW, h));                                 \
    }
#if LANES == 16
#define TURN_ALL(row) TURN(row, 8) TURN(row, 4) TURN(row, 2) TURN(row, 1)
#elif LANES == 8
#define TURN_ALL(row) TURN(row, 4) TURN(row, 2) TURN(row, 1)
#else
#define TURN_ALL(row) TURN(row, 2) TURN(row, 1)
#endif

/* dw[o + k, c...] += sum over samples of dy[o + k] x[c...], for `outs` outputs and as many inputs as a vector has lanes. */
#undef SUM_OUTERS
#define SUM_OUTERS(outs)                                                                                               \
    {                                                                                                                  \
        vec sum[outs];                                                                                                 \
        EACH(k, outs) sum[k] = (vec){0};                                                                               \
        for (long i = 0; i < count; i++)                                                                               \
            EACH(k, outs) sum[k] += rate[(o + k) * blocks * LANES + i] * row[i];                                       \
        EACH(k, outs)                                                                                                  \
        {                                                                                                              \
            vec before; /* at any address */                                                                           \
            memcpy(&before, dw + (o + k) * inputs + c, sizeof before);                                                 \
            before += sum[k];                                                                                          \
            memcpy(dw + (o + k) * inputs + c, &before, sizeof before);                                                 \
        }                                                                                                              \
    }

/* dw[o, c] += sum over samples of dy[o] x[c], as `convolve_weights` of one pixel: faster for few samples and many outputs,
 * since inputs are in the lanes, so that no lanes are added up. inputs: as many as a vector has lanes, or more. */
TARGET static void NAME(outer_products)(REAL *dw, const vec *x, const vec *dy, long outputs, long inputs, long samples,
                                        long blocks)
{
    for (long b = 0; b < blocks; b++)
        for (long next = 0, c; next < inputs; next = c + LANES) {
            c = next + LANES <= inputs ? next : inputs - LANES; /* the last ones again, but as zeros */
            const REAL *rate = (const REAL *)(dy + b);
            const long count = samples - b * LANES < LANES ? samples - b * LANES : LANES;
            vec row[LANES];
            EACH(k, LANES) row[k] = c + k < next ? (vec){0} : x[(c + k) * blocks + b];
            TURN_ALL(row)
            long o = 0;
            for (; o + 8 <= outputs; o += 8)
                SUM_OUTERS(8)
            for (; o < outputs; o++)
                SUM_OUTERS(1)
        }
}

#endif

/* Add `term`, an expression of k, to sum for k from `first` by `step` below `count`: in four parts, as an addition waits
 * for the one before it. */
#undef ADD_UP
#define ADD_UP(sum, first, step, count, term)                                                                          \
    {                                                                                                                  \
        vec part[4] = {{0}};                                                                                           \
        long start = first;                                                                                            \
        for (; start + 3 * (step) < (count); start += 4 * (step))                                                      \
            EACH(i, 4)                                                                                                 \
            {                                                                                                          \
                const long k = start + i * (step);                                                                     \
                part[i] += term;                                                                                       \
            }                                                                                                          \
        for (long k = start; k < (count); k += (step))                                                                 \
            part[0] += term;                                                                                           \
        sum += (part[0] + part[1]) + (part[2] + part[3]);                                                              \
    }

/* Return the sum of [pixels, blocks] vectors over those lanes that hold a sample. real: [blocks], true there. */
TARGET static REAL NAME(total)(const stored *x, const truth *real, long pixels, long blocks)
{
    vec sum = {0};
    REAL result = 0;
    for (long b = 0; b < blocks; b++)
        ADD_UP(sum, b, blocks, pixels * blocks, WHERE(real[b], LOAD(x, k)))
    EACH(l, LANES) result += sum[l];
    return result;
}

/* A batch in parts, `apart` vectors from one part of an activation to the same place in the next, which has `blocks`
 * vectors for each number. real: [parts, blocks], which lanes hold a sample; samples: how many do. */
typedef struct {
    long parts, apart, blocks, samples;
    const truth *real;
} NAME(Batch);

/* Batch norm in training, of a batch's activations: y = (x - mean) rate weight + bias, rate = 1 / sqrt(variance + eps), mean
 * and variance over a channel's pixels and samples. other: is added to y, or NULL. rectify: a ReLU behind that.
 *
 * Mean and rate are kept for the gradient, [channels, 2]. Mean and unbiased variance enter the running statistics, if
 * there are any. weight, bias: [channels], or NULL. */
TARGET static void NAME(norm)(stored *y, REAL *kept, const stored *x, const REAL *weight, const REAL *bias,
                              REAL *running_mean, REAL *running_variance, REAL momentum, REAL eps, const stored *other,
                              NAME(Batch) a, long channels, long pixels, int rectify)
{
    const long count = pixels * a.blocks;
    const REAL numbers = pixels * a.samples;
    for (long c = 0; c < channels; c++, x += count, y += count) {
        vec squares = {0};
        REAL sum = 0, total = 0;
        for (long part = 0; part < a.parts; part++)
            sum += NAME(total)(x + part * a.apart, a.real + part * a.blocks, pixels, a.blocks);
        const REAL mean = sum / numbers;
        for (long part = 0; part < a.parts; part++)
            for (long b = 0; b < a.blocks; b++) {
                const stored *from = x + part * a.apart;
                const truth there = a.real[part * a.blocks + b];
                ADD_UP(squares, b, a.blocks, count, WHERE(there, (LOAD(from, k) - mean) * (LOAD(from, k) - mean)))
            }
        EACH(l, LANES) total += squares[l];
        const REAL rate = 1 / (REAL)sqrt(total / numbers + eps);
        kept[2 * c] = mean;
        kept[2 * c + 1] = rate;
        if (running_mean) {
            running_mean[c] += momentum * (mean - running_mean[c]);
            running_variance[c] += momentum * (total / (numbers - 1) - running_variance[c]);
        }
        const REAL scale = rate * (weight ? weight[c] : 1), shift = bias ? bias[c] : 0;
        for (long part = 0; part < a.parts; part++)
            for (long k = part * a.apart; k < part * a.apart + count; k++) {
                vec value = (LOAD(x, k) - mean) * scale + shift;
                if (other)
                    value += LOAD(other, c * count + k);
                STORE(y, k, rectify ? RECTIFIED(value, value) : value);
            }
    }
}

/* Add vector k + i to the i-th sums of `norm_gradient`. */
#undef SUM_GRADIENTS
#define SUM_GRADIENTS(i)                                                                                               \
    {                                                                                                                  \
        const vec gradient = y ? RECTIFIED(LOAD(dy, k + i), LOAD(y, k + i)) : LOAD(dy, k + i);                         \
        sums[i] += gradient;                                                                                           \
        products[i] += gradient * (LOAD(x, k + i) - mean);                                                             \
        if (theirs)                                                                                                    \
            STORE(theirs, k + i, theirs_adds ? LOAD(theirs, k + i) + gradient : gradient);                             \
    }

/* Gradients of `norm`, with h = (x - mean) rate: dbias += sum dy, dweight += sum dy h, and
 * dx = rate weight (dy - (sum dy + h sum dy h) / numbers), 0 in lanes without a sample; with `adds` it is added to dx.
 * dweight, dbias: or NULL. y: the result if a ReLU is behind it, by which dy counts where that let something through;
 * else NULL. theirs: the gradient of `other`, or NULL; theirs_adds: as `adds`, of it. */
TARGET static void NAME(norm_gradient)(stored *dx, REAL *dweight, REAL *dbias, const stored *dy, const stored *y,
                                       const stored *x, const REAL *kept, const REAL *weight, stored *theirs,
                                       int theirs_adds, NAME(Batch) a, long channels, long pixels, int adds)
{
    const long count = pixels * a.blocks;
    const REAL numbers = pixels * a.samples;
    for (long c = 0; c < channels; c++) {
        const long first = c * count;
        const REAL mean = kept[2 * c], rate = kept[2 * c + 1];
        vec sums[4] = {{0}}, products[4] = {{0}}; /* four of each, as an addition waits for the one before it */
        REAL sum = 0, product = 0;
        for (long part = 0; part < a.parts; part++) {
            long k = first + part * a.apart;
            for (const long end = k + count; k < end; k += k + 4 <= end ? 4 : 1)
                if (k + 4 <= end)
                    EACH(i, 4) SUM_GRADIENTS(i)
                else
                    SUM_GRADIENTS(0)
        }
        EACH(l, LANES) sum += sums[0][l] + sums[1][l] + (sums[2][l] + sums[3][l]);
        EACH(l, LANES) product += products[0][l] + products[1][l] + (products[2][l] + products[3][l]);
        if (dbias)
            dbias[c] += sum;
        if (dweight)
            dweight[c] += product * rate;
        const REAL scale = rate * (weight ? weight[c] : 1), mean_gradient = sum / numbers;
        const REAL projection = product * rate * rate / numbers;
        for (long part = 0; part < a.parts; part++)
            for (long p = 0; p < pixels; p++)
                for (long b = 0; b < a.blocks; b++) {
                    const long k = first + part * a.apart + p * a.blocks + b;
                    const vec gradient = y ? RECTIFIED(LOAD(dy, k), LOAD(y, k)) : LOAD(dy, k);
                    const vec given = (gradient - mean_gradient - (LOAD(x, k) - mean) * projection) * scale;
                    const vec result = WHERE(a.real[part * a.blocks + b], given);
                    STORE(dx, k, adds ? LOAD(dx, k) + result : result);
                }
    }
}

#if !MIXED

/* Batch norm in evaluation, by the running statistics. other: as in `norm`. */
TARGET static void NAME(norm_by_running)(vec *y, const vec *x, const REAL *weight, const REAL *bias,
                                         const REAL *running_mean, const REAL *running_variance, REAL eps,
                                         const vec *other, long channels, long count, int rectify)
{
    for (long c = 0; c < channels; c++, x += count, y += count) {
        const REAL mean = running_mean[c], shift = bias ? bias[c] : 0;
        const REAL scale = (weight ? weight[c] : 1) / (REAL)sqrt(running_variance[c] + eps);
        for (long k = 0; k < count; k++) {
            const vec value = (x[k] - mean) * scale + shift + (other ? other[c * count + k] : (vec){0});
            y[k] = rectify ? RECTIFIED(value, value) : value;
        }
    }
}

#endif

/* Group norm: y = (x - mean) rate weight + bias, mean and variance over `each` channels' pixels of one sample, weight
 * and bias of a channel. other: as in `norm`. Mean and rate are kept for the gradient, [groups, 2, blocks]. */
TARGET static void NAME(group_norm)(stored *y, vec *kept, const stored *x, const REAL *weight, const REAL *bias, REAL eps,
                                    const stored *other, long groups, long each, long pixels, long blocks, int rectify)
{
    const long count = each * pixels * blocks;
    const REAL numbers = each * pixels;
    for (long g = 0; g < groups; g++, x += count, y += count)
        for (long b = 0; b < blocks; b++) {
            vec sum = {0}, squares = {0}, rate;
            ADD_UP(sum, b, blocks, count, LOAD(x, k))
            const vec mean = sum / numbers;
            ADD_UP(squares, b, blocks, count, (LOAD(x, k) - mean) * (LOAD(x, k) - mean))
            EACH(l, LANES) rate[l] = 1 / (REAL)sqrt(squares[l] / numbers + eps);
            kept[2 * g * blocks + b] = mean;
            kept[(2 * g + 1) * blocks + b] = rate;
            for (long c = 0; c < each; c++) {
                const vec scale = rate * (weight ? weight[g * each + c] : 1);
                const REAL shift = bias ? bias[g * each + c] : 0;
                for (long p = 0; p < pixels; p++) {
                    const long k = (c * pixels + p) * blocks + b;
                    vec value = (LOAD(x, k) - mean) * scale + shift;
                    if (other)
                        value += LOAD(other, g * count + k);
                    STORE(y, k, rectify ? RECTIFIED(value, value) : value);
                }
            }
        }
}

/* Gradients of `group_norm`, with h = (x - mean) rate: over pixels and samples dbias = sum dy, dweight = sum dy h; and
 * dx = rate (dy weight - (s + h r) / numbers), with s = sum dy weight, r = sum dy weight h over the group.
 * dweight, dbias: zero before, or NULL. */
TARGET static void NAME(group_norm_gradient)(stored *dx, REAL *dweight, REAL *dbias, const stored *dy, const stored *x,
                                             const vec *kept, const REAL *weight, long groups, long each, long pixels,
                                             long blocks)
{
    const long count = each * pixels * blocks;
    const REAL numbers = each * pixels;
    for (long g = 0; g < groups; g++, x += count, dy += count, dx += count)
        for (long b = 0; b < blocks; b++) {
            const vec mean = kept[2 * g * blocks + b], rate = kept[(2 * g + 1) * blocks + b];
            vec s = {0}, r = {0};
            for (long c = 0; c < each; c++) {
                vec sum = {0}, products = {0};
                const long first = c * pixels * blocks + b, last = (c + 1) * pixels * blocks;
                ADD_UP(sum, first, blocks, last, LOAD(dy, k))
                ADD_UP(products, first, blocks, last, LOAD(dy, k) * (LOAD(x, k) - mean) * rate)
                EACH(l, LANES) if (dbias) dbias[g * each + c] += sum[l];
                EACH(l, LANES) if (dweight) dweight[g * each + c] += products[l];
                s += sum * (weight ? weight[g * each + c] : 1);
                r += products * (weight ? weight[g * each + c] : 1);
            }
            for (long c = 0; c < each; c++)
                for (long p = 0; p < pixels; p++) {
                    const long k = (c * pixels + p) * blocks + b;
                    const vec slope = LOAD(dy, k) * (weight ? weight[g * each + c] : 1);
                    STORE(dx, k, rate * (slope - (s + (LOAD(x, k) - mean) * rate * r) / numbers));
                }
        }
}

/* Dropout: y = x kept rate, with kept = 1 where the mask [samples, numbers] is 1, and 0 elsewhere. */
TARGET static void NAME(drop)(stored *y, stored *kept, const stored *x, const uint8_t *mask, REAL rate, long numbers,
                              long samples, long blocks)
{
    for (long j = 0; j < numbers; j++)
        for (long b = 0; b < blocks; b++) {
            const long k = j * blocks + b;
            vec stays;
            EACH(l, LANES) stays[l] = b * LANES + l < samples && mask[(b * LANES + l) * numbers + j];
            STORE(kept, k, stays);
            STORE(y, k, LOAD(x, k) * (stays * rate));
        }
}
