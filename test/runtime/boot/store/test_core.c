/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions and rounds without sockets: whole, split, oversize, late, left and failed. */
#undef NDEBUG
#include "boot/store/server.h"
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

struct client {
    struct horon_store_member *member;
    bool whole; /* of the last FAIL, as the blame */
    struct horon_blame blame;
};

struct world {
    struct horon_store_server *core;
    int size;
    struct client clients[RANKS_MAX];
};

static void world_init_named(struct world *world, int size, const char *const *hosts);

static void world_init(struct world *world, int size)
{
    world_init_named(world, size, NULL);
}

static void join(struct world *world, int rank)
{
    struct client *client = &world->clients[rank];
    assert_int_equal(horon_store_server_join(world->core, rank, &client->member), HORON_OK);
}

static void leave(struct world *world, int rank)
{
    struct client *client = &world->clients[rank];
    if (client->member)
        horon_store_server_leave(client->member);
    memset(client, 0, sizeof *client);
}

static void world_deinit(struct world *world)
{
    for (int r = 0; r < world->size; r++)
        leave(world, r);
    horon_store_server_destroy(world->core);
}

static int put_as; /* enum horon_store_put */

static horon_status_t take(struct world *world, int rank, uint8_t type, const void *body,
                           size_t bytes)
{
    struct horon_reader in = horon_reader_over(body, bytes);
    struct horon_store_stream *stream = &world->clients[rank].member->stream;
    return stream->take(stream->arg, type, &in);
}

static horon_status_t put_bytes(struct world *world, int rank, uint32_t round, const void *blob,
                                size_t bytes)
{
    static uint8_t body[HORON_STORE_PUT_BYTES + HORON_STORE_BLOB_BYTES_MAX];
    struct horon_writer out = horon_writer_over(body, sizeof body);
    horon_write_u8(&out, (uint8_t)put_as);
    horon_write_u32(&out, round);
    horon_write_bytes(&out, blob, bytes);
    assert_true(out.ok);
    return take(world, rank, HORON_STORE_PUT, body, out.used);
}

static horon_status_t put(struct world *world, int rank, uint32_t round, const char *blob)
{
    return put_bytes(world, rank, round, blob, strlen(blob));
}

static horon_status_t give_up(struct world *world, int rank, horon_status_t status,
                              const char *text)
{
    struct horon_error why;
    horon_error_set(&why, status, "%s", text);
    struct horon_store_letter *letter = horon_store_failure_letter(&why, true);
    horon_status_t result =
        take(world, rank, HORON_STORE_FAIL, letter->data + 5, letter->bytes - 5);
    horon_store_letter_drop(letter);
    return result;
}

/* The first letter that a rank has not read, behind its length, until its next. */
static struct horon_reader next_letter(struct world *world, int rank)
{
    static uint8_t copy[1 << 20];
    struct horon_store_letter **letters = world->clients[rank].member->stream.letters;
    struct horon_store_letter *letter = letters[0];
    assert_non_null(letter);
    memcpy(copy, letter->data, letter->bytes);
    struct horon_reader in = horon_reader_over(copy, letter->bytes);
    assert_int_equal(horon_read_u32(&in), letter->bytes - 4);
    horon_store_letter_drop(letter);
    memmove(letters, letters + 1, (HORON_STORE_LETTERS_MAX - 1) * sizeof *letters);
    letters[HORON_STORE_LETTERS_MAX - 1] = NULL;
    return in;
}

static void expect_all(struct world *world, int rank, uint32_t round, const char *const *blobs)
{
    struct horon_reader in = next_letter(world, rank);
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
    struct horon_reader in = next_letter(world, rank);
    struct client *client = &world->clients[rank];
    struct horon_error why;
    assert_int_equal(horon_read_u8(&in), HORON_STORE_FAIL);
    assert_true(horon_store_failure_read(&in, world->size, &why, &client->whole));
    assert_int_equal(why.status, status);
    if (!strstr(why.text, text))
        fail_msg("'%s' lacks '%s'", why.text, text);
    client->blame = why.blame;
}

static void expect_blame(const struct world *world, int rank, horon_cause_t cause, int blamed)
{
    assert_int_equal(world->clients[rank].blame.cause, cause);
    assert_int_equal(world->clients[rank].blame.rank, blamed);
}

static void expect_silence(const struct world *world, int rank)
{
    assert_null(world->clients[rank].member->stream.letters[0]);
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
                assert_int_equal(put(&world, rank, round, words[rank]), HORON_OK);
            }
            for (int r = 0; r < world.size; r++)
                expect_all(&world, r, round, words);
        }
        world_deinit(&world);
    }
}

static void test_store_largest_blob_is_taken(void **state)
{
    static const uint8_t blob[HORON_STORE_BLOB_BYTES_MAX + 1];
    struct world world;
    (void)state;
    world_init(&world, 1);
    join(&world, 0);
    assert_int_equal(put_bytes(&world, 0, 0, blob, sizeof blob), HORON_ERR_PROTO);
    assert_int_equal(put_bytes(&world, 0, 0, blob, sizeof blob - 1), HORON_OK);
    assert_int_equal(next_letter(&world, 0).limit, 4 + 5 + 4 + HORON_STORE_BLOB_BYTES_MAX);
    world_deinit(&world);
}

static void test_store_wrong_frames_are_refused(void **state)
{
    static const struct {
        uint8_t type, body[12];
        size_t bytes;
    } frames[] = {
        {7, {0}, 5},                                            /* no such type */
        {0, {0}, 5},                                            /* nor this */
        {HORON_STORE_ALL, {0}, 5},                              /* the server's */
        {HORON_STORE_PUT, {0, 1}, 5},                           /* another round */
        {HORON_STORE_PUT, {3}, 5},                              /* no such kind */
        {HORON_STORE_PUT, {2}, 5},                              /* an error that is none */
        {HORON_STORE_PUT, {0}, 4},                              /* too short */
        {HORON_STORE_PUT, {0}, 0},                              /* nothing but a type */
        {HORON_STORE_FAIL, {1, 0, 0, 0, 0, 'x'}, 6},            /* a failure that is well */
        {HORON_STORE_FAIL, {1, 255, 255, 255}, 4},              /* cut short */
        {HORON_STORE_FAIL, {1, 255, 255, 255, 255}, 5},         /* without a reason */
        {HORON_STORE_FAIL, {1, 255, 255, 255, 255, 0, 'x'}, 7}, /* that says nothing */
        {HORON_STORE_RANKS, {'0'}, 1},                          /* a list without its end */
        {HORON_STORE_RANKS, {0}, 0},                            /* none */
        {HORON_STORE_RANKS, {'0', 0, '1', 0}, 4},               /* two */
    };
    (void)state;
    for (size_t i = 0; i < sizeof frames / sizeof frames[0]; i++) {
        struct world world;
        world_init(&world, 2);
        join(&world, 0);
        assert_int_equal(take(&world, 0, frames[i].type, frames[i].body, frames[i].bytes),
                         HORON_ERR_PROTO);
        world_deinit(&world);
    }
}

/* As a last word or put into a round, it is taken whole or not at all. */
static void test_store_errors_that_are_cut_are_refused(void **state)
{
    static const uint8_t heads[][5] = {{1}, {HORON_STORE_PUT_FAILED}};
    const struct horon_error why = {.status = HORON_ERR_PEER_LOST, .text = "rank 1 is gone"};
    (void)state;
    for (int put = 0; put < 2; put++) {
        uint8_t body[64];
        struct horon_writer out = horon_writer_over(body, sizeof body);
        horon_write_bytes(&out, heads[put], put ? 5 : 1);
        horon_error_write(&out, &why);
        for (size_t bytes = 0; bytes <= out.used + 1; bytes++) {
            struct world world;
            world_init(&world, 2);
            join(&world, 0);
            assert_int_equal(take(&world, 0, put ? HORON_STORE_PUT : HORON_STORE_FAIL, body, bytes),
                             bytes == out.used ? HORON_OK : HORON_ERR_PROTO);
            world_deinit(&world);
        }
    }
}

static void test_store_second_put_of_a_round_is_refused(void **state)
{
    struct world world;
    (void)state;
    world_init(&world, 2);
    join(&world, 0);
    assert_int_equal(put(&world, 0, 0, "x"), HORON_OK);
    assert_int_equal(put(&world, 0, 0, "x"), HORON_ERR_PROTO);
    world_deinit(&world);
}

static void test_store_limit_names_the_missing_ranks(void **state)
{
    struct world world;
    (void)state;
    world_init(&world, 8);
    for (int r = 0; r < 4; r++)
        join(&world, r);
    assert_int_equal(put(&world, 0, 0, "x"), HORON_OK);
    assert_int_equal(put(&world, 2, 0, "x"), HORON_OK);
    assert_int_equal(take(&world, 0, HORON_STORE_LATE, NULL, 0), HORON_OK);
    expect_fail(&world, 0, HORON_ERR_TIMEOUT, "ranks 4-7 never came");
    expect_fail(&world, 2, HORON_ERR_TIMEOUT, "ranks 1, 3 came but went no further");
    expect_fail(&world, 1, HORON_ERR_TIMEOUT, "ranks 4-7 never came");
    expect_blame(&world, 1, HORON_CAUSE_ABSENT, 4);
    assert_int_equal(put(&world, 1, 0, "x"), HORON_OK); /* it was on its way */
    expect_silence(&world, 1);
    world_deinit(&world);
}

/* It was on its way when the answer was, or a failure: nobody is missing. */
static void test_store_limit_that_crosses_an_answer_is_none(void **state)
{
    struct world world;
    (void)state;
    world_init(&world, 2);
    join(&world, 0);
    join(&world, 1);
    for (uint32_t round = 0; round < 2; round++) {
        put_as = round == 1 ? HORON_STORE_PUT_LAST : HORON_STORE_PUT_MORE;
        assert_int_equal(put(&world, 0, round, "a"), HORON_OK);
        assert_int_equal(put(&world, 1, round, ""), HORON_OK);
        assert_int_equal(take(&world, 0, HORON_STORE_LATE, NULL, 0), HORON_OK);
        expect_all(&world, 0, round, words);
        expect_all(&world, 1, round, words);
        expect_silence(&world, 1);
    }
    put_as = HORON_STORE_PUT_MORE;
    world_deinit(&world);
}

static const char *host_of(void *arg, int rank)
{
    const char *const *hosts = arg;
    return hosts[rank];
}

static void world_init_named(struct world *world, int size, const char *const *hosts)
{
    memset(world, 0, sizeof *world);
    world->size = size;
    const struct horon_store_server_options options = {.self.hello.size = (uint32_t)size,
                                                       .host_of = hosts ? host_of : NULL,
                                                       .host_arg = (void *)(uintptr_t)hosts};
    world->core = horon_store_server_create(&options);
    assert_non_null(world->core);
}

static void test_store_hosts_of_missing_ranks_are_named(void **state)
{
    static const char *const hosts[] = {"a", "b", "b", "c", NULL, "d"};
    struct world world;
    (void)state;
    world_init_named(&world, 6, hosts);
    join(&world, 0);
    join(&world, 3);
    assert_int_equal(put(&world, 0, 0, "x"), HORON_OK);
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
    assert_int_equal(put(&world, 0, 0, "x"), HORON_OK);
    leave(&world, 1);
    expect_fail(&world, 0, HORON_ERR_PEER_LOST, "rank 1 left while joining; rank 3 never came");
    expect_blame(&world, 0, HORON_CAUSE_ABSENT, 1);
    assert_false(world.clients[0].whole);
    expect_fail(&world, 2, HORON_ERR_PEER_LOST, "rank 1 left"); /* though it did not wait */
    assert_int_equal(put(&world, 2, 0, "x"), HORON_OK);
    expect_silence(&world, 2);
    join(&world, 3);
    expect_fail(&world, 3, HORON_ERR_PEER_LOST, "rank 1 left");
    world_deinit(&world);
}

static void test_store_leaving_between_rounds_fails_all(void **state)
{
    struct world world;
    (void)state;
    world_init(&world, 2);
    join(&world, 0);
    join(&world, 1);
    assert_int_equal(put(&world, 0, 0, "a"), HORON_OK);
    assert_int_equal(put(&world, 1, 0, ""), HORON_OK);
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
    put_as = HORON_STORE_PUT_LAST;
    assert_int_equal(put(&world, 0, 0, "a"), HORON_OK);
    assert_int_equal(put(&world, 1, 0, ""), HORON_OK);
    put_as = HORON_STORE_PUT_MORE;
    expect_all(&world, 0, 0, words);
    leave(&world, 1);
    expect_silence(&world, 0);
    assert_int_equal(put(&world, 0, 1, "a"), HORON_ERR_PROTO); /* it said so itself */
    world_deinit(&world);
}

static horon_status_t put_failure(struct world *world, int rank, const char *text)
{
    uint8_t bytes[HORON_ERROR_WIRE_BYTES_MAX];
    struct horon_error why;
    struct horon_writer out = horon_writer_over(bytes, sizeof bytes);
    horon_error_set(&why, HORON_ERR_PEER_LOST, "%s", text);
    why.blame.rank = rank;
    horon_error_write(&out, &why);
    put_as = HORON_STORE_PUT_FAILED;
    const horon_status_t status = put_bytes(world, rank, 0, bytes, out.used);
    put_as = HORON_STORE_PUT_MORE;
    return status;
}

/* It may only follow from what another rank is about to tell. */
static void test_store_failure_in_a_round_waits_for_the_others(void **state)
{
    (void)state;
    for (int cause_is_told = 0; cause_is_told < 2; cause_is_told++) {
        struct world world;
        world_init(&world, 4);
        for (int r = 0; r < 4; r++)
            join(&world, r);
        assert_int_equal(put_failure(&world, 3, "rank 3: rank 1 hung up"), HORON_OK);
        assert_int_equal(put_failure(&world, 2, "rank 2: rank 1 hung up"), HORON_OK);
        assert_int_equal(put(&world, 0, 0, "x"), HORON_OK);
        for (int r = 0; r < 4; r++)
            expect_silence(&world, r);
        if (cause_is_told)
            assert_int_equal(give_up(&world, 1, HORON_ERR_MEMORY, "no memory"), HORON_OK);
        else
            assert_int_equal(put(&world, 1, 0, "y"), HORON_OK);
        for (int r = 0; r < 4; r++) {
            expect_fail(&world, r, cause_is_told ? HORON_ERR_MEMORY : HORON_ERR_PEER_LOST,
                        cause_is_told ? "no memory" : "rank 2: rank 1");
            expect_silence(&world, r);
        }
        if (!cause_is_told)
            expect_blame(&world, 1, HORON_CAUSE_SILENT, 2);
        world_deinit(&world);
    }
}

static void test_store_failure_in_a_round_without_a_reason_is_refused(void **state)
{
    struct world world;
    (void)state;
    world_init(&world, 2);
    join(&world, 0);
    put_as = HORON_STORE_PUT_FAILED;
    assert_int_equal(put(&world, 0, 0, "x"), HORON_ERR_PROTO);
    put_as = HORON_STORE_PUT_FAILED + 1;
    assert_int_equal(put(&world, 0, 0, "x"), HORON_ERR_PROTO);
    put_as = HORON_STORE_PUT_MORE;
    world_deinit(&world);
}

static void test_store_failure_of_a_rank_tells_all_the_first_reason(void **state)
{
    struct world world;
    (void)state;
    world_init(&world, 3);
    for (int r = 0; r < 3; r++)
        join(&world, r);
    assert_int_equal(put(&world, 0, 0, "x"), HORON_OK);
    assert_int_equal(give_up(&world, 2, HORON_ERR_MEMORY, "no memory"), HORON_OK);
    for (int r = 0; r < 3; r++)
        expect_fail(&world, r, HORON_ERR_MEMORY, "no memory");
    assert_true(world.clients[1].whole);
    assert_int_equal(give_up(&world, 1, HORON_ERR_PEER_LOST, "rank 2 hung up"), HORON_OK);
    for (int r = 0; r < 3; r++)
        expect_silence(&world, r);
    world_deinit(&world);
}

/* A later release may know more statuses than this one: its text is told, as one of ours. */
static void test_store_unknown_status_becomes_one_of_ours(void **state)
{
    static const uint8_t body[] = {1, 0, 0, 0, 0x80, 1, 0, 0, 0, 0, 1, 0, 0, 0, 1, 'x'};
    struct world world;
    (void)state;
    world_init(&world, 2);
    join(&world, 0);
    join(&world, 1);
    assert_int_equal(take(&world, 0, HORON_STORE_FAIL, body, sizeof body), HORON_OK);
    expect_fail(&world, 1, HORON_ERR_PROTO, "x");
    world_deinit(&world);
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
    assert_int_equal(put(&world, 0, 0, "a"), HORON_OK);
    assert_int_equal(put(&second, 0, 0, "x"), HORON_OK);
    assert_int_equal(put(&world, 1, 0, ""), HORON_OK);
    expect_all(&world, 0, 0, words);
    expect_all(&world, 1, 0, words);
    assert_int_equal(world.core->full_sessions, 1);
    join(&second, 1);
    assert_int_equal(put(&second, 1, 0, "y"), HORON_OK);
    expect_all(&second, 0, 0, other);
    expect_all(&second, 1, 0, other);
    assert_int_equal(world.core->full_sessions, 2);
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
    assert_int_equal(world.core->full_sessions, 200);
    world_deinit(&world);
}

static void test_store_too_many_open_sessions_are_refused(void **state)
{
    struct horon_store_member *members[100];
    struct world world;
    int count = 0;
    (void)state;
    world_init(&world, 2);
    while (count < 100 && horon_store_server_join(world.core, 0, &members[count]) == HORON_OK)
        count++;
    assert_true(count > 1 && count < 100);
    while (count)
        horon_store_server_leave(members[--count]);
    world_deinit(&world);
}

static void test_store_failed_by_launcher_tells_all(void **state)
{
    static const struct horon_error why = {.status = HORON_ERR_PEER_LOST,
                                           .blame = {HORON_CAUSE_DIED, 2, -1, false},
                                           .text = "rank 2 died"};
    struct world world;
    (void)state;
    world_init(&world, 3);
    horon_store_server_tell(world.core, -1, &why);
    join(&world, 0);
    expect_fail(&world, 0, HORON_ERR_PEER_LOST, "rank 2 died");
    world_deinit(&world);

    world_init(&world, 3);
    join(&world, 0);
    assert_int_equal(put(&world, 0, 0, "x"), HORON_OK);
    expect_silence(&world, 0);
    horon_store_server_tell(world.core, -1, &why);
    expect_fail(&world, 0, HORON_ERR_PEER_LOST, "rank 2 died");
    world_deinit(&world);
}

static void test_store_unknown_rank_is_refused(void **state)
{
    struct world world;
    struct horon_store_member *member;
    (void)state;
    world_init(&world, 2);
    assert_int_equal(horon_store_server_join(world.core, 2, &member), HORON_ERR_INVALID);
    assert_int_equal(horon_store_server_join(world.core, -1, &member), HORON_ERR_INVALID);
    world_deinit(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store_rounds_reach_everybody),
        cmocka_unit_test(test_store_largest_blob_is_taken),
        cmocka_unit_test(test_store_wrong_frames_are_refused),
        cmocka_unit_test(test_store_errors_that_are_cut_are_refused),
        cmocka_unit_test(test_store_second_put_of_a_round_is_refused),
        cmocka_unit_test(test_store_limit_names_the_missing_ranks),
        cmocka_unit_test(test_store_limit_that_crosses_an_answer_is_none),
        cmocka_unit_test(test_store_hosts_of_missing_ranks_are_named),
        cmocka_unit_test(test_store_leaving_early_fails_all),
        cmocka_unit_test(test_store_leaving_between_rounds_fails_all),
        cmocka_unit_test(test_store_leaving_after_the_last_round_is_fine),
        cmocka_unit_test(test_store_failure_of_a_rank_tells_all_the_first_reason),
        cmocka_unit_test(test_store_failure_in_a_round_waits_for_the_others),
        cmocka_unit_test(test_store_failure_in_a_round_without_a_reason_is_refused),
        cmocka_unit_test(test_store_unknown_status_becomes_one_of_ours),
        cmocka_unit_test(test_store_sessions_follow_each_other),
        cmocka_unit_test(test_store_many_sessions_leave_nothing),
        cmocka_unit_test(test_store_too_many_open_sessions_are_refused),
        cmocka_unit_test(test_store_failed_by_launcher_tells_all),
        cmocka_unit_test(test_store_unknown_rank_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
