/* Gradients of small networks.
 *
 * A shared library without dependencies, called by dsgd/gradients/compiled.py; where no compiler builds it, torch's
 * layers serve. Everything is compiled for float and double, and for three kinds of processors: with AVX-512, with
 * AVX2, and for the processors that the compiler builds for by itself, whatever they are. bf16.h adds gradients in bf16
 * for processors with AMX. */

#include <math.h>
#include <string.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "program.h"

#define ERF_POINTS 49 /* 0, 1/8 .. 6, beyond which erf is 1 */

static double erf_at[ERF_POINTS], erf_rate_at[ERF_POINTS]; /* erf and its derivative at these points */

__attribute__((constructor)) static void tabulate_erf(void)
{
    for (int i = 0; i < ERF_POINTS; i++) {
        const double x = i / 8.0;
        erf_at[i] = erf(x);
        erf_rate_at[i] = 1.12837916709551257390 * exp(-x * x); /* 2 / sqrt(pi) */
    }
}

/* Polynomials of degree 6 that come nearest to erf(x) / x in x^2 for x <= 1, and to log(1 - erf(x)) in x for 1 <= x <= 4,
 * relative to erf(x) and 1 - erf(x): to 1.2e-9 of erf and 1.1e-9 of 1. */
static const float near_erf[] = {1.1283791657266664f,   -0.3761262582392162f,    0.11283585145078993f, -0.026853811787478893f,
                                 0.005188327405018303f, -0.0008010191160105483f, 7.853853216655544e-05f};
static const float log_erfc[] = {-0.00035369564961396094f, -1.1270401352562187f,    -0.6382255081970711f,   -0.10303751947488657f,
                                 0.021805392431258327f,    -0.0029396263369206492f, 0.00018557600376167696f};

#define FEW_SAMPLES 32 /* samples, up to which the weights of a linear layer have their gradients by `outer_products` */

#define EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)

/* Return the widest extension of this processor that functions were compiled for: avx512, avx2 or plain. */
const char *extension(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return "avx512";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return "avx2";
#endif
    return "plain";
}

#define LARGE_PAGE ((uintptr_t)1 << 21)

/* Ask the system to back memory by large pages: a convolution goes to and fro between channels, each on pages of its own. */
static void prefer_large_pages(void *memory, long bytes)
{
#if defined(__linux__)
    const uintptr_t begin = ((uintptr_t)memory + LARGE_PAGE - 1) & ~(LARGE_PAGE - 1);
    const uintptr_t end = ((uintptr_t)memory + bytes) & ~(LARGE_PAGE - 1);
    if (begin < end)
        madvise((void *)begin, end - begin, MADV_HUGEPAGE); /* a wish, which may be refused */
#else
    (void)memory, (void)bytes;
#endif
}

/* Of a function in which a product is rounded before it is added. */
#if defined(__GNUC__) && !defined(__clang__)
#define ROUNDED __attribute__((optimize("fp-contract=off")))
#else
#pragma STDC FP_CONTRACT OFF
#define ROUNDED
#endif
#define FUSED(a, b, c) ((REAL)(sizeof(REAL) == 8 ? fma(a, b, c) : fmaf(a, b, c)))

/* Activations are kept as they are computed with, but for bf16 below. */
#define STORED REAL
#define LOAD(x, k) ((x)[k])
#define STORE(y, k, value) ((y)[k] = (value))
#define WIDENED(number) (number)
#define NARROWED(number) (number)
#define MIXED 0

#if defined(__x86_64__)

#define TARGET __attribute__((target("avx512f,avx512dq,avx512vl,fma")))
#define BLOCK 4
#define TILES 6

#define REAL float
#define LANES 16
#define NAME(function) function##_float_avx512
#include "layers.h"
#include "winograd.h"
#include "functions.h"
#include "sequence.h"
#include "gradient.h"
#include "optimizer.h"
#undef REAL
#undef LANES
#undef NAME

#define REAL double
#define LANES 8
#define NAME(function) function##_double_avx512
#include "layers.h"
#include "winograd.h"
#include "functions.h"
#include "sequence.h"
#include "gradient.h"
#include "optimizer.h"
#undef REAL
#undef LANES
#undef NAME

#undef TARGET
#undef BLOCK
#undef TILES

#define TARGET __attribute__((target("avx2,fma")))
#define BLOCK 2
#define TILES 2

#define REAL float
#define LANES 8
#define NAME(function) function##_float_avx2
#include "layers.h"
#include "winograd.h"
#include "functions.h"
#include "sequence.h"
#include "gradient.h"
#include "optimizer.h"
#undef REAL
#undef LANES
#undef NAME

#define REAL double
#define LANES 4
#define NAME(function) function##_double_avx2
#include "layers.h"
#include "winograd.h"
#include "functions.h"
#include "sequence.h"
#include "gradient.h"
#include "optimizer.h"
#undef REAL
#undef LANES
#undef NAME

#undef TARGET
#undef BLOCK
#undef TILES

#endif

#define TARGET
#define BLOCK 2
#define TILES 2

#define REAL float
#define LANES 8
#define NAME(function) function##_float_plain
#include "layers.h"
#include "winograd.h"
#include "functions.h"
#include "sequence.h"
#include "gradient.h"
#include "optimizer.h"
#undef REAL
#undef LANES
#undef NAME

#define REAL double
#define LANES 4
#define NAME(function) function##_double_plain
#include "layers.h"
#include "winograd.h"
#include "functions.h"
#include "sequence.h"
#include "gradient.h"
#include "optimizer.h"
#undef REAL
#undef LANES
#undef NAME

#if defined(__x86_64__) && defined(__linux__)
#include "bf16.h"
#else

int has_bf16(void)
{
    return 0;
}

#endif
