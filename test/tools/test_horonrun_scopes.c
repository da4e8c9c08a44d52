/* SPDX-License-Identifier: Apache-2.0 */
/* Horovod's rendezvous as its workers ask it: whole, in pieces, too much, and nonsense. */
#undef NDEBUG
#include "scopes.h"

#include "http.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 3 };

static struct horonrun_scopes *begin(void)
{
    struct horonrun_scopes *scopes = horonrun_scopes_create(RANKS);
    assert_non_null(scopes);
    assert_true(horonrun_scopes_declare(scopes, "global", RANKS));
    assert_true(horonrun_scopes_declare(scopes, "cross_0", 1));
    return scopes;
}

/* As Horovod's client writes it. @param value NULL: none @return the code; the body is in @p body
 */
static int ask(struct horonrun_scopes *scopes, const char *method, const char *path,
               const char *value, char body[64])
{
    char request[1024];
    struct horonrun_bytes answer = {0};
    struct horon_http head;
    const int bytes = snprintf(request, sizeof request,
                               "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %zu\r\n\r\n%s",
                               method, path, value ? strlen(value) : 0, value ? value : "");
    for (int i = 0; i < bytes; i++) /* before the last byte nothing is done */
        assert_int_equal(horonrun_scopes_ask(scopes, request, (size_t)i, &answer), HORON_AGAIN);
    assert_int_equal(horonrun_scopes_ask(scopes, request, (size_t)bytes, &answer), HORON_OK);
    assert_int_equal(horon_http_look(answer.data, answer.used, &head), HORON_OK);
    assert_int_equal(answer.used, head.head_bytes + head.length);
    assert_true(head.length < 64);
    memcpy(body, answer.data + head.head_bytes, head.length);
    body[head.length] = 0;
    const int code = horon_http_code(&head); /* a view into the answer */
    horonrun_bytes_deinit(&answer);
    return code;
}

static void expect(struct horonrun_scopes *scopes, const char *path, const char *value)
{
    char body[64];
    assert_int_equal(ask(scopes, "GET", path, NULL, body), value ? 200 : 404);
    assert_string_equal(body, value ? value : "");
}

static void test_scopes_keep_what_is_put(void **state)
{
    char body[64];
    struct horonrun_scopes *scopes = begin();
    (void)state;
    expect(scopes, "/global/0", NULL);
    assert_int_equal(ask(scopes, "PUT", "/global/0", "one", body), 200);
    assert_int_equal(ask(scopes, "PUT", "/local_a/0", "other", body), 200);
    expect(scopes, "/global/0", "one");
    assert_int_equal(ask(scopes, "PUT", "/global/0", "two", body), 200);
    expect(scopes, "/global/0", "two");
    assert_int_equal(ask(scopes, "PUT", "/global/0", "", body), 200); /* of a world of one */
    expect(scopes, "/global/0", "");
    expect(scopes, "/local_a/0", "other");
    expect(scopes, "/local_a/", NULL);
    horonrun_scopes_destroy(scopes);
}

static void test_scopes_declared_are_cleared_once_all_are_through(void **state)
{
    char body[64], key[32];
    struct horonrun_scopes *scopes = begin();
    (void)state;
    for (int round = 0; round < 2; round++) { /* as in the next init() of a process */
        assert_int_equal(ask(scopes, "PUT", "/global_more/0", "stays", body), 200);
        assert_int_equal(ask(scopes, "PUT", "/global/rank_0", "host", body), 200);
        for (int rank = 0; rank < RANKS; rank++) {
            expect(scopes, "/global/rank_0", "host");
            snprintf(key, sizeof key, "/global/%d", rank);
            assert_int_equal(ask(scopes, "DELETE", key, NULL, body), 200);
            /* another scope that ends meanwhile changes nothing */
            assert_int_equal(ask(scopes, "DELETE", "/cross_0/0", NULL, body), 200);
        }
        expect(scopes, "/global/rank_0", NULL);
        expect(scopes, "/global_more/0", "stays");
    }
    horonrun_scopes_destroy(scopes);
}

static void test_scopes_of_workers_lose_the_key_alone(void **state)
{
    char body[64];
    struct horonrun_scopes *scopes = begin();
    (void)state;
    assert_int_equal(ask(scopes, "PUT", "/adhoc/0", "a", body), 200);
    assert_int_equal(ask(scopes, "PUT", "/adhoc/1", "b", body), 200);
    assert_int_equal(ask(scopes, "DELETE", "/adhoc/0", NULL, body), 200);
    assert_int_equal(ask(scopes, "DELETE", "/adhoc/7", NULL, body), 200);
    expect(scopes, "/adhoc/0", NULL);
    expect(scopes, "/adhoc/1", "b");
    horonrun_scopes_destroy(scopes);
}

static int code_of(struct horonrun_scopes *scopes, const char *request)
{
    struct horonrun_bytes answer = {0};
    struct horon_http head;
    assert_int_equal(horonrun_scopes_ask(scopes, request, strlen(request), &answer), HORON_OK);
    assert_int_equal(horon_http_look(answer.data, answer.used, &head), HORON_OK);
    const int code = horon_http_code(&head); /* a view into the answer */
    horonrun_bytes_deinit(&answer);
    return code;
}

static void test_scopes_refuse_what_is_no_request(void **state)
{
    static const struct {
        const char *request;
        int code;
    } cases[] = {
        {"\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n\r\n", 400},
        {"GET /a HTTP/1.1\r\n\r\n", 400},
        {"GET a/b HTTP/1.1\r\n\r\n", 400},
        {"GET /a/b/c HTTP/1.1\r\n\r\n", 400},
        {"GET http://h/a/b HTTP/1.1\r\n\r\n", 400},
        {"PUT /a/b HTTP/1.1\r\n\r\n", 400}, /* no length */
        {"PUT /a/b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {"POST /a/b HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405},
        {"get /a/b HTTP/1.1\r\n\r\n", 405},
        /* told at once: nobody waits for that body */
        {"PUT /a/b HTTP/1.1\r\nContent-Length: 100000\r\n\r\n", 413},
        {"GET /a/b HTTP/1.1\r\nContent-Length: 999999999999999\r\n\r\n", 413},
    };
    struct horonrun_scopes *scopes = begin();
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        print_message("%s\n", cases[i].request);
        assert_int_equal(code_of(scopes, cases[i].request), cases[i].code);
    }
    expect(scopes, "/a/b", NULL);
    horonrun_scopes_destroy(scopes);
}

static void test_scopes_are_full_some_time(void **state)
{
    static char request[4600];
    struct horonrun_scopes *scopes = begin();
    int puts = 0, code = 200;
    (void)state;
    for (; code == 200 && puts < 100000; puts++) {
        const int head = snprintf(request, sizeof request,
                                  "PUT /s/%d HTTP/1.1\r\nContent-Length: 4400\r\n\r\n", puts);
        memset(request + head, 'x', 4400);
        request[head + 4400] = 0;
        code = code_of(scopes, request);
    }
    assert_int_equal(code, 507);
    assert_in_range(puts, 3000, 4000); /* 16 MiB */
    assert_int_equal(code_of(scopes, "DELETE /s/0 HTTP/1.1\r\n\r\n"), 200);
    assert_int_equal(code_of(scopes, request), 200); /* there is room again */
    horonrun_scopes_destroy(scopes);
}

static void test_scopes_tell_one_that_is_too_slow(void **state)
{
    struct horonrun_bytes answer = {0};
    struct horon_http head;
    (void)state;
    assert_true(horonrun_scopes_too_slow(&answer));
    assert_int_equal(horon_http_look(answer.data, answer.used, &head), HORON_OK);
    assert_int_equal(horon_http_code(&head), 408);
    horonrun_bytes_deinit(&answer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scopes_keep_what_is_put),
        cmocka_unit_test(test_scopes_declared_are_cleared_once_all_are_through),
        cmocka_unit_test(test_scopes_of_workers_lose_the_key_alone),
        cmocka_unit_test(test_scopes_refuse_what_is_no_request),
        cmocka_unit_test(test_scopes_are_full_some_time),
        cmocka_unit_test(test_scopes_tell_one_that_is_too_slow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
