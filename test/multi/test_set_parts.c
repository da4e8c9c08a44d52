/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a thread submits to a process set while another one removes it: once ranks have told each
 * other what of the set they have begun, nothing begins any more, or one would open with others
 * what these have dropped. The library's own call that reads what all have said comes here: this
 * program is linked so, and each rank submits then, as that other thread might.
 */
#undef NDEBUG
#include "multi/job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { BARRIERS = 20 };

/* Of a rank. */
static struct {
    horon_context_t *ctx;
    int32_t set;
    const char *name; /* NULL: in order */
    float data;
    horon_request_t *request;
    horon_status_t status; /* of the first call that failed */
} late;

uint8_t __real_horon_proposals_said(const void *bytes, size_t byte_count);
uint8_t __wrap_horon_proposals_said(const void *bytes, size_t byte_count);

/* A turn of theirs would begin anything else, too. Of all ranks. */
static horon_status_t meet_often(horon_context_t *ctx)
{
    horon_status_t status = HORON_OK;
    horon_descriptor_t barrier = HORON_DESCRIPTOR_INIT;
    barrier.verb = HORON_BARRIER;
    for (int i = 0; i < BARRIERS && status == HORON_OK; i++)
        status = horon_run(ctx, &barrier, -1, NULL, 0);
    return status;
}

uint8_t __wrap_horon_proposals_said(const void *bytes, size_t byte_count)
{
    horon_descriptor_t desc =
        job_sum(late.name, &late.data, 1, late.name ? 0 : (uint32_t)HORON_IN_ORDER);
    desc.process_set = late.set;
    assert_null(late.request); /* they say it once */
    if (horon_process_set_rank(late.ctx, late.set) >= 0) {
        late.status = horon_submit(late.ctx, &desc, &late.request);
        if (late.status == HORON_OK)
            late.status = meet_often(late.ctx);
    }
    return __real_horon_proposals_said(bytes, byte_count);
}

static void submit_when_all_have_said(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static const int32_t ranks[] = {0, 1};
    late.ctx = ctx;
    late.name = arg;
    late.data = 7;
    RANK_MUST(horon_process_set_add(ctx, ranks, 2, -1, &late.set) == HORON_OK);
    RANK_MUST(horon_process_set_remove(ctx, late.set, -1) == HORON_OK);
    if (horon_rank(ctx) == 2) { /* outside */
        RANK_MUST(meet_often(ctx) == HORON_OK);
        return;
    }
    RANK_MUST(late.status == HORON_OK);
    RANK_MUST(late.request);
    RANK_MUST(horon_wait(late.request, HORON_HOST_DONE, -1) == HORON_ERR_CLOSED);
    RANK_MUST(late.data == 7);
    horon_release(late.request);
}

static void test_set_parts_and_nothing_begins_any_more_in_order(void **state)
{
    (void)state;
    job_run(3, NULL, submit_when_all_have_said, NULL);
}

static void test_set_parts_and_nothing_begins_any_more_by_name(void **state)
{
    static char name[] = "late";
    (void)state;
    job_run(3, NULL, submit_when_all_have_said, name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_set_parts_and_nothing_begins_any_more_in_order),
        cmocka_unit_test(test_set_parts_and_nothing_begins_any_more_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
