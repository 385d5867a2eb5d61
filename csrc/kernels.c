/* Gradients of small networks.
 *
 * A shared library without dependencies, called by dsgd/gradients/compiled.py; where no compiler builds it, torch's
 * layers serve. Everything is compiled for float and double, and for three kinds of processors: with AVX-512, with
 * AVX2, and for the processors that the compiler builds for by itself, whatever they are. bf16.h adds gradients in bf16
 * for processors with AMX. */

#include <math.h>
#include <string.h>

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
