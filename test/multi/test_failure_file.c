/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a context writes for its launcher when it fails: the first failure of a context, the last of
 * a process; and nothing of what it does well, or of what its children do.
 */
#undef NDEBUG
#include "multi/duo.h"

#include "context_state.h"
#include "host/failure_file.h"
#include "host/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct bed {
    struct horon_map map;
    char setting[64], store[64];
    const char *settings[6];
};

static int set_up(void **state)
{
    struct bed *bed = calloc(1, sizeof *bed);
    assert_non_null(bed);
    assert_int_equal(horon_failure_file_make(&bed->map, NULL), HORON_OK);
    snprintf(bed->setting, sizeof bed->setting, "FAILURE_FILE=fd:%d", bed->map.fd);
    snprintf(bed->store, sizeof bed->store, "STORE=file:/tmp/horon-test-XXXXXX");
    assert_non_null(mkdtemp(bed->store + strlen("STORE=file:")));
    const char *const settings[] = {bed->setting, bed->store, "JOB_KEY=a key for this test alone",
                                    "START_TIMEOUT=2s"};
    memcpy(bed->settings, settings, sizeof settings);
    *state = bed;
    return 0;
}

static int tear_down(void **state)
{
    struct bed *bed = *state;
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", bed->store + strlen("STORE=file:"));
    assert_int_equal(system(command), 0);
    horon_fd_close(&bed->map.fd);
    horon_memory_unmap(&bed->map);
    free(bed);
    return 0;
}

static horon_status_t create(const struct bed *bed, int rank, int size, horon_context_t **ctx_out)
{
    horon_options_t options = HORON_OPTIONS_INIT;
    options.rank = rank;
    options.size = size;
    options.settings = bed->settings;
    return horon_context_create(&options, ctx_out, NULL, 0);
}

static void expect(const struct bed *bed, int size, horon_status_t status, horon_cause_t cause,
                   int rank)
{
    struct horon_error heard;
    assert_true(horon_failure_file_read(&bed->map, size, &heard));
    assert_int_equal(heard.status, status);
    assert_int_equal(heard.blame.cause, cause);
    assert_int_equal(heard.blame.rank, rank);
    assert_int_equal(heard.blame.other_rank, -1);
}

static void test_failure_file_tells_which_rank_joining_lacked_last(void **state)
{
    const struct bed *bed = *state;
    struct horon_error heard;
    horon_context_t *ctx = NULL;
    assert_int_equal(create(bed, 0, 1, &ctx), HORON_OK);
    horon_context_destroy(ctx);
    assert_false(horon_failure_file_read(&bed->map, 1, &heard));
    assert_int_equal(create(bed, 0, 2, &ctx), HORON_ERR_TIMEOUT);
    expect(bed, 2, HORON_ERR_TIMEOUT, HORON_CAUSE_ABSENT, 1);
    assert_int_equal(create(bed, 0, 1, &ctx), HORON_OK);
    horon_context_destroy(ctx); /* clears nothing */
    expect(bed, 2, HORON_ERR_TIMEOUT, HORON_CAUSE_ABSENT, 1);
    assert_int_equal(create(bed, 1, 2, &ctx), HORON_ERR_TIMEOUT);
    expect(bed, 2, HORON_ERR_TIMEOUT, HORON_CAUSE_ABSENT, 0);
}

static void test_failure_file_tells_which_rank_made_the_job_fail(void **state)
{
    const struct bed *bed = *state;
    const char *const settings[] = {bed->setting, NULL};
    struct horon_error heard;
    struct duo duo;
    float data = 1;
    duo_make(&duo, settings);
    duo.ctx[1]->config.failure_file[0] = 0; /* as if it were another process */
    horon_request_t *request = duo_submit(duo.ctx[0], "alone", &data);
    assert_false(horon_failure_file_read(&bed->map, 2, &heard));
    horon_context_destroy(duo.ctx[1]);
    duo.ctx[1] = NULL;
    duo_expect_end(request, HORON_ERR_CLOSED);
    expect(bed, 2, HORON_ERR_CLOSED, HORON_CAUSE_LEFT, 1);
    duo_end(&duo);
    expect(bed, 2, HORON_ERR_CLOSED, HORON_CAUSE_LEFT, 1);
}

/* A child of a rank is not the rank; it could tell a failure that is only its own. */
static void test_failure_file_is_not_a_childs(void **state)
{
    const struct bed *bed = *state;
    struct horon_error heard;
    horon_context_t *ctx = NULL;
    int status;
    assert_int_equal(create(bed, 0, 1, &ctx), HORON_OK);
    const pid_t child = fork();
    if (child == 0) {
        horon_context_t *other = NULL;
        _exit(create(bed, 0, 2, &other) != HORON_ERR_TIMEOUT);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_false(horon_failure_file_read(&bed->map, 2, &heard));
    horon_context_destroy(ctx);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_failure_file_tells_which_rank_joining_lacked_last),
        CASE(test_failure_file_tells_which_rank_made_the_job_fail),
        CASE(test_failure_file_is_not_a_childs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
