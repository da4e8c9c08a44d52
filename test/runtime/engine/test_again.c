/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that are made again: each is what a new one would be, and what may not be is not. */
#include "engine/again.h"

#include "request_bed.h"

#include <pthread.h>

/* In order it reduces; as a message it goes to rank 0. */
static horon_descriptor_t describe(struct bed *bed, horon_verb_t verb)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = verb;
    desc.flags = horon_verb_rows[verb].paired ? 0 : HORON_IN_ORDER;
    desc.dtype = HORON_FLOAT32;
    desc.src = bed->data;
    desc.dst = bed->data + 4;
    desc.count = SIZE;
    desc.dst_count = 4;
    desc.tag = 7;
    return desc;
}

static void run(struct bed *bed)
{
    struct horon_request *request = bed->request;
    request->nobodys = request->own = true;
    request->output = bed;
    request->output_count = 9;
    atomic_store(&request->released, true);
    atomic_store(&request->state, HORON_REQUEST_ENDED);
}

/* @return the place of one that has run and was released */
static struct horon_request *use(struct bed *bed, const horon_descriptor_t *desc)
{
    struct horon_request *used;
    expect_right(bed, desc);
    run(bed);
    used = bed->request;
    drop(bed);
    return used;
}

static void expect_as_new(struct bed *bed, const horon_descriptor_t *desc)
{
    struct horon_request *fresh = calloc(1, sizeof *fresh), *made = bed->request;
    struct horon_error error = {0};
    const horon_status_t status = horon_request_init(fresh, desc, &bed->team, &bed->names, &error);
    assert_int_equal(made != NULL, status == HORON_OK);
    assert_string_equal(bed->error.text, error.text);
    if (made) {
        assert_memory_equal(&made->op.agreed, &fresh->op.agreed, sizeof fresh->op.agreed);
        assert_memory_equal(&made->part, &fresh->part, sizeof fresh->part);
        assert_memory_equal(&made->said, &fresh->said, sizeof fresh->said);
        assert_int_equal(made->op.hash, fresh->op.hash);
        assert_int_equal(made->op.count, fresh->op.count);
        assert_int_equal(made->message.tag, fresh->message.tag);
        assert_int_equal(made->message.peer, fresh->message.peer);
        assert_int_equal(made->message.state, fresh->message.state);
        assert_int_equal(made->rank, fresh->rank);
        assert_int_equal(made->size, fresh->size);
        assert_int_equal(made->state, fresh->state);
        assert_int_equal(made->refs, fresh->refs);
        assert_int_equal(made->status, fresh->status);
        assert_int_equal(made->output_count, fresh->output_count);
        assert_ptr_equal(made->output, fresh->output);
        assert_ptr_equal(made->callback, fresh->callback);
        assert_ptr_equal(made->team, fresh->team);
        assert_int_equal(made->paired, fresh->paired);
        assert_int_equal(made->in_order, fresh->in_order);
        assert_int_equal(made->is_plain, fresh->is_plain);
        assert_false(made->released || made->nobodys || made->own || made->persistent);
        assert_false(made->linked || made->begun || made->cancel_run || made->is_marked);
    }
    horon_request_deinit(fresh, &bed->names);
    free(fresh->rows_room);
    free(fresh);
}

static void called(void *arg, horon_request_t *request, horon_status_t status)
{
    (void)arg;
    (void)request;
    (void)status;
}

enum { CHANGES = 12 };

/* One thing that may differ from the submission before. */
static void change(struct bed *bed, horon_descriptor_t *desc, int which)
{
    static const uint64_t shape[2] = {SIZE, 1};
    switch (which) {
    case 0:
        desc->src = bed->data + 1;
        break;
    case 1:
        desc->dst = bed->data + 5;
        break;
    case 2:
        desc->src = NULL;
        break;
    case 3:
        desc->dst = NULL;
        break;
    case 4:
        desc->dst = (float *)(uintptr_t)desc->src + 1;
        break; /* they overlap */
    case 5:
        desc->count = 1;
        break;
    case 6:
        desc->tag = 8;
        break;
    case 7:
        desc->root = SIZE - 1;
        break;
    case 8:
        desc->root = RANK;
        break;
    case 9:
        desc->dtype = HORON_UINT8;
        break;
    case 10:
        desc->shape = shape;
        desc->ndim = 2;
        break;
    default:
        desc->callback = called;
        break;
    }
}

static void test_again_is_what_a_new_one_would_be(void **state)
{
    struct bed *bed = *state;
    for (int verb = 0; verb < HORON_VERB_COUNT; verb++) {
        for (int which = 0; which < CHANGES; which++) {
            const horon_descriptor_t before = describe(bed, (horon_verb_t)verb);
            horon_descriptor_t after = before;
            change(bed, &after, which);
            use(bed, &before);
            for (int times = 0; times < 2; times++) {
                create(bed, &after);
                expect_as_new(bed, &after);
                if (bed->request) {
                    run(bed);
                    drop(bed);
                }
            }
        }
    }
}

static void test_again_is_the_same_wherever_its_buffers_lie(void **state)
{
    struct bed *bed = *state;
    horon_descriptor_t desc = describe(bed, HORON_SEND);
    struct horon_request *first = use(bed, &desc);
    assert_ptr_equal(use(bed, &desc), first);
    desc.src = bed->data + 1;
    create(bed, &desc);
    assert_ptr_equal(bed->request, first);
    assert_ptr_equal(first->part.src, bed->data + 1);
    drop(bed);
}

/* Its ranks may have other numbers then. */
static void test_again_looks_at_the_team_anew(void **state)
{
    struct bed *bed = *state;
    const horon_descriptor_t desc = describe(bed, HORON_RECV);
    use(bed, &desc);
    bed->team.view.rank = 0;
    expect_wrong(bed, &desc, HORON_ERR_INVALID, "rank 0 is this rank itself");
    bed->team.view.rank = RANK;
    use(bed, &desc);
    bed->team.view.size = RANK + 1;
    create(bed, &desc);
    expect_as_new(bed, &desc);
    drop(bed);
}

static void test_again_leaves_out_what_has_more_to_forget(void **state)
{
    struct bed *bed = *state;
    horon_descriptor_t desc = describe(bed, HORON_SEND);
    expect_right(bed, &desc);
    struct horon_request *request = bed->request;
    assert_true(horon_request_lasts(request));
    request->persistent = true;
    assert_false(horon_request_lasts(request));
    request->persistent = false;
    request->is_marked = true;
    assert_false(horon_request_lasts(request));
    request->is_marked = false;
    request->status = HORON_ERR_PEER_LOST; /* there was no memory for its text */
    assert_false(horon_request_lasts(request));
    request->status = HORON_OK;
    drop(bed);
    desc = right(bed); /* it has a name */
    expect_right(bed, &desc);
    assert_false(horon_request_lasts(bed->request));
    drop(bed);
    desc = describe(bed, HORON_BARRIER);
    desc.flags = 0; /* it gets a number, and a name of that */
    expect_right(bed, &desc);
    assert_false(horon_request_lasts(bed->request));
    drop(bed);
}

static void test_again_of_several_at_once_is_one(void **state)
{
    struct bed *bed = *state;
    const horon_descriptor_t desc = describe(bed, HORON_SEND);
    struct horon_request *first, *second;
    create(bed, &desc);
    first = bed->request;
    create(bed, &desc);
    second = bed->request;
    assert_ptr_not_equal(first, second);
    drop(bed);
    horon_request_destroy(&bed->pool, first, &bed->names);
    create(bed, &desc);
    assert_ptr_equal(bed->request, second);
    drop(bed);
}

enum { THREADS = 4, TIMES = 2000 };

struct user {
    struct bed *bed;
    uint64_t tag;
    bool well;
};

/* No other thread may see a request before it is given back. */
static void *make_many(void *arg)
{
    struct user *user = arg;
    struct bed *bed = user->bed;
    horon_descriptor_t desc = describe(bed, HORON_SEND);
    struct horon_error error = {0};
    user->well = true;
    for (int i = 0; i < TIMES && user->well; i++) {
        struct horon_request *request = NULL;
        desc.tag = user->tag + (uint64_t)(i & 1);
        user->well = horon_request_create(&bed->pool, &desc, &bed->team, &bed->names, &request,
                                          &error) == HORON_OK &&
                     !request->linked && request->message.tag == desc.tag;
        if (!user->well)
            break;
        request->linked = true;
        user->well = request->message.tag == desc.tag;
        request->linked = false;
        horon_request_destroy(&bed->pool, request, &bed->names);
    }
    return NULL;
}

static void test_again_of_many_threads_is_each_ones_own(void **state)
{
    struct bed *bed = *state;
    struct user users[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        users[i] = (struct user){.bed = bed, .tag = (uint64_t)i};
        assert_int_equal(pthread_create(&threads[i], NULL, make_many, &users[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_true(users[i].well);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_again_is_what_a_new_one_would_be),
        TEST(test_again_is_the_same_wherever_its_buffers_lie),
        TEST(test_again_looks_at_the_team_anew),
        TEST(test_again_leaves_out_what_has_more_to_forget),
        TEST(test_again_of_several_at_once_is_one),
        TEST(test_again_of_many_threads_is_each_ones_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
