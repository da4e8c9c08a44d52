/* SPDX-License-Identifier: Apache-2.0 */
/* torch's TCPStore: its bytes at every split, what a server answers, and client and server. */
#undef NDEBUG
#include "boot/gloo/c10d_server.h"
#include "boot/gloo/c10d_wire.h"
#include "boot/gloo/store.h"

#include "../../../free_port.h"
#include "alloc.h"
#include "clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static struct horon_error error;
static const struct horon_gloo_wait no_limit = {.deadline_ns = UINT64_MAX};

/* What a client says, and how it is answered. */
struct talk {
    struct horon_c10d_table *table;
    struct horon_c10d_buffer heard, answer;
    enum horon_c10d_dialect in, dialect; /* which it speaks; which it is taken to */
    uint8_t said[512];
    struct horon_writer out;
};

static void begin_in(struct talk *talk, struct horon_c10d_table *table,
                     enum horon_c10d_dialect dialect)
{
    memset(talk, 0, sizeof *talk);
    talk->table = table;
    talk->in = dialect;
    talk->out = horon_writer_over(talk->said, sizeof talk->said);
    if (dialect == HORON_C10D_UNTIL_2_0) {
        horon_write_bytes(&talk->out, "\3\5\0\0\0\0\0\0\0init/\1\0\0\0\0\0\0\0", 22);
    } else {
        horon_write_u8(&talk->out, 0);
        horon_write_u32(&talk->out, HORON_C10D_MAGIC);
    }
}

static void begin(struct talk *talk, struct horon_c10d_table *table)
{
    begin_in(talk, table, HORON_C10D_SINCE_2_3);
}

static void end(struct talk *talk)
{
    horon_c10d_buffer_deinit(&talk->heard);
    horon_c10d_buffer_deinit(&talk->answer);
}

static horon_status_t hear(struct talk *talk, size_t from, size_t to)
{
    assert_true(horon_c10d_buffer_add(&talk->heard, talk->said + from, to - from));
    return horon_c10d_serve_all(talk->table, &talk->dialect, &talk->heard, &talk->answer);
}

static void say(struct talk *talk, enum horon_c10d_op op, const char *key)
{
    horon_c10d_write_op(&talk->out, talk->in, op);
    if (op == HORON_C10D_CHECK || op == HORON_C10D_WAIT || op == HORON_C10D_MULTI_GET ||
        op == HORON_C10D_MULTI_SET)
        horon_write_u64(&talk->out, 1);
    if (key)
        horon_c10d_write_view(&talk->out, key, strlen(key));
}

static void value(struct talk *talk, const char *text)
{
    horon_c10d_write_view(&talk->out, text, strlen(text));
}

/* Of every op one or two, each answered at once. */
static void say_all(struct talk *talk)
{
    say(talk, HORON_C10D_PING, NULL);
    horon_write_u32(&talk->out, 0x04030201);
    say(talk, HORON_C10D_SET, "/a");
    value(talk, "one");
    say(talk, HORON_C10D_GET, "/a");
    say(talk, HORON_C10D_GET, "/none");
    say(talk, HORON_C10D_APPEND, "/a");
    value(talk, "two");
    say(talk, HORON_C10D_MULTI_GET, "/a");
    say(talk, HORON_C10D_ADD, "n");
    horon_write_u64(&talk->out, 5);
    say(talk, HORON_C10D_ADD, "n");
    horon_write_u64(&talk->out, (uint64_t)-7);
    say(talk, HORON_C10D_GET, "n");
    say(talk, HORON_C10D_CHECK, "/a");
    say(talk, HORON_C10D_CHECK, "/b");
    say(talk, HORON_C10D_WAIT, "/a");
    say(talk, HORON_C10D_COMPARE_SET, "/c");
    value(talk, "x");
    value(talk, "y");
    say(talk, HORON_C10D_COMPARE_SET, "/c");
    value(talk, "");
    value(talk, "y");
    say(talk, HORON_C10D_COMPARE_SET, "/c");
    value(talk, "x");
    value(talk, "z");
    say(talk, HORON_C10D_MULTI_SET, "/d");
    value(talk, "");
    say(talk, HORON_C10D_COUNT, NULL);
    say(talk, HORON_C10D_DELETE, "/d");
    say(talk, HORON_C10D_DELETE, "/d");
    say(talk, HORON_C10D_CANCEL_WAIT, NULL);
    assert_true(talk->out.ok);
}

static const char answers[] = "\1\2\3\4"
                              "\3\0\0\0\0\0\0\0one"
                              "\0\0\0\0\0\0\0\0"
                              "\6\0\0\0\0\0\0\0onetwo"
                              "\5\0\0\0\0\0\0\0"
                              "\xfe\xff\xff\xff\xff\xff\xff\xff"
                              "\2\0\0\0\0\0\0\0-2"
                              "\0"
                              "\1"
                              "\0"
                              "\1\0\0\0\0\0\0\0x"
                              "\1\0\0\0\0\0\0\0y"
                              "\1\0\0\0\0\0\0\0y"
                              "\4\0\0\0\0\0\0\0"
                              "\1\0\0\0\0\0\0\0"
                              "\0\0\0\0\0\0\0\0"
                              "\1";

/* What ranks of torch 1.13 say to their rank 0, and what it answers: heard from it. */
static void say_old(struct talk *talk)
{
    static const char said[] = "\0\2\0\0\0\0\0\0\0/a\3\0\0\0\0\0\0\0one"
                               "\4\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0/a"
                               "\4\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0/b"
                               "\5\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0/a"
                               "\2\2\0\0\0\0\0\0\0/a"
                               "\3\2\0\0\0\0\0\0\0/n\2\0\0\0\0\0\0\0"
                               "\3\2\0\0\0\0\0\0\0/n\0\0\0\0\0\0\0\0"
                               "\1\2\0\0\0\0\0\0\0/q\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0x"
                               "\6";
    horon_write_bytes(&talk->out, said, sizeof said - 1);
    assert_true(talk->out.ok);
}

static const char old_answers[] = "\1\0\0\0\0\0\0\0"
                                  "\0"
                                  "\1"
                                  "\0"
                                  "\3\0\0\0\0\0\0\0one"
                                  "\2\0\0\0\0\0\0\0"
                                  "\2\0\0\0\0\0\0\0"
                                  "\1\0\0\0\0\0\0\0x"
                                  "\4\0\0\0\0\0\0\0";

static void check_at_every_split(enum horon_c10d_dialect dialect, void (*say_it)(struct talk *),
                                 const char *wanted, size_t wanted_bytes)
{
    for (size_t cut = 0;; cut++) {
        struct horon_c10d_table *table = horon_c10d_table_create();
        struct talk talk;
        begin_in(&talk, table, dialect);
        say_it(&talk);
        const size_t whole = talk.out.used;
        if (cut < whole) {
            assert_int_equal(hear(&talk, 0, cut), HORON_OK);
            assert_int_equal(hear(&talk, cut, whole), HORON_OK);
        } else { /* byte by byte */
            for (size_t i = 0; i < whole; i++)
                assert_int_equal(hear(&talk, i, i + 1), HORON_OK);
        }
        assert_int_equal(talk.heard.used, 0);
        assert_int_equal(talk.answer.used, wanted_bytes);
        assert_memory_equal(talk.answer.bytes, wanted, wanted_bytes);
        assert_int_equal(talk.dialect, dialect);
        end(&talk);
        horon_c10d_table_destroy(table);
        if (cut == whole)
            break;
    }
}

static void test_c10d_is_answered_as_torch_does_at_every_split(void **state)
{
    (void)state;
    check_at_every_split(HORON_C10D_SINCE_2_3, say_all, answers, sizeof answers - 1);
    check_at_every_split(HORON_C10D_UNTIL_2_0, say_old, old_answers, sizeof old_answers - 1);
}

static void test_c10d_both_dialects_have_one_table(void **state)
{
    struct horon_c10d_table *table = horon_c10d_table_create();
    struct talk old, since;
    (void)state;
    begin_in(&old, table, HORON_C10D_UNTIL_2_0);
    begin(&since, table);
    say(&old, HORON_C10D_SET, "/k");
    value(&old, "v");
    assert_int_equal(hear(&old, 0, old.out.used), HORON_OK);
    say(&since, HORON_C10D_WAIT, "/k");
    say(&since, HORON_C10D_GET, "init/");
    assert_int_equal(hear(&since, 0, since.out.used), HORON_OK);
    assert_int_equal(since.answer.used, 10);
    assert_memory_equal(since.answer.bytes, "\0\1\0\0\0\0\0\0\0\61", 10);
    end(&old);
    end(&since);
    horon_c10d_table_destroy(table);
}

static void test_c10d_a_wait_is_answered_when_the_key_comes(void **state)
{
    struct horon_c10d_table *table = horon_c10d_table_create();
    struct talk waits, sets;
    (void)state;
    begin(&waits, table);
    begin(&sets, table);
    say(&waits, HORON_C10D_WAIT, "/k");
    assert_int_equal(hear(&waits, 0, waits.out.used), HORON_OK);
    assert_int_equal(waits.answer.used, 0);
    assert_true(waits.heard.used > 0);
    const uint64_t before = horon_c10d_table_changes(table);
    say(&sets, HORON_C10D_SET, "/k");
    value(&sets, "v");
    assert_int_equal(hear(&sets, 0, sets.out.used), HORON_OK);
    assert_true(horon_c10d_table_changes(table) > before);
    assert_int_equal(hear(&waits, 0, 0), HORON_OK);
    assert_int_equal(waits.answer.used, 1);
    assert_int_equal(waits.answer.bytes[0], HORON_C10D_CAME);
    assert_int_equal(waits.heard.used, 0);
    end(&waits);
    end(&sets);
    horon_c10d_table_destroy(table);
}

static void test_c10d_a_wait_that_is_cancelled_is_over(void **state)
{
    struct horon_c10d_table *table = horon_c10d_table_create();
    struct talk talk;
    (void)state;
    begin(&talk, table);
    say(&talk, HORON_C10D_WAIT, "/k");
    assert_int_equal(hear(&talk, 0, talk.out.used), HORON_OK);
    const size_t from = talk.out.used;
    say(&talk, HORON_C10D_CANCEL_WAIT, NULL);
    say(&talk, HORON_C10D_COUNT, NULL);
    assert_int_equal(hear(&talk, from, talk.out.used), HORON_OK);
    assert_int_equal(talk.answer.used, 9);
    assert_int_equal(talk.answer.bytes[0], HORON_C10D_WAIT_CANCELLED);
    end(&talk);
    horon_c10d_table_destroy(table);
}

static horon_status_t status_in(enum horon_c10d_dialect dialect, const void *said, size_t count)
{
    struct horon_c10d_table *table = horon_c10d_table_create();
    struct talk talk;
    begin_in(&talk, table, dialect);
    if (dialect == HORON_C10D_UNHEARD)
        talk.out.used = 0;
    horon_write_bytes(&talk.out, said, count);
    const horon_status_t status = hear(&talk, 0, talk.out.used);
    assert_int_equal(talk.answer.used, dialect == HORON_C10D_UNTIL_2_0 ? 8 : 0);
    end(&talk);
    horon_c10d_table_destroy(table);
    return status;
}

static horon_status_t status_of(const void *said, size_t count)
{
    return status_in(HORON_C10D_SINCE_2_3, said, count);
}

/* It begins with its count of itself, and nothing else; what came later it cannot ask for. */
static void test_c10d_what_old_torch_does_not_say_is_refused(void **state)
{
    static const char watch[] = "\7", drop[] = "\10\2\0\0\0\0\0\0\0/a", ping[] = "\15abcd";
    static const char other[] = "\3\5\0\0\0\0\0\0\0iniT/\1\0\0\0\0\0\0\0";
    static const char longer[] = "\3\6\0\0\0\0\0\0\0init/0\1\0\0\0\0\0\0\0";
    (void)state;
    assert_int_equal(status_in(HORON_C10D_UNTIL_2_0, watch, 1), HORON_ERR_PROTO);
    assert_int_equal(status_in(HORON_C10D_UNTIL_2_0, drop, 11), HORON_ERR_PROTO);
    assert_int_equal(status_in(HORON_C10D_UNTIL_2_0, ping, 5), HORON_ERR_PROTO);
    assert_int_equal(status_in(HORON_C10D_UNHEARD, other, 22), HORON_ERR_PROTO);
    assert_int_equal(status_in(HORON_C10D_UNHEARD, longer, 23), HORON_ERR_PROTO);
}

static void test_c10d_what_is_forbidden_is_refused(void **state)
{
    struct talk talk;
    struct horon_c10d_table *table = horon_c10d_table_create();
    (void)state;
    assert_int_equal(status_of("\x0e", 1), HORON_ERR_PROTO); /* a queue */
    assert_int_equal(status_of("\xff", 1), HORON_ERR_PROTO);
    assert_int_equal(status_of("\3\1\x20\0\0\0\0\0\0", 9), HORON_ERR_PROTO); /* a key of 8193 */
    assert_int_equal(status_of("\3\0\x20\0\0\0\0\0\0", 9), HORON_OK);        /* want more */
    assert_int_equal(status_of("\6\1\0\2\0\0\0\0\0", 9), HORON_ERR_PROTO);   /* 131073 keys */
    assert_int_equal(status_of("\1\0\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 17),
                     HORON_ERR_PROTO);
    begin(&talk, table);
    assert_int_equal(hear(&talk, 4, 5), HORON_ERR_PROTO); /* does not begin with VALIDATE */
    end(&talk);
    begin(&talk, table);
    talk.said[1] ^= 1;
    assert_int_equal(hear(&talk, 0, 5), HORON_ERR_PROTO);
    end(&talk);
    horon_c10d_table_destroy(table);
}

static struct horon_gloo_store *opened_in(enum horon_c10d_dialect dialect, int port, int rank,
                                          bool serve)
{
    char url[64];
    struct horon_gloo_store *store = NULL;
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", port);
    const struct horon_gloo_store_options options = {.url = url,
                                                     .prefix = "default_pg/0//cpu//0",
                                                     .rank = rank,
                                                     .size = 2,
                                                     .until_torch_2_0 =
                                                         dialect == HORON_C10D_UNTIL_2_0,
                                                     .serve = serve,
                                                     .wait = no_limit};
    assert_int_equal(horon_gloo_store_open(&options, &store, &error), HORON_OK);
    return store;
}

static struct horon_gloo_store *opened(int port, int rank, bool serve)
{
    return opened_in(HORON_C10D_SINCE_2_3, port, rank, serve);
}

static void check_client_and_server(enum horon_c10d_dialect dialect)
{
    enum { LONG = 300000 }; /* more than a socket takes at once */
    static uint8_t sent[LONG];
    const int port = free_port();
    struct horon_gloo_store *served = opened_in(dialect, port, 0, true);
    struct horon_gloo_store *other = opened_in(dialect, port, 1, true);
    struct horon_gloo_value got;
    for (size_t i = 0; i < LONG; i++)
        sent[i] = (uint8_t)(i * 7);
    assert_int_equal(horon_gloo_store_get(other, "0", &got, &no_limit, &error), HORON_AGAIN);
    assert_int_equal(horon_gloo_store_set(served, "0", sent, LONG, &no_limit, &error), HORON_OK);
    while (horon_gloo_store_get(other, "0", &got, &no_limit, &error) == HORON_AGAIN)
        ; /* a set is not answered */
    assert_int_equal(got.count, LONG);
    assert_memory_equal(got.bytes, sent, LONG);
    horon_free(got.bytes);
    assert_int_equal(horon_gloo_store_set(other, "1", "", 0, &no_limit, &error), HORON_OK);
    assert_int_equal(horon_gloo_store_get(other, "1", &got, &no_limit, &error), HORON_OK);
    assert_int_equal(got.count, 0);
    horon_free(got.bytes);
    assert_int_equal(served->ops->add(served, "n", 2, &no_limit, &error), HORON_OK);
    assert_int_equal(other->ops->add(other, "n", -5, &no_limit, &error), HORON_OK);
    assert_int_equal(other->ops->get(other, "n", &got, &no_limit, &error), HORON_OK);
    assert_int_equal(got.count, 2);
    assert_memory_equal(got.bytes, "-3", 2);
    horon_free(got.bytes);
    horon_gloo_store_destroy(served);
    assert_int_equal(horon_gloo_store_get(other, "0", &got, &no_limit, &error),
                     HORON_ERR_PEER_LOST);
    assert_non_null(strstr(error.text, "rank 0 has ended"));
    assert_int_equal(horon_gloo_store_get(other, "0", &got, &no_limit, &error),
                     HORON_ERR_PEER_LOST);
    horon_gloo_store_destroy(other);
}

static void test_c10d_client_and_server_meet(void **state)
{
    (void)state;
    check_client_and_server(HORON_C10D_SINCE_2_3);
    check_client_and_server(HORON_C10D_UNTIL_2_0);
}

static int64_t cpu_ms(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (int64_t)used.tv_sec * 1000 + used.tv_nsec / 1000000;
}

/* The server is in this process: what it burns is measured while nothing else runs here. */
static void test_c10d_a_server_without_descriptors_waits_for_one(void **state)
{
    const int port = free_port();
    struct horon_gloo_store *served = opened(port, 0, true);
    struct horon_address address;
    struct rlimit files, none;
    uint8_t said[10], heard[4] = {0};
    struct horon_writer out = horon_writer_over(said, sizeof said);
    (void)state;
    horon_c10d_write_op(&out, HORON_C10D_SINCE_2_3, HORON_C10D_VALIDATE);
    horon_write_u32(&out, HORON_C10D_MAGIC);
    horon_c10d_write_op(&out, HORON_C10D_SINCE_2_3, HORON_C10D_PING);
    horon_write_u32(&out, 7);
    assert_true(horon_address_parse("127.0.0.1", port, &address));
    const int client = socket(AF_INET, SOCK_STREAM, 0), next = dup(client);
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    none = files;
    none.rlim_cur = (rlim_t)next;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    const int64_t before = cpu_ms();
    assert_int_equal(connect(client, &address.any, address.bytes), 0);
    assert_int_equal(send(client, said, sizeof said, 0), (ssize_t)sizeof said);
    struct pollfd answer = {.fd = client, .events = POLLIN};
    assert_int_equal(poll(&answer, 1, 500), 0);
    assert_true(cpu_ms() - before < 20);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    assert_int_equal(recv(client, heard, sizeof heard, MSG_WAITALL), (ssize_t)sizeof heard);
    assert_int_equal(heard[0], 7);
    close(client);
    horon_gloo_store_destroy(served);
}

static void test_c10d_a_server_that_is_none_is_named(void **state)
{
    char url[64];
    struct horon_address address;
    struct horon_gloo_store *store = NULL;
    (void)state;
    assert_true(horon_address_parse("127.0.0.1", 0, &address));
    const int listener = horon_address_listen(&address); /* says nothing */
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", horon_address_port(&address));
    struct horon_gloo_store_options options = {.url = url, .prefix = "", .rank = 1, .size = 2};
    options.wait.deadline_ns = horon_clock_ns() + 20000000;
    assert_int_equal(horon_gloo_store_open(&options, &store, &error), HORON_ERR_TIMEOUT);
    assert_non_null(strstr(error.text, "takes a connection, and does not answer: it is not "
                                       "torch's TCPStore, or not one of torch since 2.3 (until "));
    options.until_torch_2_0 = true;
    options.wait.deadline_ns = horon_clock_ns() + 20000000;
    assert_int_equal(horon_gloo_store_open(&options, &store, &error), HORON_ERR_TIMEOUT);
    assert_non_null(strstr(error.text, "or not one of torch until 2.0 (since 2.3: HORON_"));
    options.serve = true;
    options.rank = 0;
    options.wait.deadline_ns = horon_clock_ns() + 20000000;
    assert_int_equal(horon_gloo_store_open(&options, &store, &error), HORON_ERR_TIMEOUT);
    assert_non_null(strstr(error.text, "; this rank cannot serve a TCPStore at port "));
    close(listener);
    options.rank = 1;
    options.wait.deadline_ns = horon_clock_ns() + 20000000;
    assert_int_equal(horon_gloo_store_open(&options, &store, &error), HORON_ERR_TIMEOUT);
    assert_non_null(strstr(error.text, "nobody serves the Gloo store tcp://127.0.0.1:"));
    assert_non_null(strstr(error.text, ", which rank 0, of torch or of horon, is to serve: "));
    assert_non_null(strstr(error.text, ": Connection refused)"));
    options.url = "tcp://127.0.0.1";
    assert_int_equal(horon_gloo_store_open(&options, &store, &error), HORON_ERR_CONFIG);
    assert_null(store);
}

/* Another program, in the thread of its client: it is there whenever that waits. */
struct stranger {
    int listener, guest;
    const char *says; /* NULL: it hears something, and closes */
};

static int let_it_speak(void *arg)
{
    struct stranger *stranger = arg;
    char heard[256];
    const bool comes = stranger->guest < 0;
    if (comes)
        stranger->guest = accept(stranger->listener, NULL, NULL);
    if (stranger->guest < 0)
        return 0;
    if (stranger->says && comes)
        send(stranger->guest, stranger->says, strlen(stranger->says), 0);
    if (!stranger->says && recv(stranger->guest, heard, sizeof heard, MSG_DONTWAIT) > 0) {
        close(stranger->guest);
        stranger->guest = -1; /* the next one, as often as that client tries it */
    }
    return 0;
}

static void expect_none(bool old, const char *says, horon_status_t status, const char *told)
{
    char url[64], wanted[160];
    struct horon_address address;
    struct horon_gloo_store *store = NULL;
    struct stranger stranger = {.guest = -1, .says = says};
    assert_true(horon_address_parse("127.0.0.1", 0, &address));
    stranger.listener = horon_address_listen(&address);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", horon_address_port(&address));
    const struct horon_gloo_store_options options = {
        .url = url,
        .prefix = "",
        .rank = 1,
        .size = 2,
        .until_torch_2_0 = old,
        .wait = {.deadline_ns = UINT64_MAX, .interrupted = let_it_speak, .arg = &stranger}};
    assert_int_equal(horon_gloo_store_open(&options, &store, &error), status);
    snprintf(wanted, sizeof wanted, "what listens at %s %s: %sit is not torch's TCPStore, or not ",
             url, told, status == HORON_ERR_PEER_LOST ? "rank 0 has ended, or " : "");
    if (!strstr(error.text, wanted))
        fail_msg("'%s' lacks '%s'", error.text, wanted);
    close(stranger.guest);
    close(stranger.listener);
}

static void test_c10d_what_another_program_does_is_told(void **state)
{
    static const char http[] = "HTTP/1.1 400 Bad Request\r\n", ssh[] = "SSH-2.0-x\r\n\33[2J";
    (void)state;
    for (int old = 0; old < 2; old++) {
        expect_none(old, http, HORON_ERR_PROTO, "answers 'HTTP/1.1 400 Bad Request'");
        expect_none(old, ssh, HORON_ERR_PROTO, "answers 'SSH-2.0-x...[2J'");
        expect_none(old, NULL, HORON_ERR_PEER_LOST, "closed the connection, once it was asked");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_c10d_is_answered_as_torch_does_at_every_split),
        cmocka_unit_test(test_c10d_both_dialects_have_one_table),
        cmocka_unit_test(test_c10d_a_wait_is_answered_when_the_key_comes),
        cmocka_unit_test(test_c10d_a_wait_that_is_cancelled_is_over),
        cmocka_unit_test(test_c10d_what_is_forbidden_is_refused),
        cmocka_unit_test(test_c10d_what_old_torch_does_not_say_is_refused),
        cmocka_unit_test(test_c10d_client_and_server_meet),
        cmocka_unit_test(test_c10d_a_server_without_descriptors_waits_for_one),
        cmocka_unit_test(test_c10d_a_server_that_is_none_is_named),
        cmocka_unit_test(test_c10d_what_another_program_does_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
