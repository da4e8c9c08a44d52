/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A handshake with a peer that says anything. The first byte chooses our side and whether what the
 * peer says is mended by somebody who knows the key (then the states behind the proof are reached),
 * the second how the bytes are split. Without the key nothing may ever be proven.
 */
#undef NDEBUG

#include "boot/auth.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const struct horon_hello hello = {.protocol_min = HORON_PROTOCOL_MIN,
                                         .protocol_max = HORON_PROTOCOL_MAX,
                                         .role = HORON_ROLE_PEER,
                                         .rank = 1,
                                         .size = 4,
                                         .job = 7,
                                         .settings = 9};

/* Puts the right proof where the script has one: the digest over both hellos as they were seen. */
static void mend(const struct horon_auth *auth, uint8_t *piece, size_t bytes)
{
    const bool acceptor_proves = !auth->acceptor;
    const char *label =
        acceptor_proves ? "horon proof 1 of acceptor" : "horon proof 1 of connector";
    uint8_t both[2 * HORON_HELLO_BYTES_MAX], proof[HORON_PROOF_BYTES];
    if ((auth->state != HORON_AUTH_READ_PROOF && auth->state != HORON_AUTH_READ_ANSWER) ||
        bytes != HORON_PROOF_BYTES)
        return;
    memcpy(both, auth->hello[0], auth->hello_bytes[0]);
    memcpy(both + auth->hello_bytes[0], auth->hello[1], auth->hello_bytes[1]);
    assert(horon_auth_digest(auth->key, label, both, auth->hello_bytes[0] + auth->hello_bytes[1],
                             proof, NULL) == HORON_OK);
    memcpy(piece, proof, sizeof proof);
}

static void drain(struct horon_auth *auth, size_t chunk)
{
    size_t bytes;
    const uint8_t *out;
    while ((out = horon_auth_out(auth, &bytes))) {
        volatile uint8_t last = out[bytes - 1]; /* the sanitizer sees a view that is too long */
        (void)last;
        horon_auth_sent(auth, bytes < chunk ? bytes : chunk);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct horon_auth_key key;
    struct horon_auth auth;
    struct horon_error error = {0};
    const uint8_t nonce[HORON_NONCE_BYTES] = {3};
    if (bytes < 2)
        return 0;
    const bool acceptor = data[0] & 1, knows_key = data[0] & 2, drains = data[0] & 4;
    const size_t chunk = data[1] ? data[1] : HORON_HELLO_BYTES_MAX;
    data += 2;
    bytes -= 2;
    assert(horon_auth_key_init(&key, "secret", 6, &error) == HORON_OK);
    horon_auth_init(&auth, acceptor, &key, &hello, nonce);
    horon_status_t status = HORON_AGAIN;
    while (bytes && status == HORON_AGAIN) {
        const size_t want = horon_auth_want(&auth);
        assert(want > 0 && want <= HORON_HELLO_BYTES_MAX);
        size_t part = bytes < want ? bytes : want;
        part = part < chunk || knows_key ? part : chunk;
        uint8_t *piece = malloc(part); /* of exact length, so that the sanitizer sees its end */
        assert(piece);
        memcpy(piece, data, part);
        if (knows_key)
            mend(&auth, piece, part);
        status = horon_auth_feed(&auth, piece, part);
        free(piece);
        data += part;
        bytes -= part;
        if (drains)
            drain(&auth, chunk);
    }
    assert(status == HORON_AGAIN || horon_auth_want(&auth) == 0);
    assert(status != HORON_OK || knows_key);
    assert(status >= 0 || auth.error.text[0]);
    if (status == HORON_OK)
        horon_hello_check(&hello, &auth.theirs, &error);
    drain(&auth, chunk);
    return 0;
}
