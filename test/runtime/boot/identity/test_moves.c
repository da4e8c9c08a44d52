/* SPDX-License-Identifier: Apache-2.0 */
/* Whether MPI writes to memory without a call, as far as variables say so. */
#undef NDEBUG
#include "boot/identity/identity.h"
#include "environments.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_moves_any_variable_but_with_a_no_counts(void **state)
{
    static const struct {
        const char *variables[3];
        bool moves;
    } cases[] = {
        {{NULL}, false},
        {{"MPICH_ASYNC_PROGRESS=1"}, true},
        {{"MPICH_ASYNC_PROGRESS=YES"}, true},
        {{"MPICH_ASYNC_PROGRESS=on"}, true},
        {{"MPICH_ASYNC_PROGRESS="}, false},
        {{"MPICH_ASYNC_PROGRESS=0"}, false},
        {{"MPICH_ASYNC_PROGRESS=FALSE"}, false},
        {{"MPICH_ASYNC_PROGRESS=no", "MPIR_PARAM_ASYNC_PROGRESS=1"}, true},
        {{"MPICH_ASYNC_PROGRESS=1", "MPIR_CVAR_ASYNC_PROGRESS=off"}, true}, /* for all we know */
        {{"MPIR_CVAR_ASYNC_PROGRESS=true"}, true},
        {{"I_MPI_ASYNC_PROGRESS=enable"}, true},
        {{"I_MPI_ASYNC_PROGRESS=disable"}, false},
        {{"I_MPI_ASYNC_PROGRESS_THREADS=2"}, false}, /* of none */
        {{"MPICH_NEMESIS_ASYNC_PROGRESS=MC"}, true},
        {{"OMPI_MCA_btl_tcp_progress_thread=1"}, true},
        {{"OMPI_MCA_btl_tcp_progress_thread=0"}, false},
        {{"UCX_RNDV_SCHEME=put_zcopy"}, true},
        {{"UCX_RNDV_SCHEME=put_ppln"}, true},
        {{"UCX_RNDV_SCHEME=get_zcopy"}, false},
        {{"UCX_RNDV_SCHEME=auto"}, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        environment = cases[i].variables;
        print_message("row %zu\n", i);
        assert_int_equal(horon_identity_mpi_moves(find), cases[i].moves);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moves_any_variable_but_with_a_no_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
