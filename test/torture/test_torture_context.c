/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ABI when memory ends: the nth allocation fails, of one context alone or of several that
 * joined in this process, a thread a rank. The call that it hits says so, with a text; what had to
 * be undone is undone; the same call again goes well, or the job has failed on every rank. Nobody
 * waits for ever, nothing is left, and the next context works.
 */
#undef NDEBUG
#include "../runtime/boot/boots.h"
#include "alloc_failing.h"
#include "host/note.h"
#include "team_state.h"
#include "teams.h"

#include <horon/horon.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS_MAX = 3, LARGE = 40000, GROUP = 3, NEVER_MS = 60000 };

/* One rank. Its thread may not assert: what goes wrong is told at the end. */
struct member {
    pthread_t thread;
    int rank, size;
    const char *const *settings;
    horon_context_t *ctx;
    bool over;         /* the job has failed, or there is none */
    long until_joined; /* allocations of all ranks until this one had joined */
    int first[LARGE], second[GROUP][100];
    char text[HORON_ERROR_TEXT_BYTES];
    char complaint[HORON_ERROR_TEXT_BYTES + 128];
};

static void complain(struct member *self, const char *what, horon_status_t status, const char *text)
{
    if (!self->complaint[0])
        snprintf(self->complaint, sizeof self->complaint, "%s: status %d: %s", what, status, text);
}

/* A failure must be one that a lack of memory explains, here or elsewhere, and must say so. */
static void expect_told(struct member *self, const char *what, horon_status_t status,
                        const char *text)
{
    bool known =
        status == HORON_ERR_MEMORY || status == HORON_ERR_PEER_LOST || status == HORON_ERR_CLOSED;
    if (!known || !text[0])
        complain(self, what, status, text);
}

/* Memory is back. @return go on, and try once more? */
static bool once_more(struct member *self, const char *what, horon_status_t status,
                      const char *text, int tried)
{
    alloc_fail_at(0, 0);
    expect_told(self, what, status, text);
    self->over = tried > 0 || status != HORON_ERR_MEMORY;
    return !self->over;
}

static horon_descriptor_t describe(horon_verb_t verb, const char *name, int *data, uint64_t count)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = verb;
    desc.name = name;
    desc.flags = name ? 0 : HORON_IN_ORDER;
    desc.dtype = HORON_INT32;
    desc.count = count;
    desc.src = data;
    desc.dst = verb == HORON_ALLGATHER ? NULL : data;
    return desc;
}

static void create(struct member *self)
{
    horon_options_t options = HORON_OPTIONS_INIT;
    options.rank = self->rank;
    options.size = self->size;
    options.settings = self->settings;
    horon_status_t status =
        horon_context_create(&options, &self->ctx, self->text, sizeof self->text);
    self->over = status != HORON_OK;
    if (status != HORON_OK && (!self->text[0] || self->ctx))
        complain(self, "create", status, self->text);
}

static void run(struct member *self, horon_verb_t verb, const char *name, uint64_t count)
{
    horon_descriptor_t desc = describe(verb, name, self->first, count);
    for (int tried = 0; !self->over; tried++) {
        horon_status_t status =
            horon_run(self->ctx, &desc, NEVER_MS, self->text, sizeof self->text);
        if (status == HORON_OK || !once_more(self, "run", status, self->text, tried))
            return;
    }
}

/* Ended well, or once more, or the job is over. */
static bool waited_well(struct member *self, horon_request_t *request, int tried)
{
    horon_status_t status = horon_wait(request, HORON_HOST_DONE, NEVER_MS);
    return status == HORON_OK ||
           !once_more(self, "wait", status, horon_request_error(request), tried);
}

/* The output is the request's: its size is known only when the others have come. */
static void gather(struct member *self)
{
    horon_descriptor_t desc = describe(HORON_ALLGATHER, "rows", self->first, LARGE / 4);
    bool well = false;
    for (int tried = 0; !self->over && !well; tried++) {
        horon_request_t *request;
        uint64_t count = 0;
        void *output = NULL;
        horon_status_t status = horon_submit(self->ctx, &desc, &request);
        if (status != HORON_OK) {
            once_more(self, "submit", status, horon_last_error(self->ctx), tried);
            continue;
        }
        status = horon_wait(request, HORON_HOST_DONE, NEVER_MS);
        if (status == HORON_ERR_MEMORY && strstr(horon_request_error(request), "output")) {
            alloc_fail_at(0, 0); /* of this rank alone: the others have it, and go on */
            horon_release(request);
            return;
        }
        well = waited_well(self, request, tried);
        if (well && !self->over &&
            (horon_request_output(request, &output, &count, NULL) != HORON_OK || !output ||
             count != (uint64_t)LARGE / 4 * (uint64_t)self->size))
            complain(self, "output", HORON_OK, "not what was gathered");
        horon_release(request);
    }
}

/* All of it or nothing. */
static void group(struct member *self)
{
    static const char *const names[GROUP] = {"a", "b", "c"};
    horon_descriptor_t descs[GROUP];
    horon_request_t *requests[GROUP];
    bool well = false;
    for (int i = 0; i < GROUP; i++)
        descs[i] = describe(HORON_ALLREDUCE, names[i], self->second[i], 100);
    for (int tried = 0; !self->over && !well; tried++) {
        horon_status_t status = horon_submit_group(self->ctx, descs, GROUP, requests);
        if (status != HORON_OK) {
            once_more(self, "group", status, horon_last_error(self->ctx), tried);
            continue;
        }
        status = horon_wait_all(requests, GROUP, HORON_HOST_DONE, NEVER_MS);
        well = status == HORON_OK;
        for (int i = 0; i < GROUP && !well; i++) {
            horon_status_t one = horon_test(requests[i], HORON_HOST_DONE);
            if (one == HORON_OK)
                complain(self, "group", status, "one of it ended well, one did not");
            if (one == HORON_ERR_CANCELLED)
                continue; /* withdrawn, as another of the group could not be had */
            once_more(self, "group", one, horon_request_error(requests[i]), tried);
        }
        for (int i = 0; i < GROUP; i++)
            horon_release(requests[i]);
    }
}

static void prepared(struct member *self, const char *name)
{
    horon_descriptor_t desc = describe(HORON_ALLREDUCE, name, self->first, 100);
    horon_request_t *request = NULL;
    for (int tried = 0; !self->over && !request; tried++) {
        horon_status_t status = horon_prepare(self->ctx, &desc, &request);
        if (status != HORON_OK)
            once_more(self, "prepare", status, horon_last_error(self->ctx), tried);
    }
    for (int rounds = 0; rounds < 2; rounds++) {
        bool well = false;
        for (int tried = 0; !self->over && !well; tried++) {
            horon_status_t status = horon_start(request);
            if (status != HORON_OK)
                once_more(self, "start", status, horon_last_error(self->ctx), tried);
            else
                well = waited_well(self, request, tried);
        }
    }
    horon_release(request);
}

/* If its thread finds no memory later, it ends, and nothing else does. */
static void draw(struct member *self)
{
    for (int tried = 0; !self->over; tried++) {
        const horon_status_t status = horon_timeline_start(self->ctx, "/dev/null", 1);
        if (status == HORON_OK ||
            !once_more(self, "timeline", status, horon_last_error(self->ctx), tried))
            return;
    }
}

/* The set may fail for good, alone: its members remove it all the same. */
static void run_in_set(struct member *self, int32_t set, const char *name)
{
    horon_descriptor_t desc = describe(HORON_ALLREDUCE, name, self->first, LARGE);
    desc.process_set = set;
    for (int tried = 0; tried < 2; tried++) {
        const horon_status_t status =
            horon_run(self->ctx, &desc, NEVER_MS, self->text, sizeof self->text);
        if (status == HORON_OK)
            return;
        alloc_fail_at(0, 0);
        expect_told(self, "run in a set", status, self->text);
    }
}

/* Of the first rank and the last; all fail alike, or the one that failed comes again. */
static void change_sets(struct member *self)
{
    const int32_t ranks[] = {0, self->size - 1};
    int32_t set = -1;
    bool removed = false;
    if (self->size == 1) /* where there is no other set than the job */
        return;
    for (int tried = 0; !self->over && set < 0; tried++) {
        const horon_status_t status =
            horon_process_set_add(self->ctx, ranks, self->size > 2 ? 2 : 1, NEVER_MS, &set);
        if (status != HORON_OK)
            once_more(self, "add a set", status, horon_last_error(self->ctx), tried);
    }
    if (set >= 0 && horon_process_set_rank(self->ctx, set) >= 0) {
        run_in_set(self, set, "in a set");
        run_in_set(self, set, NULL);
    }
    for (int tried = 0; !self->over && !removed; tried++) {
        const horon_status_t status = horon_process_set_remove(self->ctx, set, NEVER_MS);
        removed = status == HORON_OK;
        if (!removed)
            once_more(self, "remove a set", status, horon_last_error(self->ctx), tried);
    }
    if (removed && horon_process_set_size(self->ctx, set) != -1)
        complain(self, "remove a set", HORON_OK, "it is still there");
}

static void everything(struct member *self)
{
    draw(self);
    run(self, HORON_ALLREDUCE, NULL, 5);
    run(self, HORON_ALLREDUCE, "sum", LARGE);
    run(self, HORON_BROADCAST, "weights", LARGE);
    gather(self);
    group(self);
    prepared(self, "prepared");
    prepared(self, NULL);
    change_sets(self);
    run(self, HORON_BARRIER, "end", 0);
}

static void leave(struct member *self)
{
    horon_context_destroy(self->ctx);
    self->ctx = NULL;
}

/* ---- alone ---------------------------------------------------------------------------------- */

static void test_torture_context_alone_tells_and_goes_on(void **state)
{
    static struct member self;
    static const char *const settings[] = {"LOG_LEVEL=error", NULL};
    const int fds = count_fds();
    bool failed = true;
    long n;
    (void)state;
    for (n = 1; failed; n++) {
        const long live = alloc_live(), failures = alloc_failures();
        memset(&self, 0, sizeof self);
        self.size = 1;
        self.settings = settings;
        alloc_fail_at(n, 0);
        create(&self);
        if (self.over) {
            assert_non_null(strstr(self.text, "memory"));
            alloc_fail_at(0, 0);
            create(&self);
            assert_false(self.over);
            everything(&self);
            assert_false(self.over);
        } else {
            everything(&self);
        }
        leave(&self);
        failed = alloc_failures() > failures;
        assert_true(failed || !self.over);
        alloc_fail_at(0, 0);
        if (self.complaint[0])
            fail_msg("allocation %ld: %s", n, self.complaint);
        assert_int_equal(alloc_live(), live);
        assert_int_equal(count_fds(), fds);
        assert_true(n < 1000);
    }
    assert_true(n > 100); /* it has come to all of it */
}

/* A team that cannot be made leaves nothing, and takes no descriptor of somebody else's with it. */
static void test_torture_context_makes_a_team_or_leaves_nothing(void **state)
{
    static const char *const settings[] = {"LOG_LEVEL=error", NULL};
    struct member self = {.size = 1, .settings = settings};
    uint32_t id = 1;
    bool failed = true;
    (void)state;
    create(&self);
    assert_false(self.over);
    for (long n = 1; failed; n++, id++) {
        static const int alone[] = {0};
        struct horon_context_team *team;
        struct horon_error error = {0};
        const long live = alloc_live();
        const int fds = count_fds();
        alloc_fail_at(n, 0);
        horon_status_t status = horon_context_add_team(self.ctx, id, alone, 1, NULL, &team, &error);
        failed = status != HORON_OK;
        alloc_fail_at(0, 0);
        if (failed)
            expect_told(&self, "add", status, error.text);
        else
            horon_context_remove_team(team);
        assert_int_equal(alloc_live(), live);
        assert_int_equal(count_fds(), fds);
        assert_true(n < 1000);
    }
    assert_string_equal(self.complaint, "");
    assert_true(id > 20); /* it has come to all of it */
    leave(&self);
}

/* ---- several, a thread a rank --------------------------------------------------------------- */

struct job {
    struct member members[RANKS_MAX];
    struct place place;
    const char *settings[8];
    pthread_barrier_t joined;
    long at; /* fails this allocation once all have joined; 0: none */
};
static struct job job;
static void (*work)(struct member *self) = everything; /* of each */
static const char *first_sets; /* PROCESS_SETS, which are made with the context; NULL: none */

static void *live_in(void *arg)
{
    struct member *self = arg;
    create(self);
    self->until_joined = alloc_count();
    if (job.at > 0) { /* it begins to fail when all are here */
        pthread_barrier_wait(&job.joined);
        if (self->rank == 0)
            alloc_fail_at(job.at, 0);
        pthread_barrier_wait(&job.joined);
    }
    work(self);
    leave(self);
    return NULL;
}

/* @param at  an allocation after joining, or 0 */
static void live(int size, const char *shared, const char *start_timeout, long at)
{
    memset(&job, 0, sizeof job);
    job.at = at;
    place_file(&job.place);
    job.settings[0] = job.place.setting;
    job.settings[1] = "JOB_KEY=a key for this test alone";
    job.settings[2] = "LOG_LEVEL=error";
    job.settings[3] = shared;
    job.settings[4] = start_timeout;
    job.settings[5] = first_sets;
    pthread_barrier_init(&job.joined, NULL, (unsigned)size);
    for (int rank = 0; rank < size; rank++) {
        struct member *self = &job.members[rank];
        self->rank = rank;
        self->size = size;
        self->settings = job.settings;
        assert_int_equal(pthread_create(&self->thread, NULL, live_in, self), 0);
    }
    for (int rank = 0; rank < size; rank++)
        pthread_join(job.members[rank].thread, NULL);
    pthread_barrier_destroy(&job.joined);
    alloc_fail_at(0, 0);
    place_end(&job.place);
}

static void expect_nothing_left(long live_before, int fds_before, const char *what, long n)
{
    for (int rank = 0; rank < RANKS_MAX; rank++)
        if (job.members[rank].complaint[0])
            fail_msg("%s, allocation %ld, rank %d: %s", what, n, rank, job.members[rank].complaint);
    if (alloc_live() != live_before)
        fail_msg("%s, allocation %ld: %ld are left", what, n, alloc_live() - live_before);
    assert_int_equal(count_fds(), fds_before);
}

/* Each n takes a job of its own: the full suite takes all, the short one a few of each phase. */
static long stride(long usual)
{
    return getenv("HORON_TEST_FULL") ? 1 : usual;
}

static void torture_joined(int size, const char *shared, long step)
{
    const long before = alloc_live();
    const int fds = count_fds();
    long n = 1;
    for (bool failed = true; failed; n += stride(step)) {
        const long failures = alloc_failures();
        live(size, shared, "START_TIMEOUT=60s", n);
        failed = alloc_failures() > failures;
        expect_nothing_left(before, fds, shared, n);
        for (int rank = 0; rank < size && !failed; rank++)
            assert_false(job.members[rank].over);
    }
    assert_true(n > 100);
}

static void test_torture_context_joined_by_memory_names_or_goes_on(void **state)
{
    (void)state;
    torture_joined(3, "SHM=1", 11);
}

static void test_torture_context_joined_by_sockets_names_or_goes_on(void **state)
{
    (void)state;
    torture_joined(2, "SHM=0", 11);
}

/* Memory of a team comes to rank 1 before it makes the team, and it cannot even note that. */
static void lose_early_memory(struct member *self)
{
    horon_descriptor_t desc = describe(HORON_BARRIER, "end", self->first, 0);
    if (self->rank == 1) {
        struct horon_note note = {.team = 1, .local_rank = HORON_NOTE_SEGMENT, .lack = "none"};
        horon_token_take(self->ctx);
        alloc_fail_at(1, 0);
        horon_teams_take_note(self->ctx, 0, &note);
        horon_token_release(self->ctx);
    }
    pthread_barrier_wait(&job.joined); /* rank 0 allocates nothing meanwhile */
    const horon_status_t status =
        horon_run(self->ctx, &desc, NEVER_MS, self->text, sizeof self->text);
    if (status != HORON_ERR_MEMORY || !strstr(self->text, "memory of team 1 from rank 0 ("))
        complain(self, "run", status, self->text);
}

static void test_torture_context_memory_that_cannot_be_noted_fails_the_job(void **state)
{
    const long before = alloc_live(), failures = alloc_failures();
    const int fds = count_fds();
    (void)state;
    work = lose_early_memory;
    live(2, "SHM=1", "START_TIMEOUT=60s", 0);
    work = everything;
    assert_int_equal(alloc_failures(), failures + 1);
    expect_nothing_left(before, fds, "a note", 1);
}

/* A change of process sets that no rank makes again: all hear why it cannot be. */
static void change_sets_once(struct member *self)
{
    const int32_t ranks[] = {0, 1};
    int32_t set = -1;
    horon_status_t status = horon_process_set_add(self->ctx, ranks, 2, NEVER_MS, &set);
    if (status == HORON_OK)
        status = horon_process_set_remove(self->ctx, set, NEVER_MS);
    self->over = status != HORON_OK;
    if (!self->over)
        return;
    expect_told(self, "change sets", status, horon_last_error(self->ctx));
    if (!strstr(horon_last_error(self->ctx), "memory"))
        complain(self, "change sets", status, horon_last_error(self->ctx));
}

static void test_torture_context_changes_of_sets_fail_for_all_or_none(void **state)
{
    const long before = alloc_live();
    const int fds = count_fds();
    long n = 1;
    (void)state;
    work = change_sets_once;
    for (bool failed = true; failed; n += stride(2)) {
        const long failures = alloc_failures();
        live(3, "SHM=1", "START_TIMEOUT=60s", n);
        failed = alloc_failures() > failures;
        expect_nothing_left(before, fds, "change sets", n);
        for (int rank = 1; rank < 3; rank++)
            assert_int_equal(job.members[rank].over, job.members[0].over);
        assert_true(failed || !job.members[0].over);
    }
    work = everything;
    assert_true(n > 20);
}

/* What a rank allocates last, when it has joined and the others may have begun to work: a rank
 * that fails here must not leave them waiting. */
static void torture_birth(int size, const char *shared, long step)
{
    enum { LAST = 220 };
    const long before = alloc_live();
    const int fds = count_fds();
    alloc_fail_at(0, 0);
    live(size, shared, "START_TIMEOUT=60s", 0);
    long most = 0;
    for (int rank = 0; rank < size; rank++)
        most = job.members[rank].until_joined > most ? job.members[rank].until_joined : most;
    assert_true(most > LAST);
    for (long back = 0; back < LAST; back += stride(step)) {
        alloc_fail_at(most - back, 0);
        live(size, shared, "START_TIMEOUT=1s", 0);
        expect_nothing_left(before, fds, shared, most - back);
    }
}

static void test_torture_context_born_without_memory_keeps_nobody_waiting(void **state)
{
    (void)state;
    torture_birth(2, "SHM=1", 11);
    torture_birth(3, "SHM=0", 11);
    first_sets = "PROCESS_SETS=0,1";
    torture_birth(2, "SHM=1", 1);
    first_sets = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torture_context_alone_tells_and_goes_on),
        cmocka_unit_test(test_torture_context_makes_a_team_or_leaves_nothing),
        cmocka_unit_test(test_torture_context_joined_by_memory_names_or_goes_on),
        cmocka_unit_test(test_torture_context_joined_by_sockets_names_or_goes_on),
        cmocka_unit_test(test_torture_context_memory_that_cannot_be_noted_fails_the_job),
        cmocka_unit_test(test_torture_context_changes_of_sets_fail_for_all_or_none),
        cmocka_unit_test(test_torture_context_born_without_memory_keeps_nobody_waiting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
