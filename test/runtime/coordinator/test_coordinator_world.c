/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trees of coordinators under chance: which rank submits what and when, which cancels, which
 * message arrives next, all drawn from a seed. Every rank runs the same rounds of the same tensors,
 * each in its own order and at its own pace; some ranks describe some tensors otherwise. At the end
 * all must be done, and on the way all must have seen the same.
 *
 *     test_coordinator_world [first seed] [how many]    a failure names its seed
 */
#undef NDEBUG
#include "world.h"

#include "coordinator/internal.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct world w;
static uint64_t first_seed = 1, seed_count = 3000;

/* As callers do: before the warning about a stall, and when the time is up. */
#define ASKS_MAX 2

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            print_error("seed %llu: ", (unsigned long long)w.seed);                                \
            assert_true(condition);                                                                \
        }                                                                                          \
    } while (0)

static uint64_t below(uint64_t limit)
{
    return tree_below(&w.random, limit);
}

static bool chance(unsigned percent)
{
    return below(100) < percent;
}

/* ---- What the ranks see ---------------------------------------------------------------------- */

static int tensor_of(int rank, uint64_t token)
{
    for (int i = 0; i < w.tensors; i++)
        if (w.uses[rank][i].in_flight && w.uses[rank][i].token == token)
            return i;
    return -1;
}

static void finish(int rank, int tensor)
{
    struct use *use = &w.uses[rank][tensor];
    use->in_flight = false;
    use->cancelling = false;
    use->round++;
}

/* A member failed: those that were taken back before are not submitted again in this round. */
static void note_failure(int rank, int tensor, int round)
{
    int unit = w.group_of[tensor];
    if (unit < 0)
        return;
    w.failed_round[rank][unit] = round;
    for (int i = 0; i < w.tensors; i++) {
        struct use *use = &w.uses[rank][i];
        if (w.group_of[i] == unit && !use->in_flight && use->round == round)
            use->round++;
    }
}

static void see_local(int rank, const struct horon_batch *batch)
{
    CHECK(batch->count == 1);
    int tensor = tensor_of(rank, batch->tokens[0]);
    CHECK(tensor >= 0);
    struct use *use = &w.uses[rank][tensor];
    int unit = w.group_of[tensor];
    bool failed = unit >= 0 && w.failed_round[rank][unit] == use->round;
    if (batch->status == HORON_ERR_MISMATCH) {
        CHECK(failed);
        CHECK(world_mismatch(&w, tensor, use->round) == GROUP);
        CHECK(strstr(batch->text, "groups differ"));
        finish(rank, tensor);
        return;
    }
    CHECK(batch->status == HORON_ERR_CANCELLED);
    CHECK(use->cancelling);
    w.cancelled_count++;
    use->in_flight = false;
    use->cancelling = false;
    if (failed)
        use->round++;
}

/* The root decided an OK batch just now: was it right to? */
static void judge(const struct seen *seen)
{
    uint64_t bytes = 0;
    struct horon_operation first = world_describe(&w, 0, seen->tensor[0], seen->round[0]);
    for (int i = 0; i < seen->count; i++) {
        struct horon_operation tensor = world_describe(&w, 0, seen->tensor[i], seen->round[i]);
        CHECK(tensor.agreed.verb == first.agreed.verb);
        CHECK(tensor.agreed.verb == HORON_BARRIER || tensor.agreed.dtype == first.agreed.dtype);
        bytes += tensor.agreed.shape[0] * tensor.agreed.shape[1] *
                 horon_dtype_bytes(tensor.agreed.dtype);
        for (int rank = 0; rank < w.size; rank++)
            for (int j = 0; j < w.tensors; j++) {
                const struct use *use = &w.uses[rank][j];
                bool same = j == seen->tensor[i];
                bool mate =
                    !same && w.group_of[j] >= 0 && w.group_of[j] == w.group_of[seen->tensor[i]];
                if (same || mate)
                    CHECK((use->in_flight && use->round == seen->round[i]) ||
                          (mate && use->round == seen->round[i] + 1));
            }
    }
    CHECK(seen->count == 1 || bytes <= w.fusion_bytes);
    CHECK(seen->count == 1 || first.agreed.verb == HORON_ALLREDUCE ||
          first.agreed.verb == HORON_BROADCAST);
}

static void see(int rank, const struct horon_batch *batch)
{
    struct seen mine = {.status = batch->status, .count = (int)batch->count};
    CHECK(batch->sequence == w.next_sequence[rank]);
    w.next_sequence[rank]++;
    CHECK(batch->count > 0);
    CHECK(batch->count <= TENSORS_MAX);
    for (int i = 0; i < mine.count; i++) {
        mine.tensor[i] = tensor_of(rank, batch->tokens[i]);
        CHECK(mine.tensor[i] >= 0);
        mine.round[i] = w.uses[rank][mine.tensor[i]].round;
        CHECK(world_fails(&w, mine.tensor[i], mine.round[i]) == (batch->status != HORON_OK));
    }
    if (batch->status != HORON_OK) {
        CHECK(batch->status == HORON_ERR_MISMATCH);
        CHECK(strstr(batch->text, "differ"));
        snprintf(mine.text, sizeof mine.text, "%s", batch->text);
    }
    CHECK(batch->sequence < BATCHES_MAX);
    if (batch->sequence == w.batch_count) {
        CHECK(rank == 0);
        if (batch->status == HORON_OK)
            judge(&mine);
        else
            w.failed_count++;
        w.batches[w.batch_count++] = mine;
    }
    CHECK(memcmp(&w.batches[batch->sequence], &mine, sizeof mine) == 0);
    for (int i = 0; i < mine.count; i++)
        finish(rank, mine.tensor[i]);
    for (int i = 0; i < mine.count && batch->status != HORON_OK; i++)
        note_failure(rank, mine.tensor[i], mine.round[i]);
}

static void drain(int rank)
{
    struct horon_batch batch;
    while (horon_coordinator_next_batch(w.tree.ranks[rank], &batch)) {
        if (batch.sequence == HORON_SEQUENCE_LOCAL)
            see_local(rank, &batch);
        else
            see(rank, &batch);
    }
    size_t pending = 0;
    for (int i = 0; i < w.tensors; i++)
        pending += w.uses[rank][i].in_flight;
    CHECK(pending == horon_coordinator_pending(w.tree.ranks[rank]));
}

static void flush(int rank, bool decide)
{
    CHECK(tree_flush(&w.tree, rank, decide) == HORON_OK);
    drain(rank);
}

/* ---- What the ranks do ----------------------------------------------------------------------- */

static void submit(int rank, int number)
{
    struct use *use = &w.uses[rank][number];
    struct horon_coordinator *coordinator = w.tree.ranks[rank];
    struct horon_operation tensor = world_describe(&w, rank, number, use->round);
    horon_status_t status;
    if (use->has_handle && (use->handle_round != use->round || chance(10))) {
        horon_coordinator_drop(coordinator, use->handle);
        use->has_handle = false;
    }
    if (!use->has_handle && w.handles && chance(50)) {
        CHECK(tree_intern(coordinator, &tensor, &use->handle) == HORON_OK);
        use->has_handle = true;
        use->handle_round = use->round;
    }
    use->token = w.next_token++;
    if (use->has_handle)
        status = horon_coordinator_submit_handle(coordinator, use->handle, use->token);
    else
        status = tree_submit(coordinator, &tensor, use->token);
    CHECK(status == HORON_OK);
    use->in_flight = true;
    if (w.duplicates && chance(10))
        CHECK(tree_submit(coordinator, &tensor, w.next_token) == HORON_ERR_DUPLICATE);
}

/* May this rank submit the tensor; for the first of a group: all of the group? A member that was
 * taken back is submitted again alone. */
static bool may_submit(int rank, int tensor, bool *whole_group_out)
{
    const struct use *use = &w.uses[rank][tensor];
    int unit = w.group_of[tensor];
    *whole_group_out = false;
    if (use->in_flight || use->round >= w.rounds)
        return false;
    if (unit < 0)
        return true;
    bool begun = false;
    for (int i = 0; i < w.tensors; i++) {
        const struct use *other = &w.uses[rank][i];
        if (w.group_of[i] != unit)
            continue;
        if (other->round < use->round)
            return false; /* the group's last round is not over */
        if (other->in_flight)
            begun = true;
        if (other->round > use->round)
            begun = true;
    }
    *whole_group_out = !begun;
    return true;
}

static bool submit_some(int rank)
{
    int start = (int)below((uint64_t)w.tensors);
    for (int i = 0; i < w.tensors; i++) {
        int tensor = (start + i) % w.tensors;
        bool whole_group;
        if (!may_submit(rank, tensor, &whole_group))
            continue;
        for (int j = 0; j < w.tensors; j++)
            if (j == tensor || (whole_group && w.group_of[j] == w.group_of[tensor]))
                submit(rank, j);
        return true;
    }
    return false;
}

static void cancel_some(int rank)
{
    int tensor = (int)below((uint64_t)w.tensors);
    struct use *use = &w.uses[rank][tensor];
    if (!use->in_flight)
        return;
    use->cancelling = true;
    horon_coordinator_cancel(w.tree.ranks[rank], use->token);
    drain(rank);
}

static void ask_some(int rank)
{
    int tensor = (int)below((uint64_t)w.tensors);
    struct use *use = &w.uses[rank][tensor];
    char text[300], short_text[9];
    CHECK(horon_coordinator_explain(w.tree.ranks[rank], use->token, text, sizeof text) ==
          use->in_flight);
    if (use->asked_token != use->token)
        use->asks = 0;
    use->asked_token = use->token;
    if (use->asks++ < ASKS_MAX)
        horon_coordinator_ask(w.tree.ranks[rank], use->token);
    if (!use->in_flight)
        return;
    CHECK(strstr(text, "layer."));
    CHECK(strlen(text) > 20);
    CHECK(horon_coordinator_explain(w.tree.ranks[rank], use->token, short_text, sizeof short_text));
    CHECK(strlen(short_text) < sizeof short_text);
}

static bool all_done(void)
{
    for (int rank = 0; rank < w.size; rank++)
        for (int i = 0; i < w.tensors; i++)
            if (w.uses[rank][i].round < w.rounds)
                return false;
    return true;
}

static void act(int rank)
{
    for (uint64_t i = 1 + below(6); i > 0; i--)
        submit_some(rank);
    if (w.cancels && chance(20))
        cancel_some(rank);
    if (chance(5))
        ask_some(rank);
}

/* Everything stands still: flush all; if still nothing moves, it is stuck for good. */
static void push_on(void)
{
    bool moved = false;
    size_t before = w.batch_count;
    for (int rank = 0; rank < w.size; rank++) {
        while (submit_some(rank))
            moved = true;
        flush(rank, true);
    }
    CHECK(moved || w.tree.in_flight > 0 || w.batch_count > before);
}

static void draw_groups(bool groups)
{
    for (int i = 0; i < w.tensors; i++)
        w.group_of[i] = -1;
    for (int i = 0; groups && i + 1 < w.tensors;) {
        int members = (int)(1 + below(5));
        bool grouped = chance(60);
        for (int j = i; grouped && j < w.tensors && j < i + members; j++)
            w.group_of[j] = i;
        i += members;
    }
    for (int i = 0; i < w.tensors; i++) {
        w.change_every[i] = chance(70) ? 1000 : (int)(1 + below(3));
    }
}

static void draw(uint64_t seed)
{
    static const size_t caches[] = {0, 1, 2, 3, 8, 1000};
    static const uint64_t fusions[] = {0, 100, 2000, 1 << 20};
    memset(&w, 0, sizeof w);
    w.seed = seed;
    w.random = seed * 77;
    w.next_token = 1;
    w.size = (int)(1 + below(chance(70) ? 5 : RANKS_MAX));
    w.tensors = (int)(1 + below(chance(70) ? 8 : TENSORS_MAX));
    w.rounds = (int)(1 + below(6));
    w.fusion_bytes = fusions[below(4)];
    w.cancels = chance(50);
    w.duplicates = chance(30);
    w.handles = chance(50);
    w.mismatches = chance(50);
    draw_groups(chance(40));
    memset(w.failed_round, -1, sizeof w.failed_round);
    tree_init(&w.tree, w.size, (enum tree_shape)below(TREE_SHAPE_COUNT), caches[below(6)],
              w.fusion_bytes, tree_random(&w.random));
}

/* When all is done a coordinator holds what the cache and the handles need, and nothing else. */
static void check_rest(const struct horon_coordinator *coordinator)
{
    uint32_t named = 0, held = 0;
    CHECK(coordinator->dissent_texts == 0);
    for (uint32_t i = 0; i < coordinator->entry_used; i++) {
        const struct coord_entry *entry = &coordinator->entries[i];
        if (!coordinator->cold[i].name)
            continue;
        named++;
        CHECK(entry->state == COORD_IDLE);
        CHECK(entry->missing == coordinator->seat_count);
        CHECK(!coordinator->cold[i].inquiry);
        held += entry->id != COORD_NONE || entry->holds > 0;
    }
    CHECK(named == held);
    CHECK(coordinator->foreign_names <= named);
    CHECK(w.handles || named <= coordinator->slot_capacity + coordinator->retired_count);
}

static void run(uint64_t seed)
{
    draw(seed);
    unsigned deliver = 20 + (unsigned)below(75), decide = 20 + (unsigned)below(80);
    for (int steps = 0; !all_done(); steps++) {
        int rank = (int)below((uint64_t)w.size);
        if (steps > 3000)
            w.cancels = false; /* groups that are taken back all the time come to no end */
        CHECK(steps < 300000);
        if (w.tree.in_flight > 0 && chance(deliver)) {
            if (tree_deliver_any(&w.tree, &rank) != HORON_OK)
                print_error("%s\n", w.tree.error.text);
            CHECK(w.tree.error.status == HORON_OK);
            drain(rank);
        } else {
            act(rank);
        }
        if (chance(60))
            flush(rank, chance(decide));
        if (w.tree.in_flight == 0 && !all_done())
            push_on();
    }
    while (w.tree.in_flight > 0) {
        int rank;
        CHECK(tree_deliver_any(&w.tree, &rank) == HORON_OK);
        flush(rank, true);
    }
    for (int rank = 0; rank < w.size; rank++) {
        CHECK(w.next_sequence[rank] == w.batch_count);
        check_rest(w.tree.ranks[rank]);
    }
    tree_deinit(&w.tree);
}

static void test_coordinator_random_worlds_agree_and_finish(void **state)
{
    (void)state;
    size_t batches = 0, failed = 0, cancelled = 0;
    for (uint64_t i = 0; i < seed_count; i++) {
        run(first_seed + i);
        batches += w.batch_count;
        failed += w.failed_count;
        cancelled += w.cancelled_count;
    }
    print_message("%zu batches, %zu failing; %zu cancellations\n", batches, failed, cancelled);
    if (seed_count >= 1000) { /* else the test would test nothing of the kind */
        assert_true(failed > 1000);
        assert_true(cancelled > 1000);
    }
}

/* A failed assertion in the coordinator itself must name its seed as well. */
static void name_seed(int number)
{
    char text[64];
    int bytes = snprintf(text, sizeof text, "\nseed %llu\n", (unsigned long long)w.seed);
    if (write(STDERR_FILENO, text, (size_t)bytes) < 0)
        _exit(2);
    signal(number, SIG_DFL);
    raise(number);
}

int main(int argc, char **argv)
{
    signal(SIGABRT, name_seed);
    if (argc > 1)
        first_seed = strtoull(argv[1], NULL, 10);
    if (argc > 2)
        seed_count = strtoull(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_coordinator_random_worlds_agree_and_finish),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
