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
