/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors: what is refused and with which words, and what ranks agree on.
 */
#include "request_bed.h"

#include "alloc.h"

static void test_request_of_a_right_descriptor_is_made(void **state)
{
    struct bed *bed = *state;
    horon_descriptor_t desc = right(bed);
    expect_right(bed, &desc);
    assert_int_equal(bed->request->op.count, 8);
    assert_string_equal(bed->request->op.name, "x");
    assert_string_equal(bed->request->name->text, "x");
    assert_false(bed->request->in_order);
    drop(bed);
}

static void test_request_numbers_that_mean_nothing_are_refused(void **state)
{
    struct bed *bed = *state;
    horon_descriptor_t desc = right(bed);
    desc.verb = HORON_VERB_COUNT;
    expect_wrong(bed, &desc, HORON_ERR_INVALID, "verb 11 does not exist");
    desc = right(bed);
    desc.dtype = HORON_DTYPE_COUNT;
    expect_wrong(bed, &desc, HORON_ERR_INVALID, "dtype 17 does not exist");
    desc = right(bed);
    desc.redop = HORON_REDOP_COUNT;
    expect_wrong(bed, &desc, HORON_ERR_INVALID, "reduction 8 does not exist");
    for (uint32_t flags = 2; flags; flags *= 2) {
        desc = right(bed);
        desc.flags = flags | HORON_IN_ORDER;
        expect_wrong(bed, &desc, HORON_ERR_INVALID, "flags 0x");
    }
    desc = right(bed);
    desc.reserved = 1;
    expect_wrong(bed, &desc, HORON_ERR_INVALID, "reserved");
    desc = right(bed);
    desc.stream = &desc;
    expect_wrong(bed, &desc, HORON_ERR_UNSUPPORTED, "stream");
    desc = right(bed);
    desc.memory = HORON_MEMORY_COUNT;
    expect_wrong(bed, &desc, HORON_ERR_INVALID, "memory 3 does not exist");
    desc.memory = HORON_MEMORY_CUDA;
    expect_wrong(bed, &desc, HORON_ERR_UNSUPPORTED, "that of a CUDA device");
    desc.memory = HORON_MEMORY_HOST;
    desc.device = 1;
    expect_wrong(bed, &desc, HORON_ERR_INVALID, "host memory lies on none");
    assert_int_equal(create(bed, NULL), HORON_ERR_INVALID);
}

/* Of rank 1 of 3, and of 8 rows: 3, 3, 2. */
static horon_descriptor_t right_share(struct bed *bed, float *out)
{
    horon_descriptor_t desc = right(bed);
    desc.verb = HORON_REDUCESCATTER;
    desc.dst = out;
    desc.dst_count = 3;
    return desc;
}

static void test_request_share_has_room_for_its_rows(void **state)
{
    struct bed *bed = *state;
    float out[3];
    horon_descriptor_t desc = right_share(bed, out);
    expect_right(bed, &desc);
    assert_int_equal(horon_operation_output(&bed->request->op, RANK, SIZE), 3);
    assert_int_equal(horon_operation_output(&bed->request->op, 2, SIZE), 2);
    drop(bed);
    desc.dst_count = 2;
    expect_wrong(bed, &desc, HORON_ERR_INVALID,
                 "dst has room for 2 elements, and this rank's rows have 3");
    desc.dst = NULL;
    expect_wrong(bed, &desc, HORON_ERR_INVALID, "dst is NULL");
    desc.count = 1; /* of which this rank gets nothing */
    expect_right(bed, &desc);
    drop(bed);
    desc = right_share(bed, out);
    desc.shape = (const uint64_t[]){1};
    expect_wrong(bed, &desc, HORON_ERR_INVALID, "a scalar has no rows");
}

static void test_request_share_may_lie_where_its_rows_do(void **state)
{
    struct bed *bed = *state;
    horon_descriptor_t desc = right_share(bed, NULL);
    for (int at = 0; at < 8; at++) {
        desc.dst = bed->data + at;
        if (at == 0 || at == 3) {
            expect_right(bed, &desc);
            drop(bed);
            continue;
        }
        expect_wrong(bed, &desc, HORON_ERR_INVALID, "or dst where this rank's rows lie in src");
    }
}

static void test_request_splits_add_up_to_the_rows(void **state)
{
    static const uint64_t few[] = {3, 2, 2}, wraps[] = {4, UINT64_MAX, 5}, even[] = {3, 3, 2};
    struct bed *bed = *state;
    float out[8];
    uint64_t uneven[] = {1, 7, 0};
    horon_descriptor_t desc = right_share(bed, out);
    expect_right(bed, &desc);
    const uint64_t without = bed->request->op.hash;
    drop(bed);
    desc.splits = few;
    expect_wrong(bed, &desc, HORON_ERR_INVALID, "the splits add up to 7 rows, and src has 8");
    desc.splits = wraps;
    expect_wrong(bed, &desc, HORON_ERR_INVALID, "the splits add up to");
    desc.splits = even;
    expect_right(bed, &desc);
    assert_int_equal(bed->request->op.hash, without);
    assert_null(bed->request->op.splits);
    drop(bed);
    desc.splits = uneven;
    expect_wrong(bed, &desc, HORON_ERR_INVALID, "this rank's rows have 7");
    desc.dst_count = 7;
    expect_right(bed, &desc);
    uneven[1] = 0; /* the caller's again */
    assert_int_equal(bed->request->op.splits[RANK], 7);
    assert_int_not_equal(bed->request->op.hash, without);
    drop(bed);
    desc.verb = HORON_ALLREDUCE; /* which has none */
    expect_right(bed, &desc);
    drop(bed);
}

static void test_request_reduce_has_an_output_on_root_alone(void **state)
{
    struct bed *bed = *state;
    horon_descriptor_t desc = right(bed);
    desc.verb = HORON_REDUCE;
    desc.dst = NULL;
    expect_right(bed, &desc);
    drop(bed);
    desc.dst = bed->data + 1; /* nobody looks at it */
    expect_right(bed, &desc);
    assert_null(bed->request->part.dst);
    drop(bed);
    desc.root = RANK;
    expect_wrong(bed, &desc, HORON_ERR_INVALID, "src and dst overlap");
    desc.dst = NULL;
    expect_wrong(bed, &desc, HORON_ERR_INVALID, "dst is NULL");
}

static void test_request_message_has_another_rank_and_no_name(void **state)
{
    struct bed *bed = *state;
    char text[128];
    for (int sends = 0; sends < 2; sends++) {
        horon_descriptor_t desc = right(bed);
        desc.verb = sends ? HORON_SEND : HORON_RECV;
        desc.root = 2;
        desc.tag = UINT64_MAX;
        expect_wrong(bed, &desc, HORON_ERR_INVALID, "goes by its tag: name must be NULL");
        desc.name = NULL;
        expect_right(bed, &desc);
        assert_true(bed->request->paired);
        assert_ptr_equal(bed->request->part.dst, sends ? NULL : desc.dst);
        horon_request_describe(bed->request, text, sizeof text);
        assert_string_equal(text, sends
                                      ? "send of 8 float32 to rank 2, tag 18446744073709551615"
                                      : "recv of 8 float32 from rank 2, tag 18446744073709551615");
        drop(bed);
        desc.flags = HORON_IN_ORDER;
        expect_wrong(bed, &desc, HORON_ERR_INVALID, "HORON_IN_ORDER must not be set");
        desc.flags = 0;
        desc.root = RANK;
        expect_wrong(bed, &desc, HORON_ERR_INVALID, "rank 1 is this rank itself");
        desc.root = SIZE;
        expect_wrong(bed, &desc, HORON_ERR_INVALID, "rank 3 is no rank of 0..2");
        desc.root = 0;
        desc.src = sends ? NULL : desc.src; /* the other one is not looked at */
        desc.dst = sends ? desc.dst : NULL;
        expect_wrong(bed, &desc, HORON_ERR_INVALID, sends ? "src is NULL" : "dst is NULL");
        desc.count = 0;
        desc.src = desc.dst = NULL;
        expect_right(bed, &desc);
        drop(bed);
    }
}

static void test_request_root_must_be_a_rank_of_a_broadcast(void **state)
{
    struct bed *bed = *state;
    horon_descriptor_t desc = right(bed);
    desc.verb = HORON_BROADCAST;
    for (desc.root = -1; desc.root <= SIZE; desc.root++) {
        if (desc.root < 0 || desc.root == SIZE) {
            expect_wrong(bed, &desc, HORON_ERR_INVALID, "is no rank of 0..2");
            continue;
        }
        expect_right(bed, &desc);
        drop(bed);
    }
    desc.verb = HORON_ALLREDUCE; /* which has no root */
    desc.root = 77;
    expect_right(bed, &desc);
    drop(bed);
}

static void test_request_reductions_are_those_the_header_marks(void **state)
{
    struct bed *bed = *state;
    for (uint32_t dtype = 0; dtype < HORON_DTYPE_COUNT; dtype++) {
        for (uint32_t redop = 0; redop < HORON_REDOP_COUNT; redop++) {
            horon_descriptor_t desc = right(bed);
            desc.dtype = dtype;
            desc.redop = redop;
            desc.count = 1;
            bool is_float = dtype >= HORON_FLOAT16 && dtype <= HORON_FLOAT64;
            bool reduces = dtype <= HORON_BOOL && (dtype != HORON_BOOL || redop != HORON_AVERAGE) &&
                           (!is_float || redop < HORON_BIT_AND);
            if (reduces) {
                expect_right(bed, &desc);
                drop(bed);
                continue;
            }
            expect_wrong(bed, &desc, HORON_ERR_UNSUPPORTED, horon_dtype_name((horon_dtype_t)dtype));
            desc.verb = HORON_ALLGATHER; /* but it moves */
            desc.dst_count = SIZE;
            expect_right(bed, &desc);
            drop(bed);
        }
    }
}

static void test_request_names_of_unnamed_barriers_are_refused(void **state)
{
    struct bed *bed = *state;
    horon_descriptor_t desc = right(bed);
    desc.name = "horon.barrier.0"; /* would meet the first barrier without a name */
    expect_wrong(bed, &desc, HORON_ERR_INVALID,
                 "names that begin with horon.barrier. are those of barriers without a name");
    desc.verb = HORON_BARRIER;
    expect_wrong(bed, &desc, HORON_ERR_INVALID, "horon.barrier.");
    desc.name = "horon.barrier";
    expect_right(bed, &desc);
    drop(bed);
}

/* Events tell the id of the process set. The engine's team has another number once a set has been
 * removed and a new one has its id. */
static void test_request_name_is_found_by_what_events_tell(void **state)
{
    struct bed *bed = *state;
    char text[8];
    horon_descriptor_t desc = right(bed);
    desc.process_set = 2;
    bed->team.id = 5;
    atomic_store(&bed->team.refs, 1); /* of the engine */
    expect_right(bed, &desc);
    const struct horon_operation *op = &bed->request->op;
    assert_true(
        horon_names_find(&bed->names, (uint32_t)op->agreed.team, op->name_hash, text, sizeof text));
    assert_string_equal(text, "x");
    drop(bed);
}

static void test_request_names_have_1_to_511_bytes(void **state)
{
    struct bed *bed = *state;
    char name[HORON_NAME_BYTES_MAX + 2];
    horon_descriptor_t desc = right(bed);
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = 0;
    desc.name = name;
    expect_wrong(bed, &desc, HORON_ERR_INVALID, "1..511");
    name[HORON_NAME_BYTES_MAX] = 0;
    expect_right(bed, &desc);
    assert_string_equal(bed->request->op.name, name); /* whole */
    char text[4000];
    horon_request_describe(bed->request, text, sizeof text);
    assert_true(strlen(text) < 300); /* but short where it is shown */
    drop(bed);
    desc.name = "";
    expect_wrong(bed, &desc, HORON_ERR_INVALID, "1..511");
    desc.name = NULL;
    expect_wrong(bed, &desc, HORON_ERR_INVALID, "name is NULL");
    desc.flags = HORON_IN_ORDER;
    expect_right(bed, &desc);
    assert_null(bed->request->op.name);
    drop(bed);
    desc.flags = 0;
    desc.verb = HORON_BARRIER;
    expect_right(bed, &desc);
    assert_null(bed->request->name);
    drop(bed);
}

static void test_request_shapes_are_multiplied_and_bounded(void **state)
{
    static const uint64_t shape[] = {2, 3, 4, 1, 1, 1, 1, 5, 9};
    static const struct {
        uint64_t shape[3];
        int32_t ndim;
    } huge[] = {{{(uint64_t)1 << 32, (uint64_t)1 << 32, 1}, 3},
                {{UINT64_MAX, 1, 1}, 1},
                {{(uint64_t)1 << 61, 1, 1}, 1}, /* x 4 bytes: 63 bits and one more */
                {{UINT64_MAX / 4 + 1, 4, 1}, 2}};
    struct bed *bed = *state;
    horon_descriptor_t desc = right(bed);
    desc.shape = shape;
    desc.count = 12345; /* does not count beside a shape */
    for (desc.ndim = 0; desc.ndim <= HORON_NDIM_MAX; desc.ndim++) {
        uint64_t count = 1;
        for (int i = 0; i < desc.ndim; i++)
            count *= shape[i];
        expect_right(bed, &desc);
        assert_int_equal(bed->request->op.count, count);
        assert_int_equal(bed->request->op.agreed.ndim, desc.ndim);
        drop(bed);
    }
    expect_wrong(bed, &desc, HORON_ERR_INVALID, "ndim 9");
    desc.ndim = -1;
    expect_wrong(bed, &desc, HORON_ERR_INVALID, "ndim -1");
    for (size_t i = 0; i < sizeof huge / sizeof huge[0]; i++) {
        desc = right(bed);
        desc.shape = huge[i].shape;
        desc.ndim = huge[i].ndim;
        expect_wrong(bed, &desc, HORON_ERR_INVALID, "too many");
    }
    desc = right(bed);
    desc.count = (uint64_t)1 << 61;
    expect_wrong(bed, &desc, HORON_ERR_INVALID, "too many bytes");
    desc.count = ((uint64_t)1 << 61) - 1;
    expect_right(bed, &desc); /* more than 2^31, and bytes in 63 bits */
    drop(bed);
}

static void test_request_with_a_zero_dimension_is_empty_however_large_the_others(void **state)
{
    static const uint64_t shape[] = {UINT64_MAX, 0, UINT64_MAX};
    struct bed *bed = *state;
    horon_descriptor_t desc = right(bed);
    desc.shape = shape;
    desc.ndim = 3;
    desc.src = desc.dst = NULL; /* of nothing there is no buffer */
    expect_right(bed, &desc);
    assert_int_equal(bed->request->op.count, 0);
    drop(bed);
}

static uint64_t check_of(struct bed *bed, const horon_descriptor_t *desc)
{
    expect_right(bed, desc);
    uint64_t check = bed->request->op.check;
    drop(bed);
    return check;
}

static void test_request_check_differs_where_ranks_must_agree(void **state)
{
    struct bed *bed = *state;
    static const uint64_t flat[] = {8}, square[] = {2, 4}, oblong[] = {4, 2};
    horon_descriptor_t base = right(bed), all[9];
    uint64_t seen[9];
    for (int i = 0; i < 9; i++)
        all[i] = base;
    all[1].name = "y";
    all[2].dtype = HORON_INT32;
    all[3].redop = HORON_MAX;
    all[4].prescale = 0.5;
    all[5].postscale = 2;
    all[6].count = 7;
    all[7].shape = square;
    all[7].ndim = 2;
    all[8].shape = oblong;
    all[8].ndim = 2;
    for (int i = 0; i < 9; i++) {
        seen[i] = check_of(bed, &all[i]);
        for (int k = 0; k < i; k++)
            assert_true(seen[k] != seen[i]);
    }
    all[1] = base;
    all[1].shape = flat; /* the same in other words */
    all[1].ndim = 1;
    assert_true(check_of(bed, &all[1]) == seen[0]);
    all[1] = base;
    all[1].src = all[1].dst = &all;
    all[1].root = 2; /* without meaning for it */
    assert_true(check_of(bed, &all[1]) == seen[0]);
}

static void test_request_check_of_an_allgather_leaves_rows_out(void **state)
{
    struct bed *bed = *state;
    static const uint64_t two[] = {2, 4}, nine[] = {9, 4}, other[] = {2, 5};
    horon_descriptor_t desc = right(bed);
    desc.verb = HORON_ALLGATHER;
    desc.dst = NULL;
    desc.shape = two;
    desc.ndim = 2;
    uint64_t check = check_of(bed, &desc);
    desc.shape = nine;
    assert_true(check_of(bed, &desc) == check);
    desc.shape = other;
    assert_true(check_of(bed, &desc) != check);
    desc.verb = HORON_BARRIER; /* of which only the name counts */
    check = check_of(bed, &desc);
    desc.shape = two;
    desc.dtype = HORON_BOOL;
    assert_true(check_of(bed, &desc) == check);
}

static void test_request_describe_says_verb_and_name(void **state)
{
    struct bed *bed = *state;
    char text[200];
    horon_descriptor_t desc = right(bed);
    expect_right(bed, &desc);
    horon_request_describe(bed->request, text, sizeof text);
    assert_string_equal(text, "allreduce 'x'");
    drop(bed);
    desc.name = "x\n\x1b[31m";
    expect_right(bed, &desc);
    horon_request_describe(bed->request, text, sizeof text);
    assert_string_equal(text, "allreduce 'x\\n\\x1b[31m'");
    drop(bed);
    desc.flags = HORON_IN_ORDER;
    expect_right(bed, &desc);
    horon_request_describe(bed->request, text, sizeof text);
    assert_string_equal(text, "allreduce of 8 float32 (in order)");
    drop(bed);
}

static void test_request_reset_forgets_the_former_run(void **state)
{
    struct bed *bed = *state;
    horon_descriptor_t desc = right(bed);
    expect_right(bed, &desc);
    bed->request->is_marked = true; /* as what leaves one of these does */
    bed->request->error_text = horon_strdup("why");
    bed->request->owned_output = horon_alloc_lines(64);
    bed->request->output_refused = true;
    bed->request->status = HORON_ERR_TIMEOUT;
    horon_request_reset(bed->request);
    assert_null(bed->request->error_text);
    assert_null(bed->request->owned_output);
    assert_false(bed->request->output_refused || bed->request->is_marked);
    assert_int_equal(bed->request->status, HORON_ERR_TIMEOUT); /* until this run ends, too */
    drop(bed);
}

static void ignore_end(void *arg, horon_request_t *request, horon_status_t status)
{
    (void)arg;
    (void)request;
    (void)status;
}

static void test_request_tells_how_a_run_ended_when_others_have(void **state)
{
    struct bed *bed = *state;
    horon_descriptor_t desc = right(bed);
    desc.callback = ignore_end;
    expect_right(bed, &desc);
    for (uint32_t run = 1; run <= UINT16_MAX + 20u; run++) { /* every third one fails */
        atomic_store(&bed->request->state, run * HORON_REQUEST_RUN | HORON_REQUEST_FLYING);
        horon_request_keep_end(bed->request, run % 3 ? HORON_OK : HORON_ERR_CONFIG);
        for (uint32_t past = run > 11 ? run - 11 : 1; past <= run; past++)
            assert_int_equal(horon_request_end_of(bed->request, past),
                             past % 3 ? HORON_OK : HORON_ERR_CONFIG);
    }
    drop(bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_request_of_a_right_descriptor_is_made),
        TEST(test_request_numbers_that_mean_nothing_are_refused),
        TEST(test_request_share_has_room_for_its_rows),
        TEST(test_request_share_may_lie_where_its_rows_do),
        TEST(test_request_splits_add_up_to_the_rows),
        TEST(test_request_reduce_has_an_output_on_root_alone),
        TEST(test_request_message_has_another_rank_and_no_name),
        TEST(test_request_root_must_be_a_rank_of_a_broadcast),
        TEST(test_request_reductions_are_those_the_header_marks),
        TEST(test_request_names_of_unnamed_barriers_are_refused),
        TEST(test_request_name_is_found_by_what_events_tell),
        TEST(test_request_names_have_1_to_511_bytes),
        TEST(test_request_shapes_are_multiplied_and_bounded),
        TEST(test_request_with_a_zero_dimension_is_empty_however_large_the_others),
        TEST(test_request_check_differs_where_ranks_must_agree),
        TEST(test_request_check_of_an_allgather_leaves_rows_out),
        TEST(test_request_describe_says_verb_and_name),
        TEST(test_request_reset_forgets_the_former_run),
        TEST(test_request_tells_how_a_run_ended_when_others_have),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
