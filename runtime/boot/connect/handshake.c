/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A handshake is a row of pieces of known length; a piece is gathered whole and then judged, so
 * that the split of the stream cannot matter. The HELLOs are kept as they were sent, and what is
 * derived covers those bytes: a relay that changes one of them, or plays back an old one, or sends
 * our own proof back to us, fails the proof. Nothing of a HELLO is believed before.
 *
 * What a stranger may learn. Strangers connect to a listener, and a connector may reach one that
 * took an address. If a proof were a digest over what the other side chose or saw, the side that
 * proves first would hand a stranger something to try keys on at leisure, without us; an exchange
 * of plain ephemeral keys does not change that, since the stranger takes part in it. So the job key
 * goes into the exchange itself (exchange.c): a stranger can test one guess a connection, with our
 * help; one that only listens can test none, even after it learns the key. So it does not matter
 * which side proves first. The acceptor does, since the connector can tell the other side why it
 * goes: a stranger gets a point, and a digest that it can compare with one guess.
 *
 *     K = what the exchange gives
 *     P = HKDF-Extract("horon handshake 2", HELLO of connector, HELLO of acceptor, K, job key)
 *     proofs and secrets = HKDF-Expand(P, what and of which side), with SHA-256
 *
 * What follows the handshake is not here, and with HORON_SECURITY_PLAIN it is neither hidden nor
 * signed.
 */
#include "boot/connect/handshake.h"

#include "codec.h"

#include <assert.h>
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define HEAD_BYTES 10     /* magic and the length of the rest */
#define BODY_BYTES_MIN 96 /* version 1; the share of the exchange follows */
#define SHARE_AT (HEAD_BYTES + BODY_BYTES_MIN)
#define BODY_BYTES (BODY_BYTES_MIN + HORON_POINT_BYTES)
#define BYTE_ORDER_MARK 0x01020304u

/* The carriage return and the end-of-file byte catch a text protocol that meets us, and a channel
 * that is not clean. */
static const uint8_t magic[8] = {'H', 'O', 'R', 'O', 'N', '\r', '\n', 0x1a};

static const char impossible_length[] = "a hello has an impossible length";

static bool hmac(const void *key, size_t key_bytes, const void *data, size_t data_bytes,
                 uint8_t digest[HORON_PROOF_BYTES])
{
    size_t bytes = 0;
    return EVP_Q_mac(NULL, "HMAC", NULL, "SHA256", NULL, key, key_bytes, data, data_bytes, digest,
                     HORON_PROOF_BYTES, &bytes) &&
           bytes == HORON_PROOF_BYTES;
}

horon_status_t horon_job_key_from_text(struct horon_job_key *key, const void *text, size_t bytes,
                                       struct horon_error *error)
{
    static const char label[] = "horon job key 1"; /* makes a key of fixed size out of any text */
    struct {
        char label[17];
        uint8_t half;
    } of = {"horon exchange 2", 0};
    uint8_t seed[2 * HORON_PROOF_BYTES];
    key->given = bytes > 0;
    bool ok = hmac(label, sizeof label, text, bytes, key->bytes);
    for (; of.half < 2 && ok; of.half++)
        ok =
            hmac(key->bytes, sizeof key->bytes, &of, sizeof of, seed + of.half * HORON_PROOF_BYTES);
    ok = ok && horon_exchange_masks(seed, &key->masks) == HORON_OK;
    OPENSSL_cleanse(seed, sizeof seed);
    return ok ? HORON_OK
              : horon_error_set(error, HORON_ERR_SYSTEM,
                                "libcrypto offers no HMAC-SHA256 or P-256");
}

horon_status_t horon_random(void *bytes, size_t byte_count, struct horon_error *error)
{
    assert(byte_count <= 256); /* more are not given at once */
    return getentropy(bytes, byte_count) == 0
               ? HORON_OK
               : horon_error_set_errno(error, HORON_ERR_SYSTEM, errno,
                                       "the kernel gives no random bytes");
}

/* Between this machine's order and the wire's, either way. The mark stays as it is stored, and the
 * share, which follows, is read where it lies. */
static void swap_numbers(struct horon_hello *hello)
{
    static_assert(sizeof *hello == BODY_BYTES_MIN - HORON_NONCE_BYTES, "it is laid out as sent");
    hello->protocol_min = htole16(hello->protocol_min);
    hello->protocol_max = htole16(hello->protocol_max);
    hello->rank = (int32_t)htole32((uint32_t)hello->rank);
    hello->size = htole32(hello->size);
    hello->generation = htole32(hello->generation);
    hello->job = htole64(hello->job);
    hello->settings = htole64(hello->settings);
}

/* That the other side is the rank that it says is not proven yet: no text says so. */
static horon_status_t versions_check(const struct horon_hello *mine,
                                     const struct horon_hello *theirs, struct horon_error *error)
{
    if (theirs->protocol_min <= mine->protocol_max && theirs->protocol_max >= mine->protocol_min)
        return HORON_OK;
    return horon_error_set(error, HORON_ERR_PROTO,
                           "the other side speaks versions %d to %d of horon's protocol, this one "
                           "%d to %d: different releases do not mix here",
                           theirs->protocol_min, theirs->protocol_max, mine->protocol_min,
                           mine->protocol_max);
}

#define BIT(state) (1u << (state))

/* Where each side may go from a state; to FAILED it may from any but the last two. */
static const uint8_t legal[2][HORON_HANDSHAKE_FAILED + 1] = {
    [HORON_SIDE_CONNECTOR] = {[HORON_HANDSHAKE_READ_HEAD] = BIT(HORON_HANDSHAKE_READ_HELLO),
                              [HORON_HANDSHAKE_READ_HELLO] = BIT(HORON_HANDSHAKE_READ_PROOF),
                              [HORON_HANDSHAKE_READ_PROOF] = BIT(HORON_HANDSHAKE_PROVEN)},
    [HORON_SIDE_ACCEPTOR] = {[HORON_HANDSHAKE_READ_HEAD] = BIT(HORON_HANDSHAKE_READ_HELLO),
                             [HORON_HANDSHAKE_READ_HELLO] = BIT(HORON_HANDSHAKE_READ_VERDICT),
                             [HORON_HANDSHAKE_READ_VERDICT] = BIT(HORON_HANDSHAKE_READ_PROOF),
                             [HORON_HANDSHAKE_READ_PROOF] = BIT(HORON_HANDSHAKE_PROVEN)},
};

/* To the state that reads the next @p bytes bytes, or to one of the two last. */
static void move(struct horon_handshake *handshake, enum horon_handshake_state state, size_t bytes)
{
    assert(handshake->state < HORON_HANDSHAKE_PROVEN);
    assert(state == HORON_HANDSHAKE_FAILED ||
           (legal[handshake->side][handshake->state] & BIT(state)));
    handshake->state = state;
    handshake->piece_at = handshake->said_bytes[!handshake->side];
    handshake->piece_bytes = bytes;
    assert(bytes <= sizeof handshake->said[0] - handshake->piece_at);
}

static void say(struct horon_handshake *handshake, const void *bytes, size_t byte_count)
{
    size_t *said_bytes = &handshake->said_bytes[handshake->side];
    assert(byte_count <= sizeof handshake->said[0] - *said_bytes); /* it fits the longest row */
    memcpy(handshake->said[handshake->side] + *said_bytes, bytes, byte_count);
    *said_bytes += byte_count;
}

static void say_hello(struct horon_handshake *handshake)
{
    assert(handshake->said_bytes[handshake->side] == 0);
    handshake->said_bytes[handshake->side] = handshake->hello_bytes[handshake->side];
}

static horon_status_t keys_differ(struct horon_handshake *handshake, const char *what)
{
    return horon_error_set(&handshake->error, HORON_ERR_AUTH, "%s: the job keys differ%s", what,
                           handshake->key->given
                               ? ""
                               : " (this side was given none, and then only processes of one user "
                                 "can join)");
}

horon_status_t horon_handshake_init(struct horon_handshake *handshake, enum horon_side side,
                                    const struct horon_job_key *key, const struct horon_hello *mine,
                                    const uint8_t random[HORON_HANDSHAKE_RANDOM_BYTES])
{
    uint8_t share[HORON_POINT_BYTES];
    struct horon_writer out = horon_writer_over(handshake->said[side], HORON_HELLO_BYTES_MAX);
    struct horon_hello hello = *mine;
    memset(handshake, 0, sizeof *handshake);
    handshake->key = key;
    handshake->side = side;
    handshake->piece_bytes = HEAD_BYTES;
    hello.byte_order = BYTE_ORDER_MARK;
    handshake->mine = hello;
    if (horon_exchange_begin(&key->masks, side, random + HORON_NONCE_BYTES, handshake->scalar,
                             share) != HORON_OK) {
        move(handshake, HORON_HANDSHAKE_FAILED, 0);
        return horon_error_set(&handshake->error, HORON_ERR_SYSTEM,
                               "libcrypto offers no exchange over P-256");
    }
    swap_numbers(&hello);
    horon_write_bytes(&out, magic, sizeof magic);
    horon_write_u16(&out, BODY_BYTES);
    horon_write_bytes(&out, random, HORON_NONCE_BYTES);
    horon_write_bytes(&out, &hello, sizeof hello);
    horon_write_bytes(&out, share, sizeof share);
    assert(out.ok);
    assert(out.used == HEAD_BYTES + BODY_BYTES);
    handshake->hello_bytes[side] = out.used;
    if (side == HORON_SIDE_ACCEPTOR)
        say_hello(handshake);
    return HORON_OK;
}

void horon_handshake_deinit(struct horon_handshake *handshake)
{
    OPENSSL_cleanse(handshake, sizeof *handshake);
}

/* Both HELLOs are known: makes all that is derived of them. */
static horon_status_t derive(struct horon_handshake *handshake)
{
    static const char salt[] = "horon handshake 2";
    /* HKDF-Expand to one block: what it is of, and that this is block 1 */
    static const char *const proof_labels[] = {"proof of connector\1", "proof of acceptor\1"};
    static const char *const secret_labels[] = {"secret of connector\1", "secret of acceptor\1"};
    uint8_t shared[HORON_POINT_BYTES] = {0}, from[HORON_PROOF_BYTES];
    uint8_t all[2 * HORON_HELLO_BYTES_MAX + sizeof shared + sizeof handshake->key->bytes];
    struct horon_writer out = horon_writer_over(all, sizeof all);
    const uint8_t *theirs = handshake->said[!handshake->side] + SHARE_AT;
    horon_status_t status = horon_exchange_end(&handshake->key->masks, handshake->side,
                                               handshake->scalar, theirs, shared);
    OPENSSL_cleanse(handshake->scalar, sizeof handshake->scalar);
    if (status == HORON_ERR_PROTO)
        return horon_error_set(&handshake->error, status,
                               "its share of the key exchange makes no sense");
    for (int side = 0; side < 2; side++) /* a HELLO says its own length */
        horon_write_bytes(&out, handshake->said[side], handshake->hello_bytes[side]);
    horon_write_bytes(&out, shared, sizeof shared);
    horon_write_bytes(&out, handshake->key->bytes, sizeof handshake->key->bytes);
    assert(out.ok);
    bool ok = status == HORON_OK && hmac(salt, strlen(salt), all, out.used, from);
    for (int side = 0; side < 2 && ok; side++) {
        const char *proof = proof_labels[side], *secret = secret_labels[side];
        ok = hmac(from, sizeof from, proof, strlen(proof), handshake->proof[side]) &&
             hmac(from, sizeof from, secret, strlen(secret), handshake->secret[side]);
    }
    OPENSSL_cleanse(all, sizeof all);
    OPENSSL_cleanse(shared, sizeof shared);
    OPENSSL_cleanse(from, sizeof from);
    return ok ? HORON_OK
              : horon_error_set(&handshake->error, HORON_ERR_SYSTEM,
                                "libcrypto cannot derive a secret");
}

/* What judges a piece moves on if it is good, else it says what is wrong. */

static horon_status_t judge_head(struct horon_handshake *handshake, const uint8_t *piece)
{
    const size_t body = (size_t)piece[8] | (size_t)piece[9] << 8;
    if (memcmp(piece, magic, sizeof magic) != 0)
        return horon_error_set(&handshake->error, HORON_ERR_PROTO,
                               handshake->side == HORON_SIDE_ACCEPTOR
                                   ? "what connects is not horon"
                                   : "what answers there is not horon");
    if (body < BODY_BYTES_MIN || body > HORON_HELLO_BYTES_MAX - HEAD_BYTES)
        return horon_error_set(&handshake->error, HORON_ERR_PROTO, impossible_length);
    move(handshake, HORON_HANDSHAKE_READ_HELLO, body);
    return HORON_AGAIN;
}

static horon_status_t judge_hello(struct horon_handshake *handshake, const uint8_t *piece)
{
    handshake->hello_bytes[!handshake->side] = HEAD_BYTES + handshake->piece_bytes;
    memcpy(&handshake->theirs, piece + HORON_NONCE_BYTES, sizeof handshake->theirs);
    swap_numbers(&handshake->theirs);
    /* not proven, but there is no common way to prove it */
    horon_status_t status = versions_check(&handshake->mine, &handshake->theirs, &handshake->error);
    if (status == HORON_OK && handshake->piece_bytes < BODY_BYTES)
        status = horon_error_set(&handshake->error, HORON_ERR_PROTO, impossible_length);
    if (status == HORON_OK)
        status = derive(handshake);
    if (status != HORON_OK)
        return status;
    if (handshake->side == HORON_SIDE_CONNECTOR) {
        say_hello(handshake);
        move(handshake, HORON_HANDSHAKE_READ_PROOF, HORON_PROOF_BYTES);
    } else {
        say(handshake, handshake->proof[handshake->side], HORON_PROOF_BYTES);
        move(handshake, HORON_HANDSHAKE_READ_VERDICT, 1);
    }
    return HORON_AGAIN;
}

static horon_status_t judge_verdict(struct horon_handshake *handshake, const uint8_t *piece)
{
    if (piece[0] == 'N')
        return keys_differ(handshake, "it does not accept our proof");
    if (piece[0] != 'Y')
        return horon_error_set(&handshake->error, HORON_ERR_PROTO,
                               "it answers our proof with neither yes nor no");
    move(handshake, HORON_HANDSHAKE_READ_PROOF, HORON_PROOF_BYTES);
    return HORON_AGAIN;
}

static horon_status_t judge_proof(struct horon_handshake *handshake, const uint8_t *piece)
{
    const bool connects = handshake->side == HORON_SIDE_CONNECTOR;
    const bool right =
        CRYPTO_memcmp(handshake->proof[!handshake->side], piece, HORON_PROOF_BYTES) == 0;
    if (connects)
        say(handshake, right ? "Y" : "N", 1);
    if (!right)
        return keys_differ(handshake, "its proof is wrong");
    if (connects)
        say(handshake, handshake->proof[handshake->side], HORON_PROOF_BYTES);
    move(handshake, HORON_HANDSHAKE_PROVEN, 0);
    return HORON_OK;
}

static horon_status_t (*const judges[])(struct horon_handshake *, const uint8_t *piece) = {
    [HORON_HANDSHAKE_READ_HEAD] = judge_head,
    [HORON_HANDSHAKE_READ_HELLO] = judge_hello,
    [HORON_HANDSHAKE_READ_VERDICT] = judge_verdict,
    [HORON_HANDSHAKE_READ_PROOF] = judge_proof,
};

size_t horon_handshake_want(const struct horon_handshake *handshake)
{
    return handshake->piece_at + handshake->piece_bytes - handshake->said_bytes[!handshake->side];
}

horon_status_t horon_handshake_feed(struct horon_handshake *handshake, const uint8_t *in,
                                    size_t bytes)
{
    uint8_t *said = handshake->said[!handshake->side];
    size_t *said_bytes = &handshake->said_bytes[!handshake->side];
    horon_status_t status = HORON_AGAIN;
    if (handshake->state >= HORON_HANDSHAKE_PROVEN)
        return handshake->error.status; /* OK if it is proven */
    while (bytes && status == HORON_AGAIN) {
        const size_t wanted = horon_handshake_want(handshake);
        const size_t part = bytes < wanted ? bytes : wanted;
        memcpy(said + *said_bytes, in, part);
        *said_bytes += part;
        in += part;
        bytes -= part;
        if (part == wanted)
            status = judges[handshake->state](handshake, said + handshake->piece_at);
    }
    if (status < 0)
        move(handshake, HORON_HANDSHAKE_FAILED, 0);
    return status;
}

const uint8_t *horon_handshake_out(const struct horon_handshake *handshake, size_t *bytes_out)
{
    *bytes_out = handshake->said_bytes[handshake->side] - handshake->sent_bytes;
    return *bytes_out ? handshake->said[handshake->side] + handshake->sent_bytes : NULL;
}

void horon_handshake_sent(struct horon_handshake *handshake, size_t bytes)
{
    assert(bytes <= handshake->said_bytes[handshake->side] - handshake->sent_bytes);
    handshake->sent_bytes += bytes;
}

struct horon_proven horon_handshake_take(const struct horon_handshake *handshake, int fd)
{
    struct horon_proven proven = {.fd = fd, .theirs = handshake->theirs};
    assert(handshake->state == HORON_HANDSHAKE_PROVEN);
    memcpy(proven.send_secret, handshake->secret[handshake->side], HORON_SECRET_BYTES);
    memcpy(proven.receive_secret, handshake->secret[!handshake->side], HORON_SECRET_BYTES);
    return proven;
}

static const char *role_name(uint8_t role)
{
    static const char *const names[] = {"store", "peer"};
    return role < sizeof names / sizeof names[0] ? names[role] : "unknown";
}

static bool differ_if_known(uint64_t a, uint64_t b)
{
    return a && b && a != b;
}

/* A launcher serves jobs of some of its ranks, too, each with a mark and a size of its own. */
static bool serves_selection(const struct horon_hello *launcher, const struct horon_hello *rank)
{
    return launcher->role == HORON_ROLE_STORE && launcher->rank == -1 && launcher->job == 0 &&
           rank->job != 0 && rank->size < launcher->size;
}

struct name {
    char text[32];
};

static struct name name_of(const struct horon_hello *hello)
{
    struct name name = {"the launcher"};
    if (hello->rank >= 0)
        snprintf(name.text, sizeof name.text, "rank %d", hello->rank);
    return name;
}

horon_status_t horon_hello_check(const struct horon_hello *mine, const struct horon_hello *theirs,
                                 struct horon_error *error)
{
    const bool settings = differ_if_known(mine->settings, theirs->settings);
    const struct {
        const char *what;
        uint64_t mine, theirs;
    } rows[] = {
        {"the byte order", BYTE_ORDER_MARK, theirs->byte_order}, /* by this machine's reading */
        {"the security mode", mine->security, theirs->security},
        {"the generation", mine->generation, theirs->generation},
        {"the hash of the settings that must agree", settings ? mine->settings : 0,
         settings ? theirs->settings : 0}};
    if (mine->role != theirs->role)
        return horon_error_set(error, HORON_ERR_PROTO, "a %s connection met a %s connection of %s",
                               role_name(mine->role), role_name(theirs->role),
                               name_of(theirs).text);
    if (differ_if_known(mine->job, theirs->job))
        return horon_error_set(error, HORON_ERR_INVALID, "another job answers there");
    if (mine->size != theirs->size && !serves_selection(mine, theirs) &&
        !serves_selection(theirs, mine))
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "%s believes in a job of %u ranks, %s in one of %u",
                               name_of(mine).text, mine->size, name_of(theirs).text, theirs->size);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].mine != rows[i].theirs)
            return horon_error_set(error, HORON_ERR_PROTO, "%s differs: %llx on %s, %llx on %s",
                                   rows[i].what, (unsigned long long)rows[i].mine,
                                   name_of(mine).text, (unsigned long long)rows[i].theirs,
                                   name_of(theirs).text);
    return HORON_OK;
}
