/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank leaves while the other has not taken yet what it sent: the other gets all of it, and then
 * hears that the rank has left, not that it crashed. The receiver is kept from reading by its
 * token; how long it is makes no difference to what must come out.
 *
 * And a rank that exits because of what it has done itself waits for no other one to end first; nor
 * does one stay for ever that has its words taken in sips.
 */
#undef NDEBUG
#include "multi/duo.h"

#include "clock.h"
#include "context_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BROADCASTS = 4, FLOATS = 16384, HELD_MS = 1500, EXIT_S_MAX = 10 };
/* Of 512 KiB; that takes 12 s, where it stays for 5. */
enum { SIP_BYTES = 8192, SIP_MS = 100, TAKEN_BYTES = 480 << 10 };

static void bound_buffer(horon_context_t *ctx, int peer, int option, int bytes)
{
    const int socket = duo_socket(ctx, peer);
    assert_true(socket >= 0);
    assert_int_equal(setsockopt(socket, SOL_SOCKET, option, &bytes, sizeof bytes), 0);
}

static horon_descriptor_t broadcast(float *data)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_BROADCAST;
    desc.dtype = HORON_FLOAT32;
    desc.flags = HORON_IN_ORDER;
    desc.src = desc.dst = data;
    desc.count = FLOATS;
    return desc;
}

static void *leave(void *ctx)
{
    horon_context_destroy(ctx);
    return NULL;
}

static void test_leaving_rank_stays_until_all_has_been_taken(void **state)
{
    static const char *const settings[] = {"SHM=0", "PEER_TIMEOUT=60s", NULL};
    static float out[BROADCASTS][FLOATS], in[BROADCASTS][FLOATS];
    struct duo duo;
    pthread_t leaver;
    float more = 1;
    (void)state;
    duo_make(&duo, settings);
    bound_buffer(duo.ctx[0], 1, SO_SNDBUF, 1 << 20);
    bound_buffer(duo.ctx[1], 0, SO_RCVBUF, 4096);
    horon_token_take(duo.ctx[1]);
    for (int i = 0; i < BROADCASTS; i++) {
        for (int k = 0; k < FLOATS; k++)
            out[i][k] = (float)(i * FLOATS + k);
        const horon_descriptor_t desc = broadcast(out[i]);
        char why[HORON_ERROR_TEXT_BYTES] = "";
        if (horon_run(duo.ctx[0], &desc, -1, why, sizeof why) != HORON_OK)
            fail_msg("%s", why);
    }
    assert_int_equal(pthread_create(&leaver, NULL, leave, duo.ctx[0]), 0);
    duo.ctx[0] = NULL;
    usleep(HELD_MS * 1000); /* longer than a rank once stayed; nothing here waits for it */
    horon_token_release(duo.ctx[1]);
    horon_request_t *late = duo_submit(duo.ctx[1], "late", &more); /* to all that are there */
    for (int i = 0; i < BROADCASTS; i++) {
        const horon_descriptor_t desc = broadcast(in[i]);
        char why[HORON_ERROR_TEXT_BYTES] = "";
        if (horon_run(duo.ctx[1], &desc, -1, why, sizeof why) != HORON_OK)
            fail_msg("broadcast %d: %s", i, why);
        assert_memory_equal(in[i], out[i], sizeof in[i]);
    }
    assert_int_equal(horon_wait(late, HORON_HOST_DONE, DUO_DEADLINE_S * 1000), HORON_ERR_CLOSED);
    assert_non_null(strstr(horon_request_error(late), "has shut down its context"));
    horon_release(late);
    pthread_join(leaver, NULL);
    duo_end(&duo);
}

static _Atomic bool has_left;

static void *leave_and_say(void *ctx)
{
    horon_context_destroy(ctx);
    atomic_store(&has_left, true);
    return NULL;
}

static void test_leaving_rank_does_not_stay_for_one_that_sips(void **state)
{
    static const char *const settings[] = {"SHM=0", "PEER_TIMEOUT=500ms", NULL};
    static float out[FLOATS];
    static char sip[SIP_BYTES];
    struct duo duo;
    pthread_t leaver;
    (void)state;
    duo_make(&duo, settings);
    bound_buffer(duo.ctx[0], 1, SO_SNDBUF, 1 << 21);
    bound_buffer(duo.ctx[1], 0, SO_RCVBUF, SIP_BYTES);
    horon_token_take(duo.ctx[1]);
    for (int i = 0; i < 2 * BROADCASTS; i++) {
        const horon_descriptor_t desc = broadcast(out);
        (void)horon_run(duo.ctx[0], &desc, -1, NULL,
                        0); /* a busy machine may find the other lost */
    }
    assert_int_equal(pthread_create(&leaver, NULL, leave_and_say, duo.ctx[0]), 0);
    duo.ctx[0] = NULL;
    for (ssize_t taken = 0; taken < TAKEN_BYTES && !atomic_load(&has_left);) {
        const ssize_t got = recv(duo_socket(duo.ctx[1], 0), sip, sizeof sip, MSG_DONTWAIT);
        taken += got > 0 ? got : 0;
        poll(NULL, 0, SIP_MS);
    }
    assert_true(atomic_load(&has_left));
    pthread_join(leaver, NULL);
    horon_token_release(duo.ctx[1]);
    duo_end(&duo);
}

/* All ranks are to blame, and none of them ends: each would wait as long as a rank may. */
static void test_leaving_rank_that_is_to_blame_waits_for_nobody(void **state)
{
    static const char *const settings[] = {NULL};
    static float data[2][FLOATS];
    horon_request_t *requests[2];
    struct duo duo;
    (void)state;
    duo_make(&duo, settings);
    for (int rank = 0; rank < 2; rank++) {
        horon_descriptor_t desc = broadcast(data[rank]);
        desc.verb = HORON_ALLREDUCE;
        desc.redop = rank ? HORON_MAX : HORON_SUM;
        assert_int_equal(horon_submit(duo.ctx[rank], &desc, &requests[rank]), HORON_OK);
    }
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(horon_wait(requests[rank], HORON_HOST_DONE, DUO_DEADLINE_S * 1000),
                         HORON_ERR_MISMATCH);
        horon_release(requests[rank]);
    }
    const uint64_t begun_ns = horon_clock_ns();
    assert_int_equal(horon_context_exit(duo.ctx[0], "a difference"), HORON_OK);
    assert_true(horon_clock_ns() - begun_ns < EXIT_S_MAX * UINT64_C(1000000000));
    duo_end(&duo);
}

static void *exit_of_first(void *arg)
{
    struct duo *duo = arg;
    assert_int_equal(horon_context_exit(duo->ctx[0], "what it follows from"), HORON_OK);
    return NULL;
}

/* The one that failed may wait for it, where horon cannot see it: in the program's MPI_Finalize().
 */
static void test_leaving_rank_that_stays_for_another_says_so(void **state)
{
    static const char *const settings[] = {"SHM=0", NULL};
    struct duo duo;
    float x = 0;
    pthread_t follower;
    (void)state;
    duo_make(&duo, settings);
    horon_request_t *waiting = duo_submit(duo.ctx[0], "x", &x);
    assert_int_equal(horon_context_exit(duo.ctx[1], "an exception"), HORON_OK);
    duo_expect_end(waiting, HORON_ERR_PEER_LOST);
    assert_int_equal(pthread_create(&follower, NULL, exit_of_first, &duo), 0);
    duo_wait_to_hear(
        &duo, "warn: stays for up to 10 s until a rank has ended: the launcher is to see the "
              "end of rank 1, for which the job failed, before this one's");
    horon_context_destroy(duo.ctx[1]);
    duo.ctx[1] = NULL;
    pthread_join(follower, NULL);
    duo_end(&duo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leaving_rank_stays_until_all_has_been_taken),
        cmocka_unit_test(test_leaving_rank_does_not_stay_for_one_that_sips),
        cmocka_unit_test(test_leaving_rank_that_is_to_blame_waits_for_nobody),
        cmocka_unit_test(test_leaving_rank_that_stays_for_another_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
