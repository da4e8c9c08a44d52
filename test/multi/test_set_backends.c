/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Process sets with backends of their own, by real processes without MPI: what the job does not
 * have, or ranks say differently, is refused on all of them. That MPI carries what is left to it is
 * for test/mpi/.
 */
#undef NDEBUG
#include "multi/job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>

#include <cmocka.h>

static horon_status_t add(horon_context_t *ctx, int32_t last, const char *backend, int32_t *id)
{
    const int32_t ranks[] = {0, last};
    horon_process_set_options_t options = HORON_PROCESS_SET_OPTIONS_INIT;
    options.backend = backend;
    return horon_process_set_add_with(ctx, ranks, 2, &options, -1, id);
}

static bool refused(horon_context_t *ctx, horon_status_t status, horon_status_t expected,
                    const char *text)
{
    if (status == expected && strstr(horon_last_error(ctx), text))
        return true;
    fprintf(stderr, "rank %d: status %d: %s\n", horon_rank(ctx), status, horon_last_error(ctx));
    return false;
}

/* @return does the set sum, and say by what? */
static bool sums(horon_context_t *ctx, int32_t set, float expected)
{
    float data = (float)horon_rank(ctx) + 1;
    horon_descriptor_t desc = job_sum("sum", &data, 1, 0);
    desc.process_set = set;
    if (horon_process_set_rank(ctx, set) < 0)
        return !horon_carrier(ctx, &desc);
    if (horon_run(ctx, &desc, -1, NULL, 0) != HORON_OK || data != expected)
        return false;
    const char *by = horon_carrier(ctx, &desc);
    return by && strcmp(by, "native") == 0;
}

/* What is no operation, or one of what this build does not carry. */
static bool carries_nothing_else(horon_context_t *ctx)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    bool none = true;
    for (uint32_t verb = 0; verb <= HORON_VERB_COUNT; verb++) {
        desc.verb = verb;
        const char *by = horon_carrier(ctx, &desc);
        none = none && (verb == HORON_VERB_COUNT ? !by : by && strcmp(by, "native") == 0);
    }
    desc.verb = HORON_ALLREDUCE;
    desc.memory = HORON_MEMORY_CUDA;
    none = none && !horon_carrier(ctx, &desc);
    desc.memory = HORON_MEMORY_HOST;
    desc.dtype = HORON_COMPLEX64; /* has no sum */
    none = none && !horon_carrier(ctx, &desc);
    desc.struct_bytes = 3;
    return none && !horon_carrier(ctx, &desc) && !horon_carrier(NULL, &desc) &&
           !horon_carrier(ctx, NULL);
}

static void ask_for_native_alone(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static const int32_t two[] = {0, 1};
    horon_process_set_options_t options = HORON_PROCESS_SET_OPTIONS_INIT;
    const int rank = horon_rank(ctx);
    int32_t id = -7;
    (void)arg;
    RANK_MUST(refused(ctx, add(ctx, 1, "mpi", &id), HORON_ERR_INVALID,
                      "a process set cannot have the backends \"mpi\": the setting BACKEND gives "
                      "the job native, and"));
    RANK_MUST(refused(ctx, add(ctx, 1, rank == 2 ? "native,native" : NULL, &id), HORON_ERR_INVALID,
                      "backends \"native,native\""));
    RANK_MUST(rank == 2 || strstr(horon_last_error(ctx), "rank 2 ("));
    RANK_MUST(refused(ctx, add(ctx, 1, "", &id), HORON_ERR_INVALID, "backends \"\""));
    options.struct_bytes = 7;
    RANK_MUST(refused(ctx, horon_process_set_add_with(ctx, two, 2, &options, -1, &id),
                      HORON_ERR_INVALID, "options.struct_bytes is 7"));
    RANK_MUST(id == -7);
    RANK_MUST(add(ctx, 1, rank == 1 ? NULL : "native", &id) == HORON_OK); /* which is the same */
    RANK_MUST(sums(ctx, id, 3));
    RANK_MUST(carries_nothing_else(ctx));
    RANK_MUST(horon_process_set_add_with(ctx, &two[1], 1, NULL, -1, &id) == HORON_OK);
    RANK_MUST(sums(ctx, id, 2));
}

static void test_set_backends_that_the_job_does_not_have_are_refused(void **state)
{
    (void)state;
    job_run(3, NULL, ask_for_native_alone, NULL);
}

/* MPI is not begun in these processes, so that all falls to native in the end. */
static void ask_for_two(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const int rank = horon_rank(ctx);
    int32_t id = -7;
    (void)arg;
    RANK_MUST(sums(ctx, 1, 5) && sums(ctx, 2, 6)); /* of the setting */
    RANK_MUST(refused(ctx, add(ctx, 1, rank == 1 ? "mpi" : NULL, &id), HORON_ERR_MISMATCH,
                      ") adds a process set of ranks 0, 1, and rank 1 ("));
    RANK_MUST(strstr(horon_last_error(ctx), ") adds a process set by mpi,native of ranks 0, 1"));
    RANK_MUST(id == -7);
    RANK_MUST(add(ctx, 1, rank == 1 ? "mpi" : "mpi,native", &id) == HORON_OK);
    RANK_MUST(sums(ctx, id, 3));
}

static void test_set_backends_are_the_same_on_all_ranks(void **state)
{
    static const char *const settings[] = {"BACKEND=native,mpi", "PROCESS_SETS=0,3@mpi;1,3@native",
                                           "LOG_LEVEL=error", NULL};
    (void)state;
    job_run(4, settings, ask_for_two, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_set_backends_that_the_job_does_not_have_are_refused),
        cmocka_unit_test(test_set_backends_are_the_same_on_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
