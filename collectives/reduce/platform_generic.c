/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Architectures without kernels of their own: the portable ones, and the floating-point mode by way
 * of <fenv.h>, whose default environment is to-nearest, with subnormals and without traps.
 */
#include "reduce/reduce_isa.h"

static bool generic_usable(void)
{
    return true;
}

const struct horon_reduce_isa horon_reduce_isas[] = {
    {.name = "generic", .usable = generic_usable, .kernels = &horon_reduce_kernels_generic},
};
const size_t horon_reduce_isas_count = sizeof horon_reduce_isas / sizeof horon_reduce_isas[0];

const struct horon_reduce_kernels *horon_reduce_select(void)
{
    return &horon_reduce_kernels_generic;
}

void horon_reduce_fp_enter(struct horon_reduce_fp *saved)
{
    saved->changed = fegetenv(&saved->env) == 0 && fesetenv(FE_DFL_ENV) == 0;
}

void horon_reduce_fp_leave(const struct horon_reduce_fp *saved)
{
    if (saved->changed)
        fesetenv(&saved->env);
}
