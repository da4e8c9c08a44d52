/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All participants of a plan played in one process, on symbols: an element is an expression,
 * combining makes a new expression of two (neither associative nor commutative), so a result is
 * right only if it was made along the canonical tree with every operand on its side. Stages run in
 * lock-step, but the receives of a stage take what was sent in *that* stage of the sender, found by
 * peer and number.
 */
#include "../worlds.h"
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

/* An expression is a hash of its two sides; leaf r of element e is a hash of (r, e). */
static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t h = a * 0x9e3779b97f4a7c15u + (b ^ (b >> 29)) * 0xbf58476d1ce4e5b9u + 0x1234567u;
    h ^= h >> 31;
    return h * 0x94d049bb133111ebu;
}

static uint64_t leaf(int rank, uint64_t element)
{
    return mix(0x1eaf + (uint64_t)rank, element + 7);
}

/* ((...) + (...)) over leaves first .. first + width - 1, width a power of two. */
static uint64_t pairwise(int first, int width, uint64_t element)
{
    if (width == 1)
        return leaf(first, element);
    return mix(pairwise(first, width / 2, element),
               pairwise(first + width / 2, width / 2, element));
}

static uint64_t canonical(int size, uint64_t element)
{
    const int block = size & -size;
    uint64_t sum = pairwise(0, block, element);
    for (int first = block; first < size; first += block)
        sum = mix(sum, pairwise(first, block, element));
    return sum;
}

struct player {
    struct horon_plan_args args;
    uint64_t *work, *scratch;
    uint64_t *entered; /* bit set by participant: is known to have entered */
    struct horon_plan_move *moves;
    struct horon_plan_combine *combines;
    struct horon_plan_stage stage;
    uint64_t *sent[64]; /* copy of what it sends, by move */
    uint64_t sent_total, came_total;
};

struct play {
    int size, stages;
    uint64_t count;
    struct player *players;
};

static uint64_t *array(uint64_t count)
{
    uint64_t *memory = calloc(count ? count : 1, sizeof *memory);
    assert_non_null(memory);
    return memory;
}

static void play_begin(struct play *play, enum horon_plan_kind kind, int size, uint64_t count,
                       int root)
{
    *play = (struct play){.size = size, .count = count};
    play->players = calloc((size_t)size, sizeof *play->players);
    assert_non_null(play->players);
    for (int r = 0; r < size; r++) {
        struct player *player = &play->players[r];
        player->args = (struct horon_plan_args){
            .kind = kind, .rank = r, .size = size, .root = root, .count = count};
        uint32_t moves, combines;
        horon_plan_limits(&player->args, &moves, &combines);
        assert_true(moves <= 64);
        player->moves = calloc(moves ? moves : 1, sizeof *player->moves);
        player->combines = calloc(combines ? combines : 1, sizeof *player->combines);
        player->work = array(count);
        player->scratch = array(horon_plan_scratch(&player->args));
        player->entered = array((uint64_t)size);
        player->entered[r] = 1;
        for (uint64_t e = 0; e < count; e++)
            player->work[e] = leaf(r, e);
        const int stages = horon_plan_stages(&player->args);
        assert_true(r == 0 || stages == play->stages);
        play->stages = stages;
    }
}

static void play_end(struct play *play)
{
    for (int r = 0; r < play->size; r++) {
        struct player *player = &play->players[r];
        free(player->work);
        free(player->scratch);
        free(player->entered);
        free(player->moves);
        free(player->combines);
    }
    free(play->players);
}

static uint64_t *memory_at(struct player *player, uint8_t region, uint64_t offset, uint64_t count)
{
    const bool work = region == HORON_PLAN_WORK;
    assert_true(work || region == HORON_PLAN_SCRATCH);
    const uint64_t limit = work ? player->args.count : horon_plan_scratch(&player->args);
    assert_true(offset <= limit);
    assert_true(count <= limit - offset);
    return (work ? player->work : player->scratch) + offset;
}

static bool all_entered(const struct player *player)
{
    for (int r = 0; r < player->args.size; r++) {
        if (!player->entered[r])
            return false;
    }
    return true;
}

static const struct horon_plan_move *find_move(const struct player *player, int peer, bool is_send)
{
    const struct horon_plan_move *found = NULL;
    for (uint32_t i = 0; i < player->stage.move_count; i++) {
        const struct horon_plan_move *move = &player->moves[i];
        if (move->peer != peer || move->is_send != is_send)
            continue;
        assert_null(found); /* one move a stage, peer and direction */
        found = move;
    }
    return found;
}

static void play_sends(struct play *play, int stage)
{
    for (int r = 0; r < play->size; r++) {
        struct player *player = &play->players[r];
        uint32_t moves_max, combines_max;
        horon_plan_limits(&player->args, &moves_max, &combines_max);
        player->stage = horon_plan_stage(&player->args, stage, player->moves, player->combines);
        assert_true(player->stage.move_count <= moves_max);
        assert_true(player->stage.combine_count <= combines_max);
        for (uint32_t i = 0; i < player->stage.move_count; i++) {
            const struct horon_plan_move *move = &player->moves[i];
            assert_true(move->peer != r);
            assert_in_range(move->peer, 0, play->size - 1);
            player->sent[i] = NULL;
            if (!move->is_send)
                continue;
            player->sent[i] = array(move->count);
            if (move->count)
                memcpy(player->sent[i], memory_at(player, move->region, move->offset, move->count),
                       move->count * sizeof(uint64_t));
            player->sent_total += move->count;
        }
    }
}

/* Exactly one receive for each send, with the same number and count; the bytes move. */
static void play_recvs(struct play *play)
{
    for (int r = 0; r < play->size; r++) {
        struct player *sender = &play->players[r];
        for (uint32_t i = 0; i < sender->stage.move_count; i++) {
            const struct horon_plan_move *send = &sender->moves[i];
            const struct horon_plan_move *other =
                find_move(&play->players[send->peer], r, !send->is_send);
            assert_non_null(other);
            assert_int_equal(other->stage, send->stage);
            assert_int_equal(other->count, send->count);
            assert_true(find_move(sender, send->peer, send->is_send) == send);
            if (!send->is_send)
                continue;
            struct player *receiver = &play->players[send->peer];
            uint64_t *to = memory_at(receiver, other->region, other->offset, other->count);
            if (other->count)
                memcpy(to, sender->sent[i], other->count * sizeof(uint64_t));
            receiver->came_total += other->count;
        }
    }
    for (int r = 0; r < play->size; r++) {
        for (uint32_t i = 0; i < play->players[r].stage.move_count; i++)
            free(play->players[r].sent[i]);
    }
}

/* Which participants entered is learned from the messages of a stage, as of its beginning. */
static void play_knowledge(struct play *play)
{
    const size_t cells = (size_t)play->size * (size_t)play->size;
    uint64_t *before = array(cells);
    for (int r = 0; r < play->size; r++)
        memcpy(before + r * play->size, play->players[r].entered,
               (size_t)play->size * sizeof *before);
    for (int r = 0; r < play->size; r++) {
        struct player *player = &play->players[r];
        for (uint32_t i = 0; i < player->stage.move_count; i++) {
            for (int q = 0; !player->moves[i].is_send && q < play->size; q++)
                player->entered[q] |= before[player->moves[i].peer * play->size + q];
        }
    }
    free(before);
}

static void play_combines(struct play *play)
{
    for (int r = 0; r < play->size; r++) {
        struct player *player = &play->players[r];
        for (uint32_t i = 0; i < player->stage.combine_count; i++) {
            const struct horon_plan_combine *c = &player->combines[i];
            const uint64_t *left = memory_at(player, c->left_region, c->left, c->count);
            const uint64_t *right = memory_at(player, c->right_region, c->right, c->count);
            uint64_t *result = memory_at(player, c->result_region, c->result, c->count);
            assert_int_equal(c->count, player->combines[0].count);
            /* the input is whole until everybody is known to be there, and then only a
             * result comes over it */
            if (c->result_region == HORON_PLAN_WORK) {
                assert_true(all_entered(player));
                assert_int_equal(i, player->stage.combine_count - 1);
            }
            for (uint64_t e = 0; e < c->count; e++)
                result[e] = mix(left[e], right[e]);
        }
    }
}

static void check_received_into_work(const struct play *play)
{
    for (int r = 0; r < play->size; r++) {
        const struct player *player = &play->players[r];
        for (uint32_t i = 0; i < player->stage.move_count; i++) {
            const struct horon_plan_move *move = &player->moves[i];
            if (!move->is_send && move->region == HORON_PLAN_WORK)
                assert_true(all_entered(player));
        }
    }
}

static void play_all(struct play *play)
{
    const enum horon_plan_kind kind = play->players[0].args.kind;
    const bool reduces = kind != HORON_PLAN_BROADCAST && kind != HORON_PLAN_BROADCAST_CHAIN;
    for (int stage = 0; stage < play->stages; stage++) {
        play_sends(play, stage);
        play_recvs(play);
        play_knowledge(play);
        if (reduces)
            check_received_into_work(play);
        play_combines(play);
    }
}

static const uint64_t counts[] = {0, 1, 2, 3, 7, 16, 31, 64, 97, 251};
static const int sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 24, 32};
#define EACH(i, list) (size_t i = 0; i < sizeof(list) / sizeof *(list); i++)

static void test_plan_allreduce_of_every_size_is_the_canonical_tree(void **state)
{
    (void)state;
    for (int kind = HORON_PLAN_FLAT; kind <= HORON_PLAN_HALVING; kind++) {
        for
            EACH(s, sizes)
            {
            for
                EACH(c, counts)
                {
                    struct play play;
                    play_begin(&play, (enum horon_plan_kind)kind, sizes[s], counts[c], 0);
                    play_all(&play);
                    for (int r = 0; r < play.size; r++) {
                        assert_true(all_entered(&play.players[r]));
                        for (uint64_t e = 0; e < play.count; e++)
                            assert_int_equal(play.players[r].work[e], canonical(play.size, e));
                    }
                    play_end(&play);
                }
            }
    }
}

/* Of kinds that have a root; large counts with some roots only. */
static void for_each_root(int first, int last,
                          void (*check)(enum horon_plan_kind kind, int size, uint64_t count,
                                        int root))
{
    for (int kind = first; kind <= last; kind++) {
        for
            EACH(s, sizes)
            {
                for (int root = 0; root < sizes[s]; root++) {
                for
                    EACH(c, counts)
                    {
                        if (counts[c] <= 16 || root % 7 == 0)
                            check((enum horon_plan_kind)kind, sizes[s], counts[c], root);
                    }
                }
            }
    }
}

static void check_reduce(enum horon_plan_kind kind, int size, uint64_t count, int root)
{
    struct play play;
    play_begin(&play, kind, size, count, root);
    play_all(&play);
    assert_true(all_entered(&play.players[root]));
    for (int r = 0; r < size; r++)
        for (uint64_t e = 0; e < count; e++)
            assert_int_equal(play.players[r].work[e], r == root ? canonical(size, e) : leaf(r, e));
    play_end(&play);
}

static void test_plan_reduce_to_any_root_is_the_canonical_tree_and_writes_only_there(void **state)
{
    (void)state;
    for_each_root(HORON_PLAN_REDUCE_FLAT, HORON_PLAN_REDUCE_DIRECT, check_reduce);
}

/* Of a chain everybody sends all of it once but the last one, and gets it once but root. */
static void check_broadcast(enum horon_plan_kind kind, int size, uint64_t count, int root)
{
    struct play play;
    play_begin(&play, kind, size, count, root);
    play_all(&play);
    for (int r = 0; r < size; r++) {
        const struct player *player = &play.players[r];
        assert_int_equal(player->entered[root], 1);
        for (uint64_t e = 0; e < count; e++)
            assert_int_equal(player->work[e], leaf(root, e));
        assert_int_equal(player->came_total, r == root ? 0 : count);
        if (kind == HORON_PLAN_BROADCAST_CHAIN)
            assert_int_equal(player->sent_total, (r + 1) % size == root ? 0 : count);
    }
    play_end(&play);
}

static void test_plan_broadcast_from_any_root_reaches_all(void **state)
{
    (void)state;
    for_each_root(HORON_PLAN_BROADCAST, HORON_PLAN_BROADCAST_CHAIN, check_broadcast);
}

/* One piece behind the other: with links of one rate a chain takes less than twice its bytes. */
static void test_plan_broadcast_chain_moves_one_piece_a_stage(void **state)
{
    (void)state;
    const uint64_t count = 10007;
    for
        EACH(s, sizes)
        {
            const uint64_t size = (uint64_t)sizes[s], pieces = size > 8 ? size : 8;
            if (size == 1)
                continue;
            for (int r = 0; r < sizes[s]; r++) {
                const struct horon_plan_args args = {.kind = HORON_PLAN_BROADCAST_CHAIN,
                                                     .rank = r,
                                                     .size = sizes[s],
                                                     .count = count};
                struct horon_plan_move moves[2];
                struct horon_plan_combine none[1];
                const int stages = horon_plan_stages(&args);
                assert_int_equal(stages, pieces + size - 2);
                for (int stage = 0; stage < stages; stage++) {
                    const struct horon_plan_stage drawn =
                        horon_plan_stage(&args, stage, moves, none);
                    for (uint32_t i = 0; i < drawn.move_count; i++)
                        assert_in_range(moves[i].count, count / pieces, count / pieces + 1);
                }
            }
        }
}

static void test_plan_direct_and_halving_move_no_more_than_the_bound(void **state)
{
    (void)state;
    const uint64_t count = 10007;
    for (int kind = HORON_PLAN_DIRECT; kind <= HORON_PLAN_HALVING; kind++) {
        for
            EACH(s, sizes)
            {
                struct play play;
                play_begin(&play, (enum horon_plan_kind)kind, sizes[s], count, 0);
                play_all(&play);
                const uint64_t size = (uint64_t)sizes[s];
                const uint64_t bound = 2 * count * (size - 1) / size;
                for (int r = 0; r < play.size; r++) {
                    assert_true(play.players[r].sent_total <= bound + 2 * size);
                    assert_true(play.players[r].sent_total + 2 * size >= bound);
                }
                play_end(&play);
            }
    }
}

/* What the others have is sent once, and no more; of many bytes root gets no more than the result,
 * nor anybody more than that. */
static void check_reduce_moves(enum horon_plan_kind kind, int size, uint64_t count, int root)
{
    const uint64_t others = (uint64_t)size - 1, block = (uint64_t)(size & -size);
    const uint64_t blocks = (uint64_t)size / block;
    uint64_t to_root = others, levels = 0;
    struct play play;
    for (uint64_t width = 1; width < block; width *= 2)
        levels++;
    if (kind == HORON_PLAN_REDUCE_DOUBLING)
        to_root = levels + blocks - 1;
    if (kind == HORON_PLAN_REDUCE_DIRECT)
        to_root = 1;
    play_begin(&play, kind, size, count, root);
    play_all(&play);
    for (int r = 0; r < size; r++) {
        const struct player *player = &play.players[r];
        const bool direct = kind == HORON_PLAN_REDUCE_DIRECT;
        assert_int_equal(player->sent_total, r == root && !direct ? 0 : count);
        if (r == root)
            assert_int_equal(player->came_total, to_root * count);
        if (direct)
            assert_true(player->came_total <= count + (uint64_t)size);
    }
    play_end(&play);
}

static void test_plan_reduce_moves_no_more_than_the_bound(void **state)
{
    (void)state;
    for
        EACH(s, sizes)
        {
            for (int root = 0; sizes[s] > 1 && root < sizes[s]; root += 3) {
                check_reduce_moves(HORON_PLAN_REDUCE_FLAT, sizes[s], 1009, root);
                check_reduce_moves(HORON_PLAN_REDUCE_DOUBLING, sizes[s], 1009, root);
                check_reduce_moves(HORON_PLAN_REDUCE_DIRECT, sizes[s], 1009, root);
            }
        }
}

static void test_plan_scratch_is_at_most_the_vector_for_many_bytes(void **state)
{
    (void)state;
    for
        EACH(s, sizes)
        {
            for (int r = 0; r < sizes[s]; r++) {
                struct horon_plan_args args = {.rank = r, .size = sizes[s], .count = 100003};
                args.kind = HORON_PLAN_DIRECT;
                assert_true(horon_plan_scratch(&args) <= args.count + 64);
                args.kind = HORON_PLAN_HALVING;
                assert_true(horon_plan_scratch(&args) <= args.count + 64);
                args.kind = HORON_PLAN_REDUCE_DIRECT;
                assert_true(horon_plan_scratch(&args) <= args.count + 64);
            }
        }
}

static void test_plan_of_one_participant_has_no_stage(void **state)
{
    (void)state;
    for (int kind = 0; kind < HORON_PLAN_KIND_COUNT; kind++) {
        struct horon_plan_args args = {.kind = (enum horon_plan_kind)kind, .size = 1, .count = 10};
        uint32_t moves = 9, combines = 9;
        horon_plan_limits(&args, &moves, &combines);
        assert_int_equal(horon_plan_stages(&args), 0);
        assert_int_equal(horon_plan_scratch(&args), 0);
        assert_int_equal(moves, 0);
        assert_int_equal(combines, 0);
    }
}

static void test_plan_doubling_of_a_power_of_two_sends_log_messages(void **state)
{
    (void)state;
    for (int size = 2, log = 1; size <= 64; size *= 2, log++) {
        struct play play;
        play_begin(&play, HORON_PLAN_DOUBLING, size, 5, 0);
        play_all(&play);
        assert_int_equal(play.stages, log);
        for (int r = 0; r < size; r++)
            assert_int_equal(play.players[r].sent_total, 5 * (uint64_t)log);
        play_end(&play);
    }
}

static void test_plan_choose_by_name_takes_it(void **state)
{
    (void)state;
    for (int crowded = 0; crowded < 2; crowded++) {
        assert_int_equal(
            horon_plan_choose("flat", HORON_PLAN_TO_ALL, 4, (uint64_t)1 << 30, crowded),
            HORON_PLAN_FLAT);
        assert_int_equal(
            horon_plan_choose("doubling", HORON_PLAN_TO_ALL, 4, (uint64_t)1 << 30, crowded),
            HORON_PLAN_DOUBLING);
        assert_int_equal(horon_plan_choose("direct", HORON_PLAN_TO_ALL, 64, 1, crowded),
                         HORON_PLAN_DIRECT);
        assert_int_equal(horon_plan_choose("halving", HORON_PLAN_TO_ALL, 3, 1, crowded),
                         HORON_PLAN_HALVING);
        assert_int_equal(
            horon_plan_choose("flat", HORON_PLAN_TO_ROOT, 4, (uint64_t)1 << 30, crowded),
            HORON_PLAN_REDUCE_FLAT);
        assert_int_equal(
            horon_plan_choose("doubling", HORON_PLAN_TO_ROOT, 5, (uint64_t)1 << 30, crowded),
            HORON_PLAN_REDUCE_DOUBLING);
        assert_int_equal(horon_plan_choose("direct", HORON_PLAN_TO_ROOT, 2, 1, crowded),
                         HORON_PLAN_REDUCE_DIRECT);
        assert_int_equal(horon_plan_choose("doubling", HORON_PLAN_FROM_ROOT, 4, 1 << 30, crowded),
                         HORON_PLAN_BROADCAST);
        assert_int_equal(horon_plan_choose("chain", HORON_PLAN_FROM_ROOT, 4, 1, crowded),
                         HORON_PLAN_BROADCAST_CHAIN);
        /* no allreduce, no reduce, and no broadcast */
        assert_int_equal(horon_plan_choose("chain", HORON_PLAN_TO_ALL, 2, 8, crowded),
                         HORON_PLAN_FLAT);
        assert_int_equal(horon_plan_choose("halving", HORON_PLAN_TO_ROOT, 2, 8, crowded),
                         HORON_PLAN_REDUCE_FLAT);
        assert_int_equal(horon_plan_choose("flat", HORON_PLAN_FROM_ROOT, 4, 8, crowded),
                         HORON_PLAN_BROADCAST);
    }
}

static void expect_least(enum horon_plan_way way, int size, uint64_t bytes, bool crowded)
{
    static const int firsts[] = {HORON_PLAN_FLAT, HORON_PLAN_REDUCE_FLAT, HORON_PLAN_BROADCAST};
    static const int lasts[] = {HORON_PLAN_HALVING, HORON_PLAN_REDUCE_DIRECT,
                                HORON_PLAN_BROADCAST_CHAIN};
    const int first = firsts[way], last = lasts[way];
    const enum horon_plan_kind chosen = horon_plan_choose("auto", way, size, bytes, crowded);
    assert_in_range(chosen, first, last);
    for (int kind = first; kind <= last; kind++)
        assert_true(horon_plan_estimate_us(chosen, size, bytes, crowded) <=
                    horon_plan_estimate_us((enum horon_plan_kind)kind, size, bytes, crowded));
}

static void test_plan_choose_auto_takes_the_least_estimate(void **state)
{
    (void)state;
    for (int size = 2; size <= 64; size++) {
        for (uint64_t bytes = 0; bytes < (uint64_t)1 << 30; bytes = 2 * bytes + 1) {
            for (int way = 0; way < 6; way++)
                expect_least((enum horon_plan_way)(way / 2), size, bytes, way & 1);
        }
        /* many bytes are shared out */
        const enum horon_plan_kind chosen =
            horon_plan_choose("auto", HORON_PLAN_TO_ALL, size, 1 << 26, false);
        assert_true(chosen == HORON_PLAN_DIRECT || chosen == HORON_PLAN_HALVING);
        for (int crowded = 0; crowded < 2; crowded++) {
            assert_int_equal(
                horon_plan_choose("auto", HORON_PLAN_FROM_ROOT, size, 8 << 20, crowded),
                size == 2 ? HORON_PLAN_BROADCAST : HORON_PLAN_BROADCAST_CHAIN);
            assert_int_equal(
                horon_plan_choose("auto", HORON_PLAN_FROM_ROOT, size, 64 << 10, crowded),
                HORON_PLAN_BROADCAST);
            assert_int_equal(horon_plan_choose("auto", HORON_PLAN_TO_ROOT, size, 1 << 20, crowded),
                             size == 2 ? HORON_PLAN_REDUCE_FLAT : HORON_PLAN_REDUCE_DIRECT);
        }
    }
    /* few bytes go at once to a few; to many, or on cores that are shared, in fewer messages */
    assert_int_equal(horon_plan_choose("auto", HORON_PLAN_TO_ALL, 4, 8, false), HORON_PLAN_FLAT);
    assert_int_equal(horon_plan_choose("auto", HORON_PLAN_TO_ALL, 4, 8, true), HORON_PLAN_DOUBLING);
    assert_int_equal(horon_plan_choose("auto", HORON_PLAN_TO_ALL, 32, 8, false),
                     HORON_PLAN_DOUBLING);
    assert_int_equal(horon_plan_choose("auto", HORON_PLAN_TO_ROOT, 4, 8, false),
                     HORON_PLAN_REDUCE_FLAT);
    assert_int_equal(horon_plan_choose("auto", HORON_PLAN_TO_ROOT, 4, 8, true),
                     HORON_PLAN_REDUCE_FLAT);
    assert_int_equal(horon_plan_choose("auto", HORON_PLAN_TO_ROOT, 32, 8, false),
                     HORON_PLAN_REDUCE_DOUBLING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_allreduce_of_every_size_is_the_canonical_tree),
        cmocka_unit_test(test_plan_reduce_to_any_root_is_the_canonical_tree_and_writes_only_there),
        cmocka_unit_test(test_plan_reduce_moves_no_more_than_the_bound),
        cmocka_unit_test(test_plan_broadcast_from_any_root_reaches_all),
        cmocka_unit_test(test_plan_broadcast_chain_moves_one_piece_a_stage),
        cmocka_unit_test(test_plan_direct_and_halving_move_no_more_than_the_bound),
        cmocka_unit_test(test_plan_scratch_is_at_most_the_vector_for_many_bytes),
        cmocka_unit_test(test_plan_of_one_participant_has_no_stage),
        cmocka_unit_test(test_plan_doubling_of_a_power_of_two_sends_log_messages),
        cmocka_unit_test(test_plan_choose_by_name_takes_it),
        cmocka_unit_test(test_plan_choose_auto_takes_the_least_estimate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
