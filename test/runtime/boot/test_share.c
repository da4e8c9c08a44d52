/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Three ranks of one host share memory, in one thread: the first leads. A rank that hangs up before
 * all notes have gone around is blamed by name; one that does so afterwards fails nobody else.
 */
#undef NDEBUG
#include "boot/share.h"

#include "boots.h"
#include "host/note.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RANKS = 3, ARENA_BYTES = 8192, CONTROL_BYTES = 4096, TURNS_MAX = 10000 };

struct host {
    struct horon_pump pump; /* turns all ranks */
    struct horon_boot boots[RANKS];
    struct horon_share *shares[RANKS];
    int fds_before;
};

static void open_rank(struct host *host, int rank)
{
    static const int leader_of[RANKS];
    static const char names[RANKS][64] = {"h", "h", "h"};
    struct horon_error error = {0};
    struct horon_boot *boot = &host->boots[rank];
    const struct horon_share_options options = {.pump = &host->pump,
                                                .boot = boot,
                                                .control_bytes = CONTROL_BYTES,
                                                .arena_bytes = ARENA_BYTES,
                                                .group_ranks = RANKS};
    horon_boot_init(boot);
    assert_int_equal(horon_topology_init(&boot->topology, rank, RANKS, leader_of, names, &error),
                     HORON_OK);
    assert_int_equal(horon_share_create(&options, &host->shares[rank], &error), HORON_OK);
}

static void host_open(struct host *host)
{
    struct horon_error error = {0};
    memset(host, 0, sizeof *host);
    host->fds_before = count_fds();
    assert_int_equal(horon_pump_init(&host->pump, &error), HORON_OK);
    for (int rank = 0; rank < RANKS; rank++)
        open_rank(host, rank);
}

static void leave(struct host *host, int rank)
{
    horon_share_destroy(host->shares[rank]);
    host->shares[rank] = NULL;
    horon_boot_deinit(&host->boots[rank]);
}

static void host_close(struct host *host)
{
    for (int rank = 0; rank < RANKS; rank++)
        if (host->shares[rank])
            leave(host, rank);
    horon_pump_deinit(&host->pump);
    assert_int_equal(count_fds(), host->fds_before);
}

/* @return the member's end, if it is not given to its share */
static int connect_member(struct host *host, int member, bool takes_part)
{
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    host->boots[0].local[member].socket = ends[0];
    horon_share_connected(host->shares[0], member);
    if (takes_part) {
        host->boots[member].local[0].socket = ends[1];
        horon_share_connected(host->shares[member], 0);
    }
    return takes_part ? -1 : ends[1];
}

/* Turns until a rank has it all, or has failed. */
static horon_status_t outcome(struct host *host, int rank, struct horon_error *error)
{
    horon_status_t status = HORON_AGAIN;
    for (int turn = 0; status == HORON_AGAIN; turn++) {
        assert_true(turn < TURNS_MAX);
        horon_pump_turn(&host->pump, 0);
        status = horon_share_state(host->shares[rank], error);
    }
    return status;
}

static void all_share(struct host *host)
{
    struct horon_error error = {0};
    for (int member = 1; member < RANKS; member++)
        (void)connect_member(host, member, true);
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(outcome(host, rank, &error), HORON_OK);
}

static void test_share_maps_the_memory_of_all_at_each(void **state)
{
    struct host host;
    (void)state;
    host_open(&host);
    all_share(&host);
    for (int owner = 0; owner < RANKS; owner++) {
        ((uint8_t *)host.boots[owner].local[owner].arena.base)[ARENA_BYTES - 1] = (uint8_t)owner;
        for (int rank = 0; rank < RANKS; rank++) {
            const uint8_t *seen = host.boots[rank].local[owner].arena.base;
            assert_int_equal(seen[ARENA_BYTES - 1], owner);
        }
    }
    host_close(&host);
}

static void test_share_blames_the_rank_that_hung_up_too_early(void **state)
{
    struct host host;
    struct horon_error error = {0};
    (void)state;
    host_open(&host);
    (void)connect_member(&host, 1, true);
    close(connect_member(&host, 2, false));
    assert_int_equal(outcome(&host, 0, &error), HORON_ERR_PEER_LOST);
    assert_non_null(strstr(error.text, "sharing memory with rank 2 (h) failed: "));
    assert_int_equal(outcome(&host, 1, &error), HORON_ERR_PEER_LOST); /* the leader hung up */
    assert_non_null(strstr(error.text, "sharing memory with rank 0 (h) failed: "));
    host_close(&host);
}

static void test_share_outlives_a_rank_that_leaves_afterwards(void **state)
{
    struct host host;
    struct horon_note note;
    struct horon_error error = {0};
    (void)state;
    host_open(&host);
    all_share(&host);
    leave(&host, 2);
    horon_pump_turn(&host.pump, 0);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(horon_share_state(host.shares[rank], &error), HORON_OK);
        horon_share_destroy(host.shares[rank]);
        host.shares[rank] = NULL;
    }
    assert_true(host.boots[0].local[1].socket >= 0); /* the others still watch each other */
    assert_true(host.boots[1].local[0].socket >= 0);
    assert_true(host.boots[0].local[2].socket >= 0);
    assert_int_equal(horon_note_receive(host.boots[0].local[2].socket, &note, &error),
                     HORON_ERR_PEER_LOST); /* and the leader can tell that the third is gone */
    for (int rank = 0; rank < 2; rank++)
        horon_boot_deinit(&host.boots[rank]);
    host_close(&host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_share_maps_the_memory_of_all_at_each),
        cmocka_unit_test(test_share_blames_the_rank_that_hung_up_too_early),
        cmocka_unit_test(test_share_outlives_a_rank_that_leaves_afterwards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
