/* SPDX-License-Identifier: Apache-2.0 */
/* The tables and the tree for equal and unequal hosts, ranks in any mixture. */
#undef NDEBUG
#include "topology/topology.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#define RANKS_MAX 17

static void make(struct horon_topology *topology, int rank, int size, const int *leader_of)
{
    char names[RANKS_MAX][64];
    struct horon_error error = {0};
    memset(names, 0, sizeof names);
    for (int r = 0; r < size; r++)
        snprintf(names[r], sizeof names[r], "host-%d", r);
    assert_int_equal(
        horon_topology_init(topology, rank, size, leader_of, (const char(*)[64])names, &error),
        HORON_OK);
}

static void test_topology_one_rank_is_its_own_root(void **state)
{
    struct horon_topology topology;
    const int leader_of[] = {0};
    int children[1];
    (void)state;
    make(&topology, 0, 1, leader_of);
    assert_int_equal(topology.host_count, 1);
    assert_int_equal(horon_topology_parent(&topology, 0), -1);
    assert_int_equal(horon_topology_children(&topology, 0, children), 0);
    assert_int_equal(horon_topology_host_size_max(&topology), 1);
    assert_false(horon_topology_linked(&topology, 0, 0));
    horon_topology_deinit(&topology);
}

/* Hosts {0 2 5}, {1 4}, {3}: numbered by their lowest ranks, ranks in order within. */
static void test_topology_mixed_ranks_are_numbered_by_lowest(void **state)
{
    struct horon_topology topology;
    const int leader_of[] = {0, 1, 0, 3, 1, 0};
    const int host_of[] = {0, 1, 0, 2, 1, 0};
    const int local_rank_of[] = {0, 0, 1, 0, 1, 2};
    (void)state;
    make(&topology, 4, 6, leader_of);
    assert_int_equal(topology.rank, 4);
    assert_int_equal(topology.host_count, 3);
    for (int r = 0; r < 6; r++) {
        assert_int_equal(topology.host_of[r], host_of[r]);
        assert_int_equal(topology.local_rank_of[r], local_rank_of[r]);
        assert_int_equal(horon_topology_rank_at(&topology, host_of[r], local_rank_of[r]), r);
    }
    assert_int_equal(horon_topology_host_size(&topology, 0), 3);
    assert_int_equal(horon_topology_host_size(&topology, 1), 2);
    assert_int_equal(horon_topology_host_size(&topology, 2), 1);
    assert_int_equal(horon_topology_leader(&topology, 1), 1);
    assert_int_equal(horon_topology_host_size_max(&topology), 3);
    assert_string_equal(topology.host_name[1], "host-1");
    assert_string_equal(topology.host_name[2], "host-3");
    horon_topology_deinit(&topology);
}

static void test_topology_no_partition_is_refused(void **state)
{
    static const int bad[][3] = {{0, 0, 1}, {1, 1, 1}, {0, 2, 2}, {0, -1, 2}, {0, 1, 3}};
    const char names[3][64] = {"a", "b", "c"};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct horon_topology topology;
        struct horon_error error = {0};
        assert_int_equal(horon_topology_init(&topology, 0, 3, bad[i], names, &error),
                         HORON_ERR_PROTO);
        assert_true(error.text[0]);
        assert_null(topology.host_of);
    }
}

static void test_topology_rank_out_of_range_is_refused(void **state)
{
    struct horon_topology topology;
    struct horon_error error = {0};
    const int leader_of[] = {0};
    const char names[1][64] = {"a"};
    (void)state;
    assert_int_equal(horon_topology_init(&topology, 1, 1, leader_of, names, &error),
                     HORON_ERR_PROTO);
    assert_int_equal(horon_topology_init(&topology, -1, 1, leader_of, names, &error),
                     HORON_ERR_PROTO);
}

/* Five hosts of one rank, then of two: the binomial tree over hosts, members below leaders. */
static void test_topology_tree_of_five_hosts_is_binomial(void **state)
{
    struct horon_topology topology;
    const int leader_of[] = {0, 1, 2, 3, 4, 0, 1, 2, 3, 4};
    const int parent[] = {-1, 0, 0, 2, 0, 0, 1, 2, 3, 4};
    int children[9];
    (void)state;
    make(&topology, 0, 10, leader_of);
    for (int r = 0; r < 10; r++)
        assert_int_equal(horon_topology_parent(&topology, r), parent[r]);
    assert_int_equal(horon_topology_children(&topology, 0, children), 4);
    assert_int_equal(children[0], 1);
    assert_int_equal(children[1], 2);
    assert_int_equal(children[2], 4);
    assert_int_equal(children[3], 5);
    assert_int_equal(horon_topology_children(&topology, 9, children), 0);
    horon_topology_deinit(&topology);
}

/* Every rank is the child of its parent, once, and climbing ends at rank 0. */
static void check_tree(const struct horon_topology *topology)
{
    int seen[RANKS_MAX] = {0};
    for (int r = 0; r < topology->size; r++) {
        int children[RANKS_MAX];
        int count = horon_topology_children(topology, r, children);
        for (int i = 0; i < count; i++) {
            assert_int_equal(horon_topology_parent(topology, children[i]), r);
            assert_true(i == 0 || children[i - 1] < children[i]);
            seen[children[i]]++;
        }
        int steps = 0, at = r;
        while (horon_topology_parent(topology, at) >= 0) {
            at = horon_topology_parent(topology, at);
            assert_true(++steps <= topology->size);
        }
        assert_int_equal(at, 0);
    }
    for (int r = 1; r < topology->size; r++)
        assert_int_equal(seen[r], 1);
    assert_int_equal(seen[0], 0);
}

/* Linked: by its words, for every pair. */
static void check_links(const struct horon_topology *topology)
{
    const int segments = horon_topology_host_size_max(topology);
    for (int a = 0; a < topology->size; a++) {
        for (int b = 0; b < topology->size; b++) {
            const int host_a = topology->host_of[a], host_b = topology->host_of[b];
            bool want =
                horon_topology_parent(topology, a) == b || horon_topology_parent(topology, b) == a;
            for (int k = 0; k < segments; k++)
                want =
                    want ||
                    (horon_topology_rank_at(topology, host_a,
                                            k % horon_topology_host_size(topology, host_a)) == a &&
                     horon_topology_rank_at(topology, host_b,
                                            k % horon_topology_host_size(topology, host_b)) == b);
            want = want && host_a != host_b;
            assert_int_equal(horon_topology_linked(topology, a, b), want);
            assert_int_equal(horon_topology_linked(topology, b, a), want);
        }
    }
}

/* All ways to deal 1..17 ranks to 1..5 hosts in turns of unequal length. */
static void test_topology_unequal_hosts_keep_tree_and_links(void **state)
{
    (void)state;
    for (int size = 1; size <= RANKS_MAX; size++) {
        for (int hosts = 1; hosts <= 5 && hosts <= size; hosts++) {
            int leader_of[RANKS_MAX], leader[5] = {-1, -1, -1, -1, -1};
            struct horon_topology topology;
            for (int r = 0; r < size; r++) {
                int host = r < hosts ? r : (r * r) % hosts;
                if (leader[host] < 0)
                    leader[host] = r;
                leader_of[r] = leader[host];
            }
            make(&topology, size - 1, size, leader_of);
            assert_int_equal(topology.host_count, hosts);
            check_tree(&topology);
            check_links(&topology);
            horon_topology_deinit(&topology);
        }
    }
}

/* Ranks 4, 0, 5 and 2 of hosts {0 1 4}, {2 5} and {3}. */
static void test_topology_of_some_ranks_follows_their_order(void **state)
{
    static const int leader_of[] = {0, 0, 2, 3, 0, 2}, ranks[] = {4, 0, 5, 2};
    struct horon_topology job, some;
    struct horon_error error = {0};
    (void)state;
    make(&job, 5, 6, leader_of);
    assert_int_equal(horon_topology_of(&job, ranks, 4, &some, &error), HORON_OK);
    assert_int_equal(some.rank, 2);
    assert_int_equal(some.host_count, 2);
    assert_string_equal(some.host_name[1], job.host_name[1]);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(some.host_of[i], i / 2);
        assert_int_equal(some.local_rank_of[i], i % 2);
    }
    horon_topology_deinit(&some);
    horon_topology_deinit(&job);
}

/* Hosts {0 1 2}, {3} and {4 5}, the last two of which may be containers of one machine. */
static void test_topology_is_crowded_where_ranks_outnumber_cores(void **state)
{
    static const int leader_of[] = {0, 0, 0, 3, 4, 4};
    static const struct {
        struct horon_machine machines[6];
        bool crowded;
    } cases[] = {
        {{{0, 0}}, false}, /* nothing is known */
        {{{1, 3}, {1, 3}, {1, 3}, {2, 1}, {3, 2}, {3, 2}}, false},
        {{{1, 3}, {1, 2}, {1, 0}, {2, 1}, {3, 2}, {3, 2}}, true}, /* one sees fewer */
        {{{1, 0}, {1, 3}, {1, 0}, {2, 1}, {3, 2}, {3, 2}}, false},
        {{{1, 3}, {1, 3}, {1, 3}, {2, 3}, {2, 3}, {2, 3}}, false},
        {{{1, 3}, {1, 3}, {1, 3}, {2, 2}, {2, 2}, {2, 2}}, true},
        {{{1, 3}, {1, 3}, {1, 3}, {2, 2}, {2, 8}, {2, 8}}, true},
        {{{0, 3}, {0, 3}, {0, 3}, {0, 2}, {0, 2}, {0, 2}}, false}, /* any may be another */
        {{{0, 3}, {0, 3}, {0, 3}, {0, 2}, {0, 1}, {0, 1}}, true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct horon_topology topology;
        make(&topology, 5, 6, leader_of);
        for (int rank = 0; rank < 6; rank++)
            horon_topology_put_machine(&topology, rank, &cases[i].machines[rank]);
        assert_int_equal(horon_topology_is_crowded(&topology), cases[i].crowded);
        horon_topology_deinit(&topology);
    }
}

/* Of the same hosts, with 2, 1 and 2 cores; the last two are one machine. */
static void test_topology_of_some_ranks_is_crowded_by_its_own(void **state)
{
    static const int leader_of[] = {0, 0, 0, 3, 4, 4};
    static const struct horon_machine machines[] = {{1, 8}, {1, 8}, {1, 2}, {2, 8}, {2, 2}, {2, 8}};
    static const struct {
        int ranks[6], size;
        bool crowded;
    } cases[] = {
        {{0, 5}, 2, false},      {{0, 1, 5}, 3, false}, /* by what a rank sees that is not in it */
        {{5, 1, 0, 2}, 4, true}, {{4, 5}, 2, false},       {{3, 5}, 2, false},
        {{5, 3, 4}, 3, true},    {{0, 3, 1, 5}, 4, false},
    };
    struct horon_error error = {0};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int member = 0; member < cases[i].size; member++) {
            struct horon_topology job, some;
            make(&job, cases[i].ranks[member], 6, leader_of);
            for (int rank = 0; rank < 6; rank++)
                horon_topology_put_machine(&job, rank, &machines[rank]);
            assert_int_equal(horon_topology_of(&job, cases[i].ranks, cases[i].size, &some, &error),
                             HORON_OK);
            assert_int_equal(horon_topology_is_crowded(&some), cases[i].crowded);
            horon_topology_deinit(&some);
            horon_topology_deinit(&job);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_topology_one_rank_is_its_own_root),
        cmocka_unit_test(test_topology_mixed_ranks_are_numbered_by_lowest),
        cmocka_unit_test(test_topology_no_partition_is_refused),
        cmocka_unit_test(test_topology_rank_out_of_range_is_refused),
        cmocka_unit_test(test_topology_tree_of_five_hosts_is_binomial),
        cmocka_unit_test(test_topology_unequal_hosts_keep_tree_and_links),
        cmocka_unit_test(test_topology_of_some_ranks_follows_their_order),
        cmocka_unit_test(test_topology_is_crowded_where_ranks_outnumber_cores),
        cmocka_unit_test(test_topology_of_some_ranks_is_crowded_by_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
