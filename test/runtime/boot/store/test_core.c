/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions and rounds without sockets: whole, split, oversize, late, left and failed. */
#undef NDEBUG
#include "boot/store/core.h"
#include "boot/store/store.h"

#include "boot/joining.h"

#include "codec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_MAX 17
#define MS UINT64_C(1000000)

struct client {
    struct horon_store_member *member;
    int wakes;
    uint8_t *got; /* the frame that came, without its length */
    size_t got_bytes;
    bool whole; /* of the last FAIL */
};

struct world {
    struct horon_store_core *core;
    int size;
    struct client clients[RANKS_MAX];
};

static void count_wake(void *user)
{
    struct client *client = user;
    client->wakes++;
}

static void world_init(struct world *world, int size)
{
    memset(world, 0, sizeof *world);
    world->size = size;
    world->core = horon_store_core_create(size, count_wake);
    assert_non_null(world->core);
}

static void join(struct world *world, int rank)
{
    struct client *client = &world->clients[rank];
    assert_int_equal(horon_store_core_join(world->core, rank, client, &client->member), HORON_OK);
}

static void leave(struct world *world, int rank)
{
    struct client *client = &world->clients[rank];
    if (client->member)
        horon_store_core_leave(client->member);
    free(client->got);
    memset(client, 0, sizeof *client);
}

static void world_deinit(struct world *world)
{
    for (int r = 0; r < world->size; r++)
        leave(world, r);
    horon_store_core_destroy(world->core);
}

static bool last_round; /* what the PUTs say */

static size_t make_put(uint8_t *frame, size_t limit, uint32_t round, uint32_t wait_ms,
                       const void *blob, size_t bytes)
{
    struct horon_writer out = horon_writer_over(frame, limit);
    horon_write_u32(&out, (uint32_t)(HORON_STORE_PUT_BYTES - 4 + bytes));
    horon_write_u8(&out, HORON_STORE_PUT);
    horon_write_u8(&out, last_round);
    horon_write_u32(&out, round);
    horon_write_u32(&out, wait_ms);
    horon_write_bytes(&out, blob, bytes);
    assert_true(out.ok);
    return out.used;
}

static horon_status_t put(struct world *world, int rank, uint32_t round, uint32_t wait_ms,
                          const char *blob)
{
    uint8_t frame[512];
    size_t bytes = make_put(frame, sizeof frame, round, wait_ms, blob, strlen(blob));
    return horon_store_core_feed(world->clients[rank].member, frame, bytes, 0);
}

/* Takes what the core has for a rank, a few bytes at a time. */
static void drain(struct world *world, int rank)
{
    struct client *client = &world->clients[rank];
    struct horon_store_inbox inbox = {.limit = horon_store_frame_bytes_max(world->size)};
    size_t bytes;
    horon_status_t status = HORON_AGAIN;
    for (const uint8_t *out; (out = horon_store_core_out(client->member, &bytes));) {
        size_t taken, part = bytes < 3 ? bytes : 3;
        status = horon_store_inbox_feed(&inbox, out, part, &taken);
        assert_int_equal(taken, part);
        horon_store_core_sent(client->member, part);
        if (status == HORON_OK)
            break;
    }
    assert_int_equal(status, HORON_OK);
    free(client->got);
    client->got_bytes = inbox.used;
    client->got = malloc(inbox.used);
    assert_non_null(client->got);
    memcpy(client->got, inbox.body, inbox.used);
    horon_store_inbox_deinit(&inbox);
}

static void expect_all(struct world *world, int rank, uint32_t round, const char *const *blobs)
{
    drain(world, rank);
    const struct client *client = &world->clients[rank];
    struct horon_reader in = horon_reader_over(client->got, client->got_bytes);
    assert_int_equal(horon_read_u8(&in), HORON_STORE_ALL);
    assert_int_equal(horon_read_u32(&in), round);
    for (int r = 0; r < world->size; r++) {
        uint32_t bytes = horon_read_u32(&in);
        const void *blob = horon_read_view(&in, bytes);
        assert_int_equal(bytes, strlen(blobs[r]));
        assert_memory_equal(blob, blobs[r], bytes);
    }
    assert_true(horon_reader_finished(&in));
}

static void expect_fail(struct world *world, int rank, horon_status_t status, const char *text)
{
    drain(world, rank);
    const struct client *client = &world->clients[rank];
    struct horon_reader in = horon_reader_over(client->got, client->got_bytes);
    assert_int_equal(horon_read_u8(&in), HORON_STORE_FAIL);
    world->clients[rank].whole = horon_read_u8(&in);
    assert_int_equal((int32_t)horon_read_u32(&in), status);
    char got[HORON_ERROR_TEXT_BYTES] = "";
    memcpy(got, client->got + in.used, client->got_bytes - in.used);
    if (!strstr(got, text))
        fail_msg("'%s' lacks '%s'", got, text);
}

static const char *const words[RANKS_MAX] = {"a",  "",   "ccc", "dd", "e", "f", "g", "h", "i",
                                             "jj", "kk", "l",   "m",  "n", "o", "p", "q"};

static void test_store_rounds_reach_everybody(void **state)
{
    static const int sizes[] = {1, 2, 3, 5, 8, 17};
    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        struct world world;
        world_init(&world, sizes[s]);
        for (int r = 0; r < world.size; r++)
            join(&world, r);
        for (uint32_t round = 0; round < 3; round++) {
            for (int i = 0; i < world.size; i++) {
                const int rank = (i * 7 + 1) % world.size; /* 7 divides none of the sizes */
                assert_int_equal(put(&world, rank, round, 1000, words[rank]), HORON_OK);
            }
            for (int r = 0; r < world.size; r++)
                expect_all(&world, r, round, words);
        }
        world_deinit(&world);
    }
}

static void test_store_any_split_of_a_put_is_taken(void **state)
{
    uint8_t frame[64];
    const char *const blobs[] = {"hello", "you"};
    size_t bytes = make_put(frame, sizeof frame, 0, 1000, "hello", 5);
    (void)state;
    for (size_t chunk = 1; chunk <= bytes; chunk++) {
        struct world world;
        world_init(&world, 2);
        join(&world, 0);
        join(&world, 1);
        for (size_t at = 0; at < bytes; at += chunk) {
            size_t part = bytes - at < chunk ? bytes - at : chunk;
            assert_int_equal(horon_store_core_feed(world.clients[0].member, frame + at, part, 0),
                             HORON_OK);
        }
        assert_int_equal(put(&world, 1, 0, 1000, "you"), HORON_OK);
        expect_all(&world, 0, 0, blobs);
        expect_all(&world, 1, 0, blobs);
        world_deinit(&world);
    }
}

static void test_store_oversize_frame_is_refused_before_it_comes(void **state)
{
    struct world world;
    uint8_t head[4];
    struct horon_writer out = horon_writer_over(head, sizeof head);
    (void)state;
    world_init(&world, 2);
    join(&world, 0);
    horon_write_u32(&out, HORON_STORE_PUT_BYTES - 4 + HORON_STORE_BLOB_BYTES_MAX + 1);
    assert_int_equal(horon_store_core_feed(world.clients[0].member, head, sizeof head, 0),
                     HORON_ERR_PROTO);
    world_deinit(&world);
}

static void test_store_largest_blob_is_taken(void **state)
{
    struct world world;
    const size_t limit = HORON_STORE_PUT_BYTES + HORON_STORE_BLOB_BYTES_MAX;
    uint8_t *frame = malloc(limit), *blob = calloc(1, HORON_STORE_BLOB_BYTES_MAX);
    (void)state;
    assert_non_null(frame);
    assert_non_null(blob);
    world_init(&world, 1);
    join(&world, 0);
    size_t bytes = make_put(frame, limit, 0, 1, blob, HORON_STORE_BLOB_BYTES_MAX);
    assert_int_equal(horon_store_core_feed(world.clients[0].member, frame, bytes, 0), HORON_OK);
    drain(&world, 0);
    assert_int_equal(world.clients[0].got_bytes, 5 + 4 + HORON_STORE_BLOB_BYTES_MAX);
    world_deinit(&world);
    free(frame);
    free(blob);
}

static void test_store_wrong_frames_are_refused(void **state)
{
    static const uint8_t frames[][16] = {
        {0, 0, 0, 0},                                /* empty */
        {10, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0}, /* no such type */
        {10, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0}, /* the server's */
        {10, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0}, /* another round */
        {10, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0}, /* neither last nor not */
        {9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0},     /* too short */
        {1, 0, 0, 0, 1},                             /* nothing but a type */
        {6, 0, 0, 0, 4, 0, 0, 0, 0, 'x'},            /* an abort that is well */
        {4, 0, 0, 0, 4, 255, 255, 255},              /* an abort cut short */
        {5, 0, 0, 0, 4, 255, 255, 255, 255},         /* an abort without a reason */
        {7, 0, 0, 0, 4, 255, 255, 255, 255, 0, 'x'}, /* a reason that says nothing */
    };
    static const size_t lengths[] = {4, 14, 14, 14, 14, 13, 5, 10, 8, 9, 11};
    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct world world;
        world_init(&world, 2);
        join(&world, 0);
        assert_int_equal(horon_store_core_feed(world.clients[0].member, frames[i], lengths[i], 0),
                         HORON_ERR_PROTO);
        world_deinit(&world);
    }
}

static void test_store_second_put_of_a_round_is_refused(void **state)
{
    struct world world;
    (void)state;
    world_init(&world, 2);
    join(&world, 0);
    assert_int_equal(put(&world, 0, 0, 1000, "x"), HORON_OK);
    assert_int_equal(put(&world, 0, 0, 1000, "x"), HORON_ERR_PROTO);
    world_deinit(&world);
}

static void test_store_limit_names_who_is_missing(void **state)
{
    struct world world;
    (void)state;
    world_init(&world, 8);
    for (int r = 0; r < 4; r++)
        join(&world, r);
    assert_int_equal(put(&world, 0, 0, 5, "x"), HORON_OK);
    assert_int_equal(put(&world, 2, 0, 9, "x"), HORON_OK);
    assert_true(horon_store_core_expire(world.core, 4 * MS) == 5 * MS);
    assert_true(horon_store_core_expire(world.core, 5 * MS) == UINT64_MAX);
    expect_fail(&world, 0, HORON_ERR_TIMEOUT, "ranks 4-7 never came");
    expect_fail(&world, 2, HORON_ERR_TIMEOUT, "ranks 1, 3 came but went no further");
    assert_int_equal(put(&world, 1, 0, 9, "x"), HORON_OK); /* too late: told so at once */
    expect_fail(&world, 1, HORON_ERR_TIMEOUT, "ranks 4-7 never came");
    world_deinit(&world);
}

static void test_store_no_limit_never_expires(void **state)
{
    struct world world;
    (void)state;
    world_init(&world, 2);
    join(&world, 0);
    assert_int_equal(put(&world, 0, 0, HORON_STORE_NO_LIMIT, "x"), HORON_OK);
    assert_true(horon_store_core_expire(world.core, UINT64_MAX - 1) == UINT64_MAX);
    world_deinit(&world);
}

static const char *host_of(void *arg, int rank)
{
    const char *const *hosts = arg;
    return hosts[rank];
}

static void test_store_hosts_of_missing_ranks_are_named(void **state)
{
    static const char *const hosts[] = {"a", "b", "b", "c", NULL, "d"};
    struct world world;
    (void)state;
    world_init(&world, 6);
    horon_store_core_name_hosts(world.core, host_of, (void *)(uintptr_t)hosts);
    join(&world, 0);
    join(&world, 3);
    assert_int_equal(put(&world, 0, 0, 1000, "x"), HORON_OK);
    leave(&world, 3);
    expect_fail(&world, 0, HORON_ERR_PEER_LOST,
                "rank 3 on c left while joining; ranks 1-2, 4-5 on b, d never came");
    world_deinit(&world);
}

static void test_store_leaving_early_fails_all(void **state)
{
    struct world world;
    (void)state;
    world_init(&world, 4);
    for (int r = 0; r < 3; r++)
        join(&world, r);
    assert_int_equal(put(&world, 0, 0, 1000, "x"), HORON_OK);
    leave(&world, 1);
    expect_fail(&world, 0, HORON_ERR_PEER_LOST, "rank 1 left while joining; rank 3 never came");
    assert_false(world.clients[0].whole);
    expect_fail(&world, 2, HORON_ERR_PEER_LOST, "rank 1 left"); /* though it did not wait */
    assert_int_equal(put(&world, 2, 0, 1000, "x"), HORON_OK);
    expect_fail(&world, 2, HORON_ERR_PEER_LOST, "rank 1 left");
    join(&world, 3);
    assert_int_equal(put(&world, 3, 0, 1000, "x"), HORON_OK);
    expect_fail(&world, 3, HORON_ERR_PEER_LOST, "rank 1 left");
    world_deinit(&world);
}

/* Wakes and bytes of a rank that should hear nothing. */
static void expect_silence(const struct world *world, int rank)
{
    size_t bytes;
    assert_null(horon_store_core_out(world->clients[rank].member, &bytes));
}

static void test_store_leaving_between_rounds_fails_all(void **state)
{
    struct world world;
    (void)state;
    world_init(&world, 2);
    join(&world, 0);
    join(&world, 1);
    assert_int_equal(put(&world, 0, 0, 1000, "a"), HORON_OK);
    assert_int_equal(put(&world, 1, 0, 1000, ""), HORON_OK);
    expect_all(&world, 0, 0, words);
    leave(&world, 1);
    expect_fail(&world, 0, HORON_ERR_PEER_LOST, "rank 1 left");
    world_deinit(&world);
}

static void test_store_leaving_after_the_last_round_is_fine(void **state)
{
    struct world world;
    (void)state;
    world_init(&world, 2);
    join(&world, 0);
    join(&world, 1);
    last_round = true;
    assert_int_equal(put(&world, 0, 0, 1000, "a"), HORON_OK);
    assert_int_equal(put(&world, 1, 0, 1000, ""), HORON_OK);
    last_round = false;
    expect_all(&world, 0, 0, words);
    leave(&world, 1);
    expect_silence(&world, 0);
    assert_int_equal(put(&world, 0, 1, 1000, "a"), HORON_ERR_PROTO); /* it said so itself */
    world_deinit(&world);
}

static void test_store_abort_tells_all_the_first_reason(void **state)
{
    uint8_t frame[64];
    struct world world;
    (void)state;
    world_init(&world, 3);
    for (int r = 0; r < 3; r++)
        join(&world, r);
    assert_int_equal(put(&world, 0, 0, 1000, "x"), HORON_OK);
    for (int r = 2; r >= 1; r--) {
        const char *text = r == 2 ? "no memory" : "rank 2 hung up";
        struct horon_writer out = horon_writer_over(frame, sizeof frame);
        horon_write_u32(&out, (uint32_t)(5 + strlen(text)));
        horon_write_u8(&out, HORON_STORE_ABORT);
        horon_write_u32(&out, (uint32_t)HORON_ERR_MEMORY);
        horon_write_bytes(&out, text, strlen(text));
        assert_int_equal(horon_store_core_feed(world.clients[r].member, frame, out.used, 0),
                         HORON_OK);
        for (int k = 0; k < 3; k++)
            if (r == 2 || k == 1)
                expect_fail(&world, k, HORON_ERR_MEMORY, "no memory");
        assert_true(world.clients[1].whole);
    }
    for (int r = 0; r < 3; r++)
        expect_silence(&world, r);
    world_deinit(&world);
}

/* A later release may know more statuses than this one: its text is told, as one of ours. */
static void test_store_unknown_status_becomes_one_of_ours(void **state)
{
    static const uint8_t abort_frame[] = {6, 0, 0, 0, HORON_STORE_ABORT, 0, 0, 0, 0x80, 'x'};
    static const uint8_t fail_frame[] = {7, 0, 0, 0, HORON_STORE_FAIL, 1, 0, 0, 0, 0x80, 'x'};
    struct horon_store_inbox inbox = {.limit = 100};
    struct horon_store_answer answer;
    struct horon_error error = {0};
    struct world world;
    size_t taken;
    (void)state;
    world_init(&world, 2);
    join(&world, 0);
    join(&world, 1);
    assert_int_equal(
        horon_store_core_feed(world.clients[0].member, abort_frame, sizeof abort_frame, 0),
        HORON_OK);
    expect_fail(&world, 1, HORON_ERR_PROTO, "x");
    world_deinit(&world);
    assert_int_equal(horon_store_inbox_feed(&inbox, fail_frame, sizeof fail_frame, &taken),
                     HORON_OK);
    assert_int_equal(horon_store_answer_decode(&inbox, 0, &answer, &error), HORON_OK);
    assert_int_equal(answer.why.status, HORON_ERR_PROTO);
    assert_string_equal(answer.why.text, "x");
    horon_store_inbox_deinit(&inbox);
}

static void test_round_of_unknown_status_becomes_one_of_ours(void **state)
{
    static const uint32_t numbers[] = {0x80000000, 1};
    (void)state;
    for (int i = 0; i < 2; i++) {
        uint8_t head[16], weight;
        struct horon_error how;
        struct horon_writer out = horon_writer_over(head, sizeof head);
        horon_write_u8(&out, 2);
        horon_write_u32(&out, numbers[i]);
        horon_write_string(&out, "x");
        struct horon_reader in = horon_reader_over(head, out.used);
        assert_int_equal(horon_round_head_read(&in, &weight, &how), i == 0);
        if (i == 0) {
            assert_int_equal(how.status, HORON_ERR_PROTO);
            assert_string_equal(how.text, "x");
        }
    }
}

static void test_store_sessions_follow_each_other(void **state)
{
    struct world world, second;
    const char *const other[] = {"x", "y"};
    (void)state;
    world_init(&world, 2);
    join(&world, 0);
    second = world;
    memset(second.clients, 0, sizeof second.clients);
    join(&second, 0); /* rank 0 again, before rank 1 came at all: the session after */
    join(&world, 1);
    assert_int_equal(put(&world, 0, 0, 1000, "a"), HORON_OK);
    assert_int_equal(put(&second, 0, 0, 1000, "x"), HORON_OK);
    assert_int_equal(put(&world, 1, 0, 1000, ""), HORON_OK);
    expect_all(&world, 0, 0, words);
    expect_all(&world, 1, 0, words);
    assert_int_equal(horon_store_core_full_sessions(world.core), 1);
    join(&second, 1);
    assert_int_equal(put(&second, 1, 0, 1000, "y"), HORON_OK);
    expect_all(&second, 0, 0, other);
    expect_all(&second, 1, 0, other);
    assert_int_equal(horon_store_core_full_sessions(world.core), 2);
    leave(&second, 0);
    leave(&second, 1);
    world_deinit(&world);
}

static void test_store_many_sessions_leave_nothing(void **state)
{
    struct world world;
    (void)state;
    world_init(&world, 3);
    for (int k = 0; k < 200; k++) {
        for (int r = 0; r < 3; r++)
            join(&world, r);
        for (int r = 0; r < 3; r++)
            leave(&world, r);
    }
    assert_int_equal(horon_store_core_full_sessions(world.core), 200);
    world_deinit(&world);
}

static void test_store_too_many_open_sessions_are_refused(void **state)
{
    struct horon_store_member *members[100];
    struct world world;
    int count = 0;
    (void)state;
    world_init(&world, 2);
    while (count < 100 &&
           horon_store_core_join(world.core, 0, &world.clients[0], &members[count]) == HORON_OK)
        count++;
    assert_true(count > 1 && count < 100);
    while (count)
        horon_store_core_leave(members[--count]);
    world_deinit(&world);
}

static void test_store_joined_are_told(void **state)
{
    struct world world;
    (void)state;
    world_init(&world, 4);
    assert_false(horon_store_core_joined(world.core, 0));
    join(&world, 1);
    assert_true(horon_store_core_joined(world.core, 1));
    assert_false(horon_store_core_joined(world.core, 2));
    assert_false(horon_store_core_joined(world.core, -1));
    assert_false(horon_store_core_joined(world.core, 4));
    join(&world, 0);
    join(&world, 2);
    join(&world, 3);
    for (int r = 0; r < 4; r++)
        leave(&world, r);
    assert_true(horon_store_core_joined(world.core, 3));
    world_deinit(&world);
}

static void test_store_failed_by_launcher_tells_all(void **state)
{
    struct world world;
    (void)state;
    world_init(&world, 3);
    horon_store_core_fail(world.core, HORON_ERR_PEER_LOST, "rank 2 died");
    join(&world, 0);
    assert_int_equal(put(&world, 0, 0, 1000, "x"), HORON_OK);
    expect_fail(&world, 0, HORON_ERR_PEER_LOST, "rank 2 died");
    world_deinit(&world);

    world_init(&world, 3);
    join(&world, 0);
    assert_int_equal(put(&world, 0, 0, 1000, "x"), HORON_OK);
    assert_int_equal(world.clients[0].wakes, 0);
    horon_store_core_fail(world.core, HORON_ERR_PEER_LOST, "rank 2 died");
    assert_int_equal(world.clients[0].wakes, 1);
    expect_fail(&world, 0, HORON_ERR_PEER_LOST, "rank 2 died");
    world_deinit(&world);
}

static void test_store_unknown_rank_is_refused(void **state)
{
    struct world world;
    struct horon_store_member *member;
    (void)state;
    world_init(&world, 2);
    assert_int_equal(horon_store_core_join(world.core, 2, NULL, &member), HORON_ERR_INVALID);
    assert_int_equal(horon_store_core_join(world.core, -1, NULL, &member), HORON_ERR_INVALID);
    world_deinit(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store_rounds_reach_everybody),
        cmocka_unit_test(test_store_any_split_of_a_put_is_taken),
        cmocka_unit_test(test_store_oversize_frame_is_refused_before_it_comes),
        cmocka_unit_test(test_store_largest_blob_is_taken),
        cmocka_unit_test(test_store_wrong_frames_are_refused),
        cmocka_unit_test(test_store_second_put_of_a_round_is_refused),
        cmocka_unit_test(test_store_limit_names_who_is_missing),
        cmocka_unit_test(test_store_no_limit_never_expires),
        cmocka_unit_test(test_store_hosts_of_missing_ranks_are_named),
        cmocka_unit_test(test_store_leaving_early_fails_all),
        cmocka_unit_test(test_store_leaving_between_rounds_fails_all),
        cmocka_unit_test(test_store_leaving_after_the_last_round_is_fine),
        cmocka_unit_test(test_store_abort_tells_all_the_first_reason),
        cmocka_unit_test(test_store_unknown_status_becomes_one_of_ours),
        cmocka_unit_test(test_round_of_unknown_status_becomes_one_of_ours),
        cmocka_unit_test(test_store_sessions_follow_each_other),
        cmocka_unit_test(test_store_many_sessions_leave_nothing),
        cmocka_unit_test(test_store_too_many_open_sessions_are_refused),
        cmocka_unit_test(test_store_joined_are_told),
        cmocka_unit_test(test_store_failed_by_launcher_tells_all),
        cmocka_unit_test(test_store_unknown_rank_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
