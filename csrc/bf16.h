/* Gradients in bf16 (`precision=bf16`), where the processor has AMX: activations and their gradients are kept as bf16
 * numbers, products are of such numbers; sums, parameters, statistics and the loss are of single precision. Included by
 * kernels.c behind everything else. */

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ASK_FOR_TILES 0x1023 /* of arch_prctl: ARCH_REQ_XCOMP_PERM */
#define TILE_DATA 18         /* which state the kernel is to keep for this process */

/* Tell whether this processor has AMX for bf16, and the kernel lets this process use it. */
int has_bf16(void)
{
    unsigned a, b, c, d;
    if (strcmp(extension(), "avx512") || !__builtin_cpu_supports("avx512bw"))
        return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1) || !(d >> 24 & 1)) /* amx_bf16, amx_tile */
        return 0;
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a >> 5 & 1)) /* avx512_bf16 */
        return 0;
    return !syscall(SYS_arch_prctl, ASK_FOR_TILES, TILE_DATA);
}

#undef STORED
#undef LOAD
#undef STORE
#undef WIDENED
#undef NARROWED
#undef MIXED
#undef BLOCK
#undef TARGET

#define TARGET __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,avx512bf16,fma,amx-tile,amx-bf16")))
#define BLOCK 4
#define REAL float
#define LANES 16
#define NAME(function) function##_bf16
#define MIXED 1
#define STORED uint16_t
#define LOAD(x, k) ((vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)(x)[k]), 16))
#define STORE(y, k, value) ((y)[k] = (stored)_mm512_cvtneps_pbh((__m512)(value)))
#define WIDENED(number) widened(number)
#define NARROWED(number) narrowed(number)

static inline float widened(uint16_t number)
{
    const uint32_t bits = (uint32_t)number << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Return a number rounded to the nearest of bf16, the even one of two; what is none stays none. */
static inline uint16_t narrowed(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return value != value ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

#include "layers.h"
#include "functions.h"
#include "amx.h"
#include "gradient.h"

/* As `norm` of layers.h, over parts of a batch, whose samples are in the lanes `real` [parts, 2], `numbers` of them times
 * pixels. arena: of the first part. */
TARGET static void NAME(norm_parts)(const Step *s, STORED *arena, const REAL *x, REAL *statistics, const truth *real,
                                    REAL numbers, long parts, long apart)
{
    const long count = s->to_pixels * 2;
    for (long c = 0; c < s->outputs; c++) {
        const stored *from = (const stored *)(arena + s->from) + c * count;
        stored *to = (stored *)(arena + s->to) + c * count;
        REAL *kept = (REAL *)(arena + s->kept) + 2 * c, sum = 0, total = 0;
        vec squares = {0};
        for (long part = 0; part < parts; part++)
            sum += NAME(total)(from + part * apart, real + 2 * part, s->to_pixels, 2);
        const REAL mean = sum / numbers;
        for (long part = 0; part < parts; part++)
            for (long b = 0; b < 2; b++) {
                const stored *values = from + part * apart;
                const truth there = real[2 * part + b];
                ADD_UP(squares, b, 2, count, WHERE(there, (LOAD(values, k) - mean) * (LOAD(values, k) - mean)))
            }
        EACH(l, LANES) total += squares[l];
        const REAL rate = 1 / (REAL)sqrt(total / numbers + s->eps);
        kept[0] = mean;
        kept[1] = rate;
        if (s->mean >= 0) {
            REAL *running = statistics + s->mean + c, *variance = statistics + s->variance + c;
            *running += (REAL)s->momentum * (mean - *running);
            *variance += (REAL)s->momentum * (total / (numbers - 1) - *variance);
        }
        const REAL scale = rate * (s->weight < 0 ? 1 : x[s->weight + c]), shift = s->bias < 0 ? 0 : x[s->bias + c];
        for (long part = 0; part < parts; part++)
            for (long k = 0; k < count; k++) {
                const vec value = (LOAD(from + part * apart, k) - mean) * scale + shift;
                STORE(to + part * apart, k, s->rectify ? RECTIFIED(value, value) : value);
            }
    }
}

/* As `norm_gradient` of layers.h, over parts of a batch, and with the gradient of a ReLU behind it. */
TARGET static void NAME(norm_parts_gradient)(const Step *s, const STORED *arena, STORED *slopes, const REAL *x, REAL *g,
                                             const truth *real, REAL numbers, long parts, long apart)
{
    const long count = s->to_pixels * 2;
    for (long c = 0; c < s->outputs; c++) {
        const stored *from = (const stored *)(arena + s->from) + c * count, *to = (const stored *)(arena + s->to) + c * count;
        const stored *dy = (const stored *)(slopes + s->to) + c * count;
        stored *dx = (stored *)(slopes + s->from) + c * count;
        const REAL *kept = (const REAL *)(arena + s->kept) + 2 * c, mean = kept[0], rate = kept[1];
        vec sums[2] = {{0}}, products[2] = {{0}}; /* two of each, as an addition waits for the one before it */
        REAL sum = 0, product = 0;
        for (long part = 0; part < parts; part++)
            for (long k = 0; k < count; k += 2)
                EACH(b, 2)
                {
                    const vec value = LOAD(dy + part * apart, k + b);
                    const vec slope = s->rectify ? RECTIFIED(value, LOAD(to + part * apart, k + b)) : value;
                    sums[b] += slope;
                    products[b] += slope * (LOAD(from + part * apart, k + b) - mean);
                }
        EACH(l, LANES) sum += sums[0][l] + sums[1][l];
        EACH(l, LANES) product += products[0][l] + products[1][l];
        if (s->bias >= 0)
            g[s->bias + c] = sum;
        if (s->weight >= 0)
            g[s->weight + c] = product * rate;
        const REAL scale = rate * (s->weight < 0 ? 1 : x[s->weight + c]), level = sum / numbers;
        const REAL slant = product * rate * rate / numbers;
        for (long part = 0; part < parts; part++)
            for (long k = 0; k < count; k++) {
                const vec value = LOAD(dy + part * apart, k);
                const vec slope = s->rectify ? RECTIFIED(value, LOAD(to + part * apart, k)) : value;
                const vec given = (slope - level - (LOAD(from + part * apart, k) - mean) * slant) * scale;
                const vec result = WHERE(real[2 * part + k % 2], given);
                STORE(dx + part * apart, k, s->adds ? LOAD(dx + part * apart, k) + result : result);
            }
    }
}

/* Compute a step of all parts. real: [parts, 2]. */
TARGET static void NAME(forward_parts)(const Program *p, const Step *s, STORED *arena, const REAL *x, REAL *statistics,
                                       const truth *real, long parts, void *scratch)
{
    const long apart = p->arena / LANES;
    if (s->kind == CONVOLVE || s->kind == LINEAR)
        NAME(convolve_step)(s, arena, x, parts, apart, scratch);
    else if (s->kind == NORM)
        NAME(norm_parts)(s, arena, x, statistics, real, s->to_pixels * p->samples, parts, apart);
    else
        for (long part = 0; part < parts; part++)
            NAME(forward)(p, s, arena + part * p->arena, x, NULL, real + 2 * part, NULL, 0, 0, 2, NULL);
}

/* Compute the gradients of a step of all parts, as `backward`. */
TARGET static void NAME(backward_parts)(const Program *p, const Step *s, const STORED *arena, STORED *slopes,
                                        const REAL *x, REAL *g, const truth *real, long parts, void *scratch)
{
    const long apart = p->arena / LANES, pixels = s->to_pixels;
    if (s->kind == NORM) {
        NAME(norm_parts_gradient)(s, arena, slopes, x, g, real, pixels * p->samples, parts, apart);
        return;
    }
    for (long part = 0; part < parts; part++)
        if (s->kind != CONVOLVE && s->kind != LINEAR)
            NAME(backward)(p, s, arena + part * p->arena, slopes + part * p->arena, slopes + parts * p->arena, x, g,
                           real + 2 * part, 0, 2, NULL);
        else {
            const stored *to = (const stored *)(arena + part * p->arena + s->to);
            stored *dy = (stored *)(slopes + part * p->arena + s->to);
            for (long k = 0; s->rectify && k < s->outputs * pixels * 2; k++)
                STORE(dy, k, RECTIFIED(LOAD(dy, k), LOAD(to, k)));
            for (long o = 0; o < s->outputs && s->bias >= 0; o++)
                g[s->bias + o] += NAME(total)(dy + o * pixels * 2, real + 2 * part, pixels, 2);
        }
    if (s->kind == CONVOLVE || s->kind == LINEAR)
        NAME(convolve_step_gradient)(s, arena, slopes, x, g, parts, apart, scratch);
}

/* As `gradients` of gradient.h. arena, slopes: for p->arena numbers for each part of the batch. */
TARGET int NAME(gradients)(const Program *p, long n, REAL *g, long g_row, REAL *losses, REAL *buffers,
                           const REAL *const *x, const REAL *inputs, const int64_t *labels, const uint8_t *masks,
                           STORED *arena, STORED *slopes)
{
    const long parts = (p->samples + p->part - 1) / p->part;
    void *scratch = arena + parts * p->arena;
    truth real[2 * parts];
    (void)masks;
    for (long b = 0; b < 2 * parts; b++)
        EACH(l, LANES) real[b][l] = b * LANES + l < p->samples ? -1 : 0;
    for (long i = 0; i < n; i++, g += g_row, buffers += p->buffers) {
        for (long begin = 0; begin < p->samples; begin += p->part)
            NAME(enter)(arena + begin / p->part * p->arena + p->input, inputs + (i * p->samples + begin) * p->input_numbers,
                        p->samples - begin, p->input_numbers, p->lanes);
        for (const Step *s = p->steps; s < p->steps + p->count; s++)
            NAME(forward_parts)(p, s, arena, x[i], buffers, real, parts, scratch);
        losses[i] = 0;
        for (long begin = 0; begin < p->samples; begin += p->part) {
            const long place = begin / p->part * p->arena + p->output, left = p->samples - begin;
            const double loss = NAME(cross_entropy)(slopes + place, arena + place, labels + i * p->samples + begin,
                                                    p->classes, left < p->part ? left : p->part, p->samples, p->lanes);
            if (loss < 0)
                return 1;
            losses[i] += loss;
        }
        memset(g, 0, g_row * sizeof(REAL));
        for (const Step *s = p->steps + p->count; s-- > p->steps;)
            NAME(backward_parts)(p, s, arena, slopes, x[i], g, real, parts, scratch);
    }
    return 0;
}
