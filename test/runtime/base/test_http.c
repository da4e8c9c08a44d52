/* SPDX-License-Identifier: Apache-2.0 */
/* Heads as Horovod's two ends write them, looked at after each byte; and what is no head. */
#undef NDEBUG
#include "http.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* As Python's http.server answers, and what Horovod's workers ask. */
static const char answer[] = "HTTP/1.0 200 OK\r\nServer: SimpleHTTP/0.6 Python/3.11.2\r\n"
                             "Date: Sat, 28 Nov 2026 10:00:00 GMT\r\nContent-Length: 136\r\n\r\n";
static const char request[] = "PUT /global/rank_0 HTTP/1.1\r\nHost: 10.0.0.1:4321\r\n"
                              "content-length:\t2 \r\n\r\n";

/* Each beginning in memory of its own, so that a sanitizer sees what is read beyond it. */
static horon_status_t look(const char *text, size_t bytes, struct horon_http *head)
{
    char *copy = malloc(bytes + 1);
    assert_non_null(copy);
    memcpy(copy, text, bytes);
    char *end = realloc(copy, bytes ? bytes : 1);
    const horon_status_t status = horon_http_look(end, bytes, head);
    free(end);
    return status;
}

static void check_split(const char *text, size_t head_bytes)
{
    struct horon_http head;
    for (size_t i = 0; i < head_bytes; i++)
        assert_int_equal(look(text, i, &head), HORON_AGAIN);
    for (size_t i = head_bytes; i <= strlen(text); i++) {
        assert_int_equal(look(text, i, &head), HORON_OK);
        assert_int_equal(head.head_bytes, head_bytes);
    }
}

static void test_http_head_is_whole_at_its_last_byte(void **state)
{
    (void)state;
    check_split(answer, strlen(answer));
    check_split(request, strlen(request));
    check_split("GET /a/b HTTP/1.1\r\n\r\n\r\nGET /", strlen("GET /a/b HTTP/1.1\r\n\r\n"));
}

static void test_http_head_says_what_and_how_long(void **state)
{
    struct horon_http head;
    (void)state;
    assert_int_equal(horon_http_look(NULL, 0, &head), HORON_AGAIN);
    assert_int_equal(horon_http_look(answer, strlen(answer), &head), HORON_OK);
    assert_int_equal(horon_http_code(&head), 200);
    assert_true(head.has_length);
    assert_int_equal(head.length, 136);
    assert_int_equal(horon_http_look(request, strlen(request), &head), HORON_OK);
    assert_true(horon_http_word_is(&head, 0, "PUT"));
    assert_true(horon_http_word_is(&head, 1, "/global/rank_0"));
    assert_false(horon_http_word_is(&head, 1, "/global/rank_"));
    assert_int_equal(head.length, 2);
    assert_int_equal(horon_http_code(&head), 0);
    static const char old[] = "HTTP/1.0 404 Not here\r\n\r\nall that comes";
    assert_int_equal(horon_http_look(old, strlen(old), &head), HORON_OK);
    assert_int_equal(horon_http_code(&head), 404);
    assert_false(head.has_length);
    static const char bare[] = "HTTP/1.1 500\r\n\r\n";
    assert_int_equal(horon_http_look(bare, strlen(bare), &head), HORON_OK);
    assert_int_equal(horon_http_code(&head), 500);
}

static void test_http_what_is_no_head_is_refused(void **state)
{
    static const char *const bad[] = {
        "\r\n\r\n",
        "GET\r\n\r\n",
        "GET  HTTP/1.1\r\n\r\n",
        " GET / HTTP/1.1\r\n\r\n",
        "GET /\n\n",
        "GET / HTTP/1.1\rX: 1\r\n\r\n",
        "GET / HTTP/1.1\r\nno colon\r\n\r\n",
        "GET / HTTP/1.1\r\n: nothing\r\n\r\n",
        "GET / HTTP/1.1\r\nA: 1\r\n folded\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length : 1\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length:\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: 1 2\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: 0x10\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: 1,1\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: 1000000000000000\r\n\r\n",
        "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nA: \033[31m\r\n\r\n",
        "GET / HTTP/1.1\r\nA: \177\r\n\r\n",
        "\026\003\001\002", /* TLS */
    };
    struct horon_http head;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        print_message("%zu\n", i);
        assert_int_equal(look(bad[i], strlen(bad[i]), &head), HORON_ERR_PROTO);
    }
    assert_int_equal(look("GET / HTTP/1.1\r\nA: \0\r\n\r\n", 24, &head), HORON_ERR_PROTO);
    static const char *const codes[] = {"HTTP/1.1 20 O\r\n\r\n",  "HTTP/1.1 2000 O\r\n\r\n",
                                        "HTTP/1.1 2x0 O\r\n\r\n", "HTTP/2 200 O\r\n\r\n",
                                        "HTTP/1.1 099 O\r\n\r\n", "ICY 200 OK\r\n\r\n"};
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        assert_int_equal(horon_http_look(codes[i], strlen(codes[i]), &head), HORON_OK);
        assert_int_equal(horon_http_code(&head), 0);
    }
}

static void test_http_head_beyond_the_limit_is_refused(void **state)
{
    static char text[HORON_HTTP_HEAD_BYTES_MAX + 64] = "GET /a/b HTTP/1.1\r\nA: ";
    struct horon_http head;
    (void)state;
    const size_t used = strlen(text), limit = HORON_HTTP_HEAD_BYTES_MAX;
    memset(text + used, 'x', sizeof text - used);
    assert_int_equal(horon_http_look(text, limit - 1, &head), HORON_AGAIN);
    assert_int_equal(horon_http_look(text, limit, &head), HORON_ERR_PROTO);
    memcpy(text + limit - 4, "\r\n\r\n", 4); /* the longest that there may be */
    assert_int_equal(horon_http_look(text, sizeof text, &head), HORON_OK);
    assert_int_equal(head.head_bytes, limit);
    memcpy(text + limit - 4, "x\r\n\r\n", 5);
    assert_int_equal(horon_http_look(text, sizeof text, &head), HORON_ERR_PROTO);
}

static void test_http_what_is_written_is_read(void **state)
{
    char text[256];
    struct horon_http head;
    (void)state;
    size_t bytes = horon_http_write_request(text, sizeof text, "GET", "/a/b", "[::1]:80", 0);
    assert_int_equal(horon_http_look(text, bytes, &head), HORON_OK);
    assert_int_equal(head.head_bytes, bytes);
    assert_true(horon_http_word_is(&head, 1, "/a/b"));
    assert_true(head.has_length);
    assert_int_equal(horon_http_write_request(text, bytes, "GET", "/a/b", "[::1]:80", 0), 0);
    static const int codes[] = {200, 400, 404, 405, 408, 413, 503, 507};
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        bytes = horon_http_write_answer(text, sizeof text, codes[i], 9);
        assert_int_equal(horon_http_look(text, bytes, &head), HORON_OK);
        assert_int_equal(horon_http_code(&head), codes[i]);
        assert_int_equal(head.length, 9);
        assert_int_equal(horon_http_write_answer(text, bytes, codes[i], 9), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_http_head_is_whole_at_its_last_byte),
        cmocka_unit_test(test_http_head_says_what_and_how_long),
        cmocka_unit_test(test_http_what_is_no_head_is_refused),
        cmocka_unit_test(test_http_head_beyond_the_limit_is_refused),
        cmocka_unit_test(test_http_what_is_written_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
