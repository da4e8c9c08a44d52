/* SPDX-License-Identifier: Apache-2.0 */
/*
 * x86-64: which kernels the CPU can run, and its floating-point mode. platform_generic.c is the
 * same for other architectures; the build picks one.
 *
 * The CPU is asked anew by every call: the answer is a word that libgcc read from CPUID at start,
 * so there is nothing to keep. Every CPU with AVX2 has F16C, which not every compiler can ask for,
 * and knows PREFETCHW or passes over it. The operating system's consent to wide registers is part
 * of the answer.
 */
#include "reduce/reduce_isa.h"

#include <xmmintrin.h>

enum {
    MXCSR_OURS =
        0x1f80, /* round to nearest, no flush to zero, subnormals count, all traps masked */
    MXCSR_FLAGS = 0x003f /* sticky exception flags: the caller's, and of no effect */
};

static bool generic_usable(void)
{
    return true;
}

static bool avx2_usable(void)
{
    return __builtin_cpu_supports("avx2") != 0;
}

static bool avx512_usable(void)
{
    return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
           __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
}

const struct horon_reduce_isa horon_reduce_isas[] = {
    {.name = "avx512", .usable = avx512_usable, .kernels = &horon_reduce_kernels_avx512},
    {.name = "avx2", .usable = avx2_usable, .kernels = &horon_reduce_kernels_avx2},
    {.name = "generic", .usable = generic_usable, .kernels = &horon_reduce_kernels_generic},
};
const size_t horon_reduce_isas_count = sizeof horon_reduce_isas / sizeof horon_reduce_isas[0];

const struct horon_reduce_kernels *horon_reduce_select(void)
{
    const struct horon_reduce_isa *isa = horon_reduce_isas;
    while (!isa->usable())
        isa++;
    return isa->kernels;
}

void horon_reduce_fp_enter(struct horon_reduce_fp *saved)
{
    saved->word = _mm_getcsr();
    saved->changed = (saved->word & ~(unsigned int)MXCSR_FLAGS) != MXCSR_OURS;
    if (saved->changed)
        _mm_setcsr(MXCSR_OURS);
}

void horon_reduce_fp_leave(const struct horon_reduce_fp *saved)
{
    if (saved->changed)
        _mm_setcsr(saved->word);
}
