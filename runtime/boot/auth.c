/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A handshake is a row of pieces of known length; a piece is gathered whole and then judged, so
 * that the split of the stream cannot matter. The HELLOs are kept as they were sent, and the proofs
 * cover those bytes: whoever changes one of them, or plays back an old one, or sends our own proof
 * back to us, fails the proof. Nothing of a HELLO is believed before.
 *
 * The connector proves first: a stranger that connects to us learns nothing made with the key. What
 * follows the handshake is not here, and with HORON_SECURITY_PLAIN it is neither hidden nor signed.
 */
#include "boot/auth.h"

#include "codec.h"

#include <errno.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define HEAD_BYTES 10 /* magic and the length of the rest */
#define BODY_BYTES_MIN 96
#define BYTE_ORDER_MARK 0x01020304u

/* The carriage return and the end-of-file byte catch a text protocol that meets us, and a channel
 * that is not clean. */
static const uint8_t magic[8] = {'H', 'O', 'R', 'O', 'N', '\r', '\n', 0x1a};

struct part {
    const void *bytes;
    size_t count;
};

static horon_status_t hmac(const void *key, size_t key_bytes, const struct part *parts, int count,
                           uint8_t digest[HORON_PROOF_BYTES])
{
    horon_status_t status = HORON_ERR_SYSTEM;
    char sha[] = "SHA256";
    const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, sha, 0),
                                 OSSL_PARAM_construct_end()};
    size_t bytes = 0;
    EVP_MAC *mac = EVP_MAC_fetch(NULL, "HMAC", NULL);
    EVP_MAC_CTX *context = mac ? EVP_MAC_CTX_new(mac) : NULL;
    if (!context || !EVP_MAC_init(context, key, key_bytes, params))
        goto done;
    for (int i = 0; i < count; i++)
        if (!EVP_MAC_update(context, parts[i].bytes, parts[i].count))
            goto done;
    if (EVP_MAC_final(context, digest, &bytes, HORON_PROOF_BYTES) && bytes == HORON_PROOF_BYTES)
        status = HORON_OK;
done:
    EVP_MAC_CTX_free(context);
    EVP_MAC_free(mac);
    return status;
}

horon_status_t horon_auth_key_init(struct horon_auth_key *key, const void *text, size_t bytes,
                                   struct horon_error *error)
{
    static const char label[] = "horon job key 1"; /* makes a key of fixed size out of any text */
    const struct part part = {text, bytes};
    key->given = bytes > 0;
    if (hmac(label, sizeof label, &part, bytes ? 1 : 0, key->bytes) != HORON_OK)
        return horon_error_set(error, HORON_ERR_SYSTEM, "libcrypto offers no HMAC-SHA256");
    return HORON_OK;
}

horon_status_t horon_auth_digest(const struct horon_auth_key *key, const char *label,
                                 const void *bytes, size_t byte_count,
                                 uint8_t digest[HORON_PROOF_BYTES], struct horon_error *error)
{
    const struct part parts[] = {{label, strlen(label) + 1}, {bytes, byte_count}};
    if (hmac(key->bytes, sizeof key->bytes, parts, byte_count ? 2 : 1, digest) != HORON_OK)
        return horon_error_set(error, HORON_ERR_SYSTEM, "libcrypto offers no HMAC-SHA256");
    return HORON_OK;
}

bool horon_auth_equal(const uint8_t a[HORON_PROOF_BYTES], const uint8_t b[HORON_PROOF_BYTES])
{
    return CRYPTO_memcmp(a, b, HORON_PROOF_BYTES) == 0;
}

horon_status_t horon_random(void *bytes, size_t byte_count, struct horon_error *error)
{
    uint8_t *at = bytes;
    while (byte_count) {
        ssize_t got = getrandom(at, byte_count, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno,
                                         "the kernel gives no random bytes");
        at += got;
        byte_count -= (size_t)got;
    }
    return HORON_OK;
}

static void encode_hello(uint8_t *bytes, size_t *bytes_out, const struct horon_hello *hello,
                         const uint8_t nonce[HORON_NONCE_BYTES])
{
    const uint32_t order = BYTE_ORDER_MARK;
    struct horon_writer out = horon_writer_over(bytes, HORON_HELLO_BYTES_MAX);
    horon_write_bytes(&out, magic, sizeof magic);
    horon_write_u16(&out, BODY_BYTES_MIN);
    horon_write_bytes(&out, nonce, HORON_NONCE_BYTES);
    horon_write_u16(&out, hello->protocol_min);
    horon_write_u16(&out, hello->protocol_max);
    horon_write_u8(&out, hello->role);
    horon_write_u8(&out, hello->security);
    horon_write_u16(&out, 0); /* reserved */
    horon_write_bytes(&out, &order, sizeof order);
    horon_write_u32(&out, (uint32_t)hello->rank);
    horon_write_bytes(&out, hello->member, sizeof hello->member);
    horon_write_u32(&out, hello->size);
    horon_write_u32(&out, 0); /* reserved */
    horon_write_u64(&out, hello->generation);
    horon_write_u64(&out, hello->job);
    horon_write_u64(&out, hello->settings);
    *bytes_out = out.used;
}

/* The wire is little-endian; only the mark is as the sender's machine stores it. */
static bool decode_hello(const uint8_t *bytes, size_t byte_count, struct horon_hello *hello)
{
    struct horon_reader in = horon_reader_over(bytes, byte_count);
    horon_read_view(&in, HEAD_BYTES + HORON_NONCE_BYTES);
    hello->protocol_min = horon_read_u16(&in);
    hello->protocol_max = horon_read_u16(&in);
    hello->role = horon_read_u8(&in);
    hello->security = horon_read_u8(&in);
    horon_read_u16(&in);
    const void *order = horon_read_view(&in, sizeof hello->byte_order);
    if (order)
        memcpy(&hello->byte_order, order, sizeof hello->byte_order);
    hello->rank = (int32_t)horon_read_u32(&in);
    const void *member = horon_read_view(&in, sizeof hello->member);
    if (member)
        memcpy(hello->member, member, sizeof hello->member);
    hello->size = horon_read_u32(&in);
    horon_read_u32(&in);
    hello->generation = horon_read_u64(&in);
    hello->job = horon_read_u64(&in);
    hello->settings = horon_read_u64(&in);
    return in.ok;
}

static void want(struct horon_auth *auth, enum horon_auth_state state, size_t bytes)
{
    auth->state = state;
    auth->piece_bytes = 0;
    auth->piece_want = bytes;
}

static void queue(struct horon_auth *auth, const void *bytes, size_t byte_count)
{
    memcpy(auth->out + auth->out_bytes, bytes, byte_count); /* the buffer fits the longest row */
    auth->out_bytes += byte_count;
}

void horon_auth_init(struct horon_auth *auth, bool acceptor, const struct horon_auth_key *key,
                     const struct horon_hello *mine, const uint8_t nonce[HORON_NONCE_BYTES])
{
    const int side = acceptor ? 0 : 1;
    memset(auth, 0, sizeof *auth);
    auth->key = key;
    auth->acceptor = acceptor;
    auth->mine = *mine;
    auth->mine.byte_order = BYTE_ORDER_MARK;
    encode_hello(auth->hello[side], &auth->hello_bytes[side], mine, nonce);
    if (acceptor)
        queue(auth, auth->hello[0], auth->hello_bytes[0]);
    want(auth, HORON_AUTH_READ_HEAD, HEAD_BYTES);
}

static horon_status_t fail(struct horon_auth *auth, horon_status_t status, const char *text)
{
    want(auth, HORON_AUTH_FAILED, 0);
    return horon_error_set(&auth->error, status, "%s", text);
}

static horon_status_t make_proof(struct horon_auth *auth, bool of_acceptor, uint8_t *proof)
{
    const char *label = of_acceptor ? "horon proof 1 of acceptor" : "horon proof 1 of connector";
    const struct part parts[] = {{label, strlen(label) + 1},
                                 {auth->hello[0], auth->hello_bytes[0]},
                                 {auth->hello[1], auth->hello_bytes[1]}};
    if (hmac(auth->key->bytes, sizeof auth->key->bytes, parts, 3, proof) != HORON_OK)
        return fail(auth, HORON_ERR_SYSTEM, "libcrypto offers no HMAC-SHA256");
    return HORON_OK;
}

static horon_status_t judge_head(struct horon_auth *auth)
{
    const size_t body = (size_t)auth->piece[8] | (size_t)auth->piece[9] << 8;
    if (memcmp(auth->piece, magic, sizeof magic) != 0)
        return fail(auth, HORON_ERR_PROTO,
                    auth->acceptor ? "what connects is not horon"
                                   : "what answers there is not horon");
    if (body < BODY_BYTES_MIN || body > HORON_HELLO_BYTES_MAX - HEAD_BYTES)
        return fail(auth, HORON_ERR_PROTO, "a hello has an impossible length");
    const int side = auth->acceptor ? 1 : 0;
    memcpy(auth->hello[side], auth->piece, HEAD_BYTES);
    auth->hello_bytes[side] = HEAD_BYTES;
    want(auth, HORON_AUTH_READ_HELLO, body);
    return HORON_AGAIN;
}

static horon_status_t judge_hello(struct horon_auth *auth)
{
    const int side = auth->acceptor ? 1 : 0;
    memcpy(auth->hello[side] + HEAD_BYTES, auth->piece, auth->piece_bytes);
    auth->hello_bytes[side] += auth->piece_bytes;
    if (!decode_hello(auth->hello[side], auth->hello_bytes[side], &auth->theirs))
        return fail(auth, HORON_ERR_PROTO, "a hello is cut short");
    if (auth->acceptor) {
        want(auth, HORON_AUTH_READ_PROOF, HORON_PROOF_BYTES);
        return HORON_AGAIN;
    }
    uint8_t proof[HORON_PROOF_BYTES];
    horon_status_t status = make_proof(auth, false, proof);
    if (status != HORON_OK)
        return status;
    queue(auth, auth->hello[1], auth->hello_bytes[1]);
    queue(auth, proof, sizeof proof);
    want(auth, HORON_AUTH_READ_VERDICT, 1);
    return HORON_AGAIN;
}

static horon_status_t judge_proof(struct horon_auth *auth)
{
    uint8_t proof[HORON_PROOF_BYTES];
    horon_status_t status = make_proof(auth, false, proof);
    if (status != HORON_OK)
        return status;
    if (!horon_auth_equal(proof, auth->piece)) {
        queue(auth, "N", 1);
        return fail(auth, HORON_ERR_AUTH, "its proof of the job key is wrong");
    }
    status = make_proof(auth, true, proof);
    if (status != HORON_OK)
        return status;
    queue(auth, "Y", 1);
    queue(auth, proof, sizeof proof);
    want(auth, HORON_AUTH_READ_CONFIRM, 1);
    return HORON_AGAIN;
}

static horon_status_t judge_verdict(struct horon_auth *auth)
{
    if (auth->piece[0] == 'N')
        return fail(auth, HORON_ERR_AUTH, "it does not accept our proof: the job keys differ");
    if (auth->piece[0] != 'Y')
        return fail(auth, HORON_ERR_PROTO, "it answers our proof with neither yes nor no");
    want(auth, HORON_AUTH_READ_ANSWER, HORON_PROOF_BYTES);
    return HORON_AGAIN;
}

static horon_status_t judge_answer(struct horon_auth *auth)
{
    uint8_t proof[HORON_PROOF_BYTES];
    horon_status_t status = make_proof(auth, true, proof);
    if (status != HORON_OK)
        return status;
    if (!horon_auth_equal(proof, auth->piece))
        return fail(auth, HORON_ERR_AUTH, "its proof of the job key is wrong");
    want(auth, HORON_AUTH_PROVEN, 0);
    return HORON_OK;
}

static horon_status_t judge_confirm(struct horon_auth *auth)
{
    if (auth->piece[0] != 'K')
        return fail(auth, HORON_ERR_PROTO, "it does not confirm the connection");
    want(auth, HORON_AUTH_PROVEN, 0);
    return HORON_OK;
}

static horon_status_t judge(struct horon_auth *auth)
{
    switch (auth->state) {
    case HORON_AUTH_READ_HEAD:
        return judge_head(auth);
    case HORON_AUTH_READ_HELLO:
        return judge_hello(auth);
    case HORON_AUTH_READ_PROOF:
        return judge_proof(auth);
    case HORON_AUTH_READ_VERDICT:
        return judge_verdict(auth);
    case HORON_AUTH_READ_ANSWER:
        return judge_answer(auth);
    case HORON_AUTH_READ_CONFIRM:
        return judge_confirm(auth);
    case HORON_AUTH_PROVEN:
        return HORON_OK;
    case HORON_AUTH_FAILED:
        return auth->error.status;
    }
    return HORON_ERR_PROTO;
}

size_t horon_auth_want(const struct horon_auth *auth)
{
    return auth->piece_want - auth->piece_bytes;
}

horon_status_t horon_auth_feed(struct horon_auth *auth, const uint8_t *in, size_t bytes)
{
    horon_status_t status = HORON_AGAIN;
    if (auth->state == HORON_AUTH_PROVEN || auth->state == HORON_AUTH_FAILED)
        return judge(auth);
    while (bytes && status == HORON_AGAIN) {
        size_t wanted = horon_auth_want(auth);
        size_t part = bytes < wanted ? bytes : wanted;
        memcpy(auth->piece + auth->piece_bytes, in, part);
        auth->piece_bytes += part;
        in += part;
        bytes -= part;
        if (auth->piece_bytes == auth->piece_want)
            status = judge(auth);
    }
    return status;
}

const uint8_t *horon_auth_out(const struct horon_auth *auth, size_t *bytes_out)
{
    *bytes_out = auth->out_bytes - auth->out_sent;
    return *bytes_out ? auth->out + auth->out_sent : NULL;
}

void horon_auth_sent(struct horon_auth *auth, size_t bytes)
{
    auth->out_sent += bytes;
    if (auth->out_sent == auth->out_bytes)
        auth->out_sent = auth->out_bytes = 0;
}

void horon_auth_confirm(struct horon_auth *auth)
{
    queue(auth, "K", 1);
}

static const char *const role_names[] = {"store", "host", "peer"};

static const char *role_name(uint8_t role)
{
    return role < sizeof role_names / sizeof role_names[0] ? role_names[role] : "unknown";
}

static void name_side(const struct horon_hello *hello, char *text, size_t bytes)
{
    if (hello->rank < 0)
        snprintf(text, bytes, "the launcher");
    else
        snprintf(text, bytes, "rank %d", hello->rank);
}

static horon_status_t differ(const struct horon_hello *mine, const struct horon_hello *theirs,
                             const char *what, uint64_t my_value, uint64_t their_value,
                             struct horon_error *error)
{
    char my_name[32], their_name[32];
    name_side(mine, my_name, sizeof my_name);
    name_side(theirs, their_name, sizeof their_name);
    return horon_error_set(error, HORON_ERR_PROTO, "%s differs: %llx on %s, %llx on %s", what,
                           (unsigned long long)my_value, my_name, (unsigned long long)their_value,
                           their_name);
}

static bool differ_if_known(uint64_t a, uint64_t b)
{
    return a && b && a != b;
}

horon_status_t horon_hello_check(const struct horon_hello *mine, const struct horon_hello *theirs,
                                 struct horon_error *error)
{
    char name[32], my_name[32];
    name_side(mine, my_name, sizeof my_name);
    name_side(theirs, name, sizeof name);
    if (theirs->protocol_min > mine->protocol_max || theirs->protocol_max < mine->protocol_min)
        return horon_error_set(error, HORON_ERR_PROTO,
                               "%s speaks versions %d to %d of horon's protocol, %s %d to %d: "
                               "different releases do not mix here",
                               name, theirs->protocol_min, theirs->protocol_max, my_name,
                               mine->protocol_min, mine->protocol_max);
    if (mine->role != theirs->role)
        return horon_error_set(error, HORON_ERR_PROTO, "a %s connection met a %s connection of %s",
                               role_name(mine->role), role_name(theirs->role), name);
    if (differ_if_known(mine->job, theirs->job))
        return horon_error_set(error, HORON_ERR_INVALID, "another job answers there");
    if (theirs->byte_order != BYTE_ORDER_MARK) /* by this machine's reading */
        return differ(mine, theirs, "the byte order", BYTE_ORDER_MARK, theirs->byte_order, error);
    if (mine->security != theirs->security)
        return differ(mine, theirs, "the security mode", mine->security, theirs->security, error);
    if (mine->size != theirs->size)
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "%s believes in a job of %u ranks, %s in one of %u", my_name,
                               mine->size, name, theirs->size);
    if (mine->generation != theirs->generation)
        return differ(mine, theirs, "the generation", mine->generation, theirs->generation, error);
    if (differ_if_known(mine->settings, theirs->settings))
        return differ(mine, theirs, "the hash of the settings that must agree", mine->settings,
                      theirs->settings, error);
    return HORON_OK;
}
