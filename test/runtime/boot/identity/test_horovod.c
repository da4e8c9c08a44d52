/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What Horovod's rendezvous server may answer: a thread that takes one connection after another,
 * writes down each request, and says what its script has next.
 */
#undef NDEBUG
#include "boot/identity/space.h"
#include "clock.h"
#include "http.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define TRIES 4
#define OK(bytes) "HTTP/1.0 200 OK\r\nContent-Length: " #bytes "\r\n\r\n"
#define NOTHING "HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n"
#define SILENT "silent" /* it answers nothing, and keeps the connection */

struct server {
    pthread_t thread;
    struct horon_address address;
    int listener;
    char place[HORON_ADDRESS_TEXT_BYTES];
    const char *const *answers; /* NULL-ended; the last one is said from then on */
    size_t piece;               /* bytes of each write; 0: all */
    int asked, kept;
    char log[4096];
};

/* @return false: it is told to end */
static bool read_request(struct server *server, int fd)
{
    char bytes[16384];
    size_t used = 0;
    struct horon_http head;
    horon_status_t status = HORON_AGAIN;
    while (status == HORON_AGAIN || used < head.head_bytes + head.length) {
        const ssize_t got = read(fd, bytes + used, sizeof bytes - used);
        if (got <= 0)
            return false;
        used += (size_t)got;
        status = horon_http_look(bytes, used, &head);
        assert_true(status == HORON_AGAIN || status == HORON_OK);
    }
    assert_int_equal(used, head.head_bytes + head.length);
    const size_t logged = strlen(server->log);
    snprintf(server->log + logged, sizeof server->log - logged, "%.*s %.*s %.*s\n",
             (int)head.word_bytes[0], head.word[0], (int)head.word_bytes[1], head.word[1],
             (int)head.length, bytes + head.head_bytes);
    return true;
}

static void say(const struct server *server, int fd, const char *answer)
{
    const size_t bytes = strlen(answer), piece = server->piece ? server->piece : bytes;
    for (size_t i = 0; i < bytes; i += piece)
        (void)send(fd, answer + i, i + piece < bytes ? piece : bytes - i, MSG_NOSIGNAL);
}

static void *serve(void *arg)
{
    struct server *server = arg;
    int fd = -1;
    while ((fd = accept(server->listener, NULL, NULL)) >= 0 && read_request(server, fd)) {
        const char *answer = server->answers[0];
        server->asked++;
        server->answers += server->answers[1] != NULL;
        if (strcmp(answer, SILENT) == 0) {
            server->kept = fd;
            continue;
        }
        say(server, fd, answer);
        shutdown(fd, SHUT_WR);
        close(fd);
    }
    close(fd);
    return NULL;
}

static void begin(struct server *server, struct horon_space *space, const char *const *answers)
{
    *server = (struct server){.answers = answers, .kept = -1};
    assert_true(horon_address_parse("127.0.0.1", 0, &server->address));
    server->listener = horon_address_listen(&server->address);
    assert_true(server->listener >= 0);
    int flags = 0; /* it waits in accept() */
    assert_int_equal(ioctl(server->listener, FIONBIO, &flags), 0);
    horon_address_text(&server->address, server->place);
    *space = (struct horon_space){.calls = &horon_space_horovod,
                                  .server = server->place,
                                  .job = 0xab,
                                  .deadline_ns = horon_clock_deadline(horon_clock_ns(), 20000)};
    assert_int_equal(pthread_create(&server->thread, NULL, serve, server), 0);
}

static void end(struct server *server)
{
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, &server->address.any, server->address.bytes), 0);
    close(fd);
    pthread_join(server->thread, NULL);
    close(server->listener);
    if (server->kept >= 0)
        close(server->kept);
}

static horon_status_t get_first(const char *const *answers, size_t piece, struct server *server,
                                char value[HORON_SPACE_VALUE_BYTES], struct horon_error *error)
{
    struct horon_space space;
    begin(server, &space, answers);
    server->piece = piece;
    assert_int_equal(horon_space_horovod.open(&space, error), HORON_OK);
    const horon_status_t status = horon_space_horovod.get(&space, 0, "horon", value, error);
    end(server);
    return status;
}

static void test_horovod_asks_in_a_scope_of_the_job(void **state)
{
    static const char *const answers[] = {OK(0), NOTHING, OK(5) "a,b:1", NULL};
    struct server server;
    struct horon_space space;
    struct horon_error error;
    char value[HORON_SPACE_VALUE_BYTES];
    (void)state;
    begin(&server, &space, answers);
    assert_int_equal(space.calls->open(&space, &error), HORON_OK);
    assert_int_equal(space.calls->put(&space, "horon", "a,b:1", &error), HORON_OK);
    assert_int_equal(space.calls->get(&space, 0, "horon.2", value, &error), HORON_AGAIN);
    assert_int_equal(space.calls->get(&space, 0, "horon", value, &error), HORON_OK);
    assert_string_equal(value, "a,b:1");
    end(&server);
    assert_string_equal(server.log, "PUT /horon.00000000000000ab/horon a,b:1\n"
                                    "GET /horon.00000000000000ab/horon.2 \n"
                                    "GET /horon.00000000000000ab/horon \n");
}

static void test_horovod_answers_may_come_in_pieces_or_without_length(void **state)
{
    static const char *const whole[] = {OK(7) "1,-,a:1", NULL};
    static const char *const no_length[] = {"HTTP/1.1 200 OK\r\nX: y\r\n\r\n1,-,a:1", NULL};
    static const char *const bare[] = {"HTTP/1.1 404 No\r\n\r\n", NULL};
    struct server server;
    struct horon_error error;
    char value[HORON_SPACE_VALUE_BYTES];
    (void)state;
    for (size_t piece = 0; piece < 4; piece++) {
        assert_int_equal(get_first(whole, piece, &server, value, &error), HORON_OK);
        assert_string_equal(value, "1,-,a:1");
        assert_int_equal(get_first(no_length, piece, &server, value, &error), HORON_OK);
        assert_string_equal(value, "1,-,a:1");
        assert_int_equal(get_first(bare, piece, &server, value, &error), HORON_AGAIN);
    }
}

static void test_horovod_what_is_no_answer_is_asked_for_again_then_told(void **state)
{
    static char endless[3 * HORON_HTTP_HEAD_BYTES_MAX] = "HTTP/1.0 200 OK\r\n\r\n";
    static const struct {
        const char *answer, *told;
        horon_status_t status;
    } cases[] = {
        {"HTTP/1.0 500 Oh\r\nContent-Length: 0\r\n\r\n", "the error 500", HORON_ERR_SYSTEM},
        {"", "before it answered", HORON_ERR_SYSTEM},
        {"HTTP/1.0 200 O", "before its answer was whole", HORON_ERR_SYSTEM},
        {OK(9) "1,-", "before its answer was whole", HORON_ERR_SYSTEM},
        {"SSH-2.0-OpenSSH_9.2\r\n", "is not HTTP", HORON_ERR_PROTO},
        {OK(1024), "with 1024 bytes", HORON_ERR_PROTO},
        {OK(999999999999999), "with 999999999999999 bytes", HORON_ERR_PROTO},
        {OK(9999999999999999), "is not HTTP", HORON_ERR_PROTO},
        {endless, "without end", HORON_ERR_PROTO},
    };
    struct server server;
    struct horon_error error;
    char value[HORON_SPACE_VALUE_BYTES];
    (void)state;
    memset(endless + strlen(endless), 'x', sizeof endless - 1 - strlen(endless));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *const always[] = {cases[i].answer, NULL};
        const char *const once[] = {cases[i].answer, OK(1) "v", NULL};
        print_message("%s\n", cases[i].told);
        assert_int_equal(get_first(always, 0, &server, value, &error), cases[i].status);
        assert_int_equal(server.asked, TRIES);
        assert_non_null(strstr(error.text, cases[i].told));
        assert_non_null(strstr(error.text, server.place));
        assert_non_null(strstr(error.text, "HOROVOD_GLOO_RENDEZVOUS_ADDR"));
        assert_int_equal(get_first(once, 0, &server, value, &error), HORON_OK);
        assert_int_equal(server.asked, 2);
    }
}

static void test_horovod_that_is_gone_or_unknown_is_named(void **state)
{
    struct horon_space space = {.calls = &horon_space_horovod, .server = "127.0.0.1:1"};
    struct horon_error error;
    char value[HORON_SPACE_VALUE_BYTES];
    (void)state;
    space.deadline_ns = horon_clock_deadline(horon_clock_ns(), 20000);
    assert_int_equal(space.calls->open(&space, &error), HORON_OK);
    assert_int_equal(space.calls->get(&space, 0, "k", value, &error), HORON_ERR_SYSTEM);
    assert_non_null(strstr(error.text, "127.0.0.1:1"));
    assert_non_null(strstr(error.text, "refused"));
    assert_non_null(strstr(error.text, "HORON_STORE"));
    space.server = "host.invalid:7";
    assert_int_equal(space.calls->open(&space, &error), HORON_ERR_CONFIG);
    assert_non_null(strstr(error.text, "host.invalid"));
}

static bool never(void *arg)
{
    (*(int *)arg)++;
    return false;
}

static void test_horovod_waits_no_longer_than_it_may(void **state)
{
    static const char *const silent[] = {SILENT, NULL}, *const nothing[] = {NOTHING, NULL};
    const char *const *scripts[] = {silent, nothing};
    static const char *const told[] = {"does not answer", "rank 0 has not said where to meet"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct server server;
        struct horon_space space;
        struct horon_error error;
        char value[HORON_SPACE_VALUE_BYTES];
        int asked = 0;
        begin(&server, &space, scripts[i]);
        assert_int_equal(space.calls->open(&space, &error), HORON_OK);
        space.deadline_ns = horon_clock_deadline(horon_clock_ns(), 60);
        assert_int_equal(space.calls->await(&space, 0, "horon", value, &error), HORON_ERR_TIMEOUT);
        assert_non_null(strstr(error.text, told[i]));
        assert_non_null(strstr(error.text, server.place));
        space.deadline_ns = UINT64_MAX;
        space.goes_on = never;
        space.arg = &asked;
        assert_int_equal(space.calls->await(&space, 0, "horon", value, &error),
                         HORON_ERR_CANCELLED);
        assert_int_equal(asked, 1);
        end(&server);
    }
}

static void test_horovod_awaits_what_comes_later(void **state)
{
    static const char *const answers[] = {NOTHING, NOTHING, NOTHING, OK(1) "v", NULL};
    struct server server;
    struct horon_space space;
    struct horon_error error;
    char value[HORON_SPACE_VALUE_BYTES];
    (void)state;
    begin(&server, &space, answers);
    assert_int_equal(space.calls->open(&space, &error), HORON_OK);
    assert_int_equal(space.calls->await(&space, 0, "horon", value, &error), HORON_OK);
    assert_string_equal(value, "v");
    end(&server);
    assert_int_equal(server.asked, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_horovod_asks_in_a_scope_of_the_job),
        cmocka_unit_test(test_horovod_answers_may_come_in_pieces_or_without_length),
        cmocka_unit_test(test_horovod_what_is_no_answer_is_asked_for_again_then_told),
        cmocka_unit_test(test_horovod_that_is_gone_or_unknown_is_named),
        cmocka_unit_test(test_horovod_waits_no_longer_than_it_may),
        cmocka_unit_test(test_horovod_awaits_what_comes_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
