/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections to horonrun's rendezvous server, one after another. Each begins with a byte that says
 * how many of the script's bytes come over it, and whether a head goes before them, so that deep
 * states are reached; each prefix is looked at. What is kept stays what was put, and is bounded.
 */
#undef NDEBUG

#include "scopes.h"

#include "http.h"

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check_answer(const struct horonrun_bytes *answer)
{
    struct horon_http head;
    assert(horon_http_look(answer->data, answer->used, &head) == HORON_OK);
    assert(horon_http_code(&head) >= 200);
    assert(answer->used == head.head_bytes + head.length);
}

/* Each prefix in memory of its own, so that the sanitizer sees what is read beyond. */
static void connect_once(struct horonrun_scopes *scopes, const char *text, size_t bytes)
{
    horon_status_t status = HORON_AGAIN;
    for (size_t i = 0; i <= bytes && status == HORON_AGAIN; i++) {
        struct horonrun_bytes answer = {0};
        char *copy = malloc(i ? i : 1);
        assert(copy);
        memcpy(copy, text, i);
        status = horonrun_scopes_ask(scopes, copy, i, &answer);
        free(copy);
        if (status == HORON_OK)
            check_answer(&answer);
        else
            assert(answer.used == 0);
        horonrun_bytes_deinit(&answer);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const methods[] = {"GET", "PUT", "DELETE", "HEAD"};
    struct horonrun_scopes *scopes = horonrun_scopes_create(2);
    assert(scopes);
    assert(horonrun_scopes_declare(scopes, "global", 2));
    assert(horonrun_scopes_declare(scopes, "g", 1));
    while (bytes >= 2) {
        char text[256];
        const uint8_t how = data[0];
        size_t take = data[1] & 63, used = 0;
        data += 2;
        bytes -= 2;
        take = take < bytes ? take : bytes;
        if (how & 128)
            used = (size_t)snprintf(text, sizeof text,
                                    "%s /%s/%d HTTP/1.1\r\nContent-Length: %zu"
                                    "\r\n%s",
                                    methods[how & 3], how & 4 ? "global" : "g", how >> 3 & 7,
                                    how & 64 ? take : 1, how & 64 ? "\r\n" : "");
        memcpy(text + used, data, take);
        data += take;
        bytes -= take;
        connect_once(scopes, text, used + take);
    }
    horonrun_scopes_destroy(scopes);
    return 0;
}
