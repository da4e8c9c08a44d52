/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allgather, gather and scatter in place, in worlds of many shapes: rows that lie anywhere in the
 * output come to their place, and rows that get no new one stay. Of each operation ranks have their
 * rows in different places.
 */
#undef NDEBUG
#include "world/layouts.h"

enum { RANKS_MAX = 25, ROW = 3, GUARDS = 16, GUARD = 0x5a5a5a5a };

/* Where what a rank gives lies, of an allgather and a gather; of a scatter where its output does.
 */
enum where { ELSEWHERE, AT_FRONT, AT_PLACE, AT_END, ANYWHERE, WHERES, MIXED = WHERES };

struct plan {
    horon_verb_t verb;
    uint32_t flags;
    int root, size;
    bool even; /* of a scatter: no splits are given */
    enum where where;
    uint64_t rows[RANKS_MAX], starts[RANKS_MAX + 1]; /* which a rank gives, or gets of a scatter */
    int32_t *all;                                    /* them in rank order */
};

struct use {
    int32_t *memory; /* [GUARDS + room + GUARDS] the larger one of input and output */
    int32_t *other;  /* [GUARDS + elements + GUARDS] what does not lie in it */
    uint64_t room;   /* elements */
    uint64_t from, to;
    horon_descriptor_t desc;
    struct horon_request *request;
};

static uint64_t rows_of(int rank, uint64_t base)
{
    return rank % 3 == 1 ? 0 : base * (uint64_t)(rank % 4 + 1);
}

static int32_t *guarded(uint64_t count)
{
    int32_t *memory = malloc((count + (uint64_t)(2 * GUARDS)) * sizeof *memory);
    assert_non_null(memory);
    for (uint64_t i = 0; i < count + 2 * GUARDS; i++)
        memory[i] = GUARD;
    return memory;
}

/* Of elements [from, to) of guarded memory. */
static void expect_guards(const int32_t *memory, uint64_t from, uint64_t to)
{
    for (uint64_t i = from; i < to; i++)
        assert_int_equal(memory[i], GUARD);
}

static struct plan draw(struct world *world, horon_verb_t verb, uint64_t base, enum where where)
{
    struct plan plan = {.verb = verb, .where = where, .size = world->size};
    assert_in_range(plan.size, 1, RANKS_MAX);
    plan.flags = world_random(world) % 2 ? HORON_IN_ORDER : 0;
    plan.root = (int)(world_random(world) % (unsigned)plan.size);
    plan.even = verb == HORON_SCATTER && world_random(world) % 2;
    for (int rank = 0; rank < plan.size; rank++) {
        plan.rows[rank] = plan.even ? base + (rank < plan.size / 2) : rows_of(rank, base);
        plan.starts[rank + 1] = plan.starts[rank] + plan.rows[rank] * ROW;
    }
    const uint64_t total = plan.starts[plan.size];
    plan.all = malloc((total + 1) * sizeof *plan.all);
    fill(world, plan.all, total, HORON_INT32);
    return plan;
}

static enum where where_of(struct world *world, const struct plan *plan)
{
    return plan->where == MIXED ? (enum where)(world_random(world) % WHERES) : plan->where;
}

/* A rank that gets what all give, of which it gives a part that lies there. */
static void have_all(struct world *world, const struct plan *plan, struct use *use, int rank)
{
    const uint64_t total = plan->starts[plan->size], own = plan->rows[rank] * ROW;
    const uint64_t more[] = {0, 5, total};
    const enum where where = where_of(world, plan);
    use->room = total + more[world_random(world) % 3];
    use->memory = guarded(use->room);
    use->other = guarded(own);
    switch (where) {
    case AT_PLACE:
        use->from = plan->starts[rank];
        break;
    case AT_END:
        use->from = use->room - own;
        break;
    case ANYWHERE:
        use->from = world_random(world) % (use->room - own + 1);
        break;
    case ELSEWHERE:
    case AT_FRONT:
    case WHERES:
        break;
    }
    int32_t *src = where == ELSEWHERE ? use->other + GUARDS : use->memory + GUARDS + use->from;
    use->to = where == ELSEWHERE ? use->from : use->from + own;
    memcpy(src, plan->all + plan->starts[rank], own * sizeof *src);
    use->desc.src = src;
    use->desc.dst = use->room ? use->memory + GUARDS : NULL; /* one without room is refused */
    use->desc.dst_count = use->room;
}

/* The output is there, and what is neither output nor was input is as it was. */
static void check_all(const struct plan *plan, const struct use *use)
{
    const uint64_t total = plan->starts[plan->size];
    assert_int_equal(use->request->output_count, total);
    if (total) {
        assert_ptr_equal(use->request->output, use->memory + GUARDS);
        assert_memory_equal(use->memory + GUARDS, plan->all, total * sizeof *plan->all);
    }
    expect_guards(use->memory, 0, GUARDS);
    for (uint64_t i = total; i < use->room; i++)
        if (i < use->from || i >= use->to)
            assert_int_equal(use->memory[GUARDS + i], GUARD);
    expect_guards(use->memory, GUARDS + use->room, GUARDS + use->room + GUARDS);
}

/* Root of a scatter, whose rows lie in its input. */
static void have_input(struct world *world, const struct plan *plan, struct use *use)
{
    const uint64_t own = plan->rows[plan->root] * ROW;
    const enum where where = where_of(world, plan);
    use->room = plan->starts[plan->size];
    use->memory = guarded(use->room);
    use->other = guarded(own);
    memcpy(use->memory + GUARDS, plan->all, use->room * sizeof *plan->all);
    use->from = where == AT_FRONT ? 0 : plan->starts[plan->root];
    use->to = where == AT_FRONT ? own : use->from; /* where they come anew */
    use->desc.src = use->memory + GUARDS;
    use->desc.splits = plan->even ? NULL : plan->rows;
    use->desc.dst = where == ELSEWHERE ? use->other + GUARDS : use->memory + GUARDS + use->from;
    use->desc.dst_count = own;
    if (own == 0)
        use->desc.dst = NULL;
}

static void check_input(const struct plan *plan, const struct use *use)
{
    expect_guards(use->memory, 0, GUARDS);
    for (uint64_t i = use->to; i < use->room; i++)
        assert_int_equal(use->memory[GUARDS + i], plan->all[i]);
    for (uint64_t i = 0; i < use->from; i++)
        assert_int_equal(use->memory[GUARDS + i], plan->all[i]);
    expect_guards(use->memory, GUARDS + use->room, GUARDS + use->room + GUARDS);
}

/* A rank that only gives, or only gets. */
static void have_share(const struct plan *plan, struct use *use, int rank)
{
    const uint64_t own = plan->rows[rank] * ROW;
    use->other = guarded(own);
    if (plan->verb == HORON_SCATTER) {
        use->desc.dst = own ? use->other + GUARDS : NULL;
        use->desc.dst_count = own;
        return;
    }
    memcpy(use->other + GUARDS, plan->all + plan->starts[rank], own * sizeof *plan->all);
    use->desc.src = use->other + GUARDS;
}

static bool has_both(const struct plan *plan, int rank)
{
    return plan->verb == HORON_ALLGATHER || rank == plan->root;
}

static void submit(struct world *world, const struct plan *plan, struct use *use, int rank)
{
    const bool is_scatter = plan->verb == HORON_SCATTER;
    const uint64_t shape[2] = {is_scatter ? plan->starts[plan->size] / ROW : plan->rows[rank], ROW};
    use->desc = (horon_descriptor_t)HORON_DESCRIPTOR_INIT;
    use->desc.verb = plan->verb;
    use->desc.name = "here";
    use->desc.flags = plan->flags;
    use->desc.dtype = HORON_INT32;
    use->desc.root = plan->root;
    use->desc.shape = shape;
    use->desc.ndim = 2;
    if (!has_both(plan, rank))
        have_share(plan, use, rank);
    else if (is_scatter)
        have_input(world, plan, use);
    else
        have_all(world, plan, use, rank);
    use->request = world_submit(world, rank, &use->desc);
    assert_non_null(use->request);
}

static void check_rank(const struct plan *plan, const struct use *use, int rank)
{
    const uint64_t own = plan->rows[rank] * ROW;
    if (plan->verb == HORON_SCATTER) {
        assert_int_equal(use->request->output_count, own);
        if (own)
            assert_memory_equal(use->request->output, plan->all + plan->starts[rank],
                                own * sizeof *plan->all);
    }
    if (has_both(plan, rank) && plan->verb == HORON_SCATTER)
        check_input(plan, use);
    else if (has_both(plan, rank))
        check_all(plan, use);
    expect_guards(use->other, 0, GUARDS);
    expect_guards(use->other, GUARDS + own, GUARDS + own + GUARDS);
}

static void check(struct world *world, horon_verb_t verb, uint64_t base, enum where where)
{
    struct plan plan = draw(world, verb, base, where);
    struct use uses[RANKS_MAX] = {0};
    struct horon_request *requests[RANKS_MAX];
    for (int rank = 0; rank < plan.size; rank++)
        submit(world, &plan, &uses[rank], rank);
    for (int rank = 0; rank < plan.size; rank++)
        requests[rank] = uses[rank].request;
    settle(world, requests, (size_t)plan.size);
    for (int rank = 0; rank < plan.size; rank++) {
        check_rank(&plan, &uses[rank], rank);
        world_release(uses[rank].request);
        free(uses[rank].memory);
        free(uses[rank].other);
    }
    free(plan.all);
}

static const uint64_t bases[] = {0, 1, 5, 341, 1021};
enum { BASES = sizeof bases / sizeof bases[0] };

static void allgathers(struct world *world)
{
    for (size_t b = 0; b < BASES; b++) {
        check(world, HORON_ALLGATHER, bases[b], AT_PLACE);
        check(world, HORON_ALLGATHER, bases[b], AT_END);
        check(world, HORON_ALLGATHER, bases[b], MIXED);
    }
}

static void test_allgather_of_rows_in_the_output_joins_in_rank_order(void **state)
{
    (void)state;
    for_all_worlds(allgathers);
}

static void gathers(struct world *world)
{
    for (size_t b = 0; b < BASES; b++)
        for (enum where where = AT_PLACE; where <= MIXED; where++)
            check(world, HORON_GATHER, bases[b], where);
}

static void test_gather_of_rows_in_the_output_joins_in_rank_order(void **state)
{
    (void)state;
    for_all_worlds(gathers);
}

static void scatters(struct world *world)
{
    for (size_t b = 0; b < BASES; b++) {
        check(world, HORON_SCATTER, bases[b], AT_FRONT);
        check(world, HORON_SCATTER, bases[b], AT_PLACE);
        check(world, HORON_SCATTER, bases[b], MIXED);
    }
}

static void test_scatter_leaves_roots_rows_where_they_are(void **state)
{
    (void)state;
    for_all_worlds(scatters);
}

/* One rank's dst is too small for what comes: nothing is written there, and nothing moved. */
static void refuse_one(struct world *world, horon_verb_t verb, uint64_t base)
{
    struct plan plan = draw(world, verb, base, AT_FRONT);
    struct horon_request *requests[RANKS_MAX];
    struct use uses[RANKS_MAX] = {0};
    const int poor = plan.root;
    const uint64_t own = plan.rows[poor] * ROW;
    int32_t *copy = malloc((plan.starts[plan.size] * 2 + 8) * sizeof *copy);
    for (int rank = 0; rank < plan.size; rank++) {
        submit(world, &plan, &uses[rank], rank);
        requests[rank] = uses[rank].request;
        if (rank == poor) /* it has not been looked at yet */
            requests[rank]->dst_count = plan.starts[plan.size] - 1;
    }
    memcpy(copy, uses[poor].memory + GUARDS, uses[poor].room * sizeof *copy);
    assert_true(world_turn_until(world, requests, (size_t)plan.size));
    for (int rank = 0; rank < plan.size; rank++) {
        assert_int_equal(requests[rank]->status, rank == poor ? HORON_ERR_MEMORY : HORON_OK);
        if (rank != poor)
            check_rank(&plan, &uses[rank], rank);
        else
            assert_memory_equal(uses[rank].memory + GUARDS, copy, uses[rank].room * sizeof *copy);
    }
    assert_memory_equal(copy, plan.all + plan.starts[poor], own * sizeof *copy);
    for (int rank = 0; rank < plan.size; rank++) {
        world_release(requests[rank]);
        free(uses[rank].memory);
        free(uses[rank].other);
    }
    free(plan.all);
    free(copy);
}

static void refusals(struct world *world)
{
    refuse_one(world, HORON_ALLGATHER, 1);
    refuse_one(world, HORON_ALLGATHER, 1021);
    refuse_one(world, HORON_GATHER, 1);
    refuse_one(world, HORON_GATHER, 1021);
    check(world, HORON_ALLGATHER, 17, MIXED); /* the job goes on */
}

static void test_rows_in_an_output_without_room_stay(void **state)
{
    (void)state;
    for_all_worlds(refusals);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allgather_of_rows_in_the_output_joins_in_rank_order),
        cmocka_unit_test(test_gather_of_rows_in_the_output_joins_in_rank_order),
        cmocka_unit_test(test_scatter_leaves_roots_rows_where_they_are),
        cmocka_unit_test(test_rows_in_an_output_without_room_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
