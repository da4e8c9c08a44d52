/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handshake that every connection passes before its first frame is read: each side says which
 * rank it is (HELLO, with a share of a key exchange) and proves that it knows the job key. It hands
 * over a secret for each direction. Sans-I/O: takes bytes in any split, gives bytes.
 *
 *     connector                        acceptor
 *                      <---  HELLO               a stranger's server that stays silent is never
 *     HELLO            --->                      sent a byte
 *                      <---  PROOF
 *     'Y', PROOF       --->                      or 'N', if the acceptor's proof is wrong. Of
 *                                                several connections that a connector has tried
 *                                                it sends its proof on the one that it keeps
 */
#ifndef HORON_BOOT_CONNECT_HANDSHAKE_H
#define HORON_BOOT_CONNECT_HANDSHAKE_H

#include "boot/connect/exchange.h"
#include "status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HORON_PROTOCOL_MIN 2 /* oldest and newest wire that this library speaks */
#define HORON_PROTOCOL_MAX 2
#define HORON_MEMBER_BYTES 16
#define HORON_PROOF_BYTES 32
#define HORON_SECRET_BYTES 32
#define HORON_NONCE_BYTES 32
#define HORON_HANDSHAKE_RANDOM_BYTES (HORON_NONCE_BYTES + HORON_SEED_BYTES)
#define HORON_HELLO_BYTES_MAX 512 /* a later version may append fields: proven, not read */

enum horon_role { HORON_ROLE_STORE = 0, HORON_ROLE_PEER = 1 };
enum horon_security { HORON_SECURITY_PLAIN = 0 }; /* after the proof; later: encrypted */

/** What the first frame says, laid out as on the wire, where numbers are little-endian. */
struct horon_hello {
    uint16_t protocol_min, protocol_max;
    uint8_t role;     /* enum horon_role */
    uint8_t security; /* enum horon_security */
    uint16_t reserved;
    uint32_t byte_order; /* 0x01020304 as the sender's machine stores it; set by init */
    int32_t rank;        /* -1: the launcher */
    uint8_t member[HORON_MEMBER_BYTES]; /* random, one a process and context; survives
                                           generations */
    uint32_t size;                      /* ranks of the job */
    uint32_t generation;                /* of the membership; 0: none, as with a store */
    uint64_t reserved_too;
    uint64_t job;      /* which job, or 0 if not known yet */
    uint64_t settings; /* horon_config_agreed_hash(), or 0 if the sender has none */
};

/** @return what this library says in a connection for @p role; the rest is zero. */
static inline struct horon_hello horon_hello_of(enum horon_role role, int rank, int size)
{
    return (struct horon_hello){.protocol_min = HORON_PROTOCOL_MIN,
                                .protocol_max = HORON_PROTOCOL_MAX,
                                .role = (uint8_t)role,
                                .security = HORON_SECURITY_PLAIN,
                                .rank = rank,
                                .size = (uint32_t)size};
}

/** The job key, digested. All zero bytes do not occur. */
struct horon_job_key {
    uint8_t bytes[32];
    struct horon_exchange_masks masks; /* of the key, for the exchange */
    bool given;                        /* false: there is no key; then only loopback is safe */
};

/** @param text the key as the user gave it; @p bytes 0: no key. @return OK | ERR_SYSTEM, libcrypto
 * refuses. */
horon_status_t horon_job_key_from_text(struct horon_job_key *key, const void *text, size_t bytes,
                                       struct horon_error *error);

enum horon_handshake_state {
    HORON_HANDSHAKE_READ_HEAD,
    HORON_HANDSHAKE_READ_HELLO,
    HORON_HANDSHAKE_READ_VERDICT, /* acceptor: was its proof right? */
    HORON_HANDSHAKE_READ_PROOF,
    HORON_HANDSHAKE_PROVEN,
    HORON_HANDSHAKE_FAILED
};

/** One handshake. No pointer in it but the key's, which must outlive it. */
struct horon_handshake {
    const struct horon_job_key *key;
    enum horon_side side; /* ours; the arrays below are by side */
    enum horon_handshake_state state;
    struct horon_hello mine, theirs;
    /* All that each side says: its hello comes first, which a connector has before it says it. */
    uint8_t said[2][HORON_HELLO_BYTES_MAX + 1 + HORON_PROOF_BYTES];
    size_t hello_bytes[2], said_bytes[2];
    size_t sent_bytes;                  /* of what we say */
    size_t piece_at, piece_bytes;       /* of what they say: it is judged once it is whole */
    uint8_t scalar[HORON_SCALAR_BYTES]; /* ours, of the exchange */
    uint8_t proof[2][HORON_PROOF_BYTES];
    uint8_t secret[2][HORON_SECRET_BYTES]; /* of what this side sends */
    struct horon_error error;              /* once FAILED */
};

/** What a handshake hands over. */
struct horon_proven {
    int fd; /* the taker's: connected, non-blocking */
    struct horon_hello theirs;
    /* Of this connection alone, known to both ends and to nobody else, the job key's other holders
     * included. Nothing is enciphered with them yet. */
    uint8_t send_secret[HORON_SECRET_BYTES];
    uint8_t receive_secret[HORON_SECRET_BYTES];
};

struct horon_link;
/** Wraps the link over a proven connection, as its secrets allow. @return the link to be used,
 * which owns @p inside; NULL: no memory, and @p inside is still the caller's */
typedef struct horon_link *(*horon_link_wrap_fn_t)(struct horon_link *inside,
                                                   const struct horon_proven *proven);

/** @param random never used twice. @return OK | ERR_SYSTEM, libcrypto refuses: the handshake has
 * failed */
horon_status_t horon_handshake_init(struct horon_handshake *handshake, enum horon_side side,
                                    const struct horon_job_key *key, const struct horon_hello *mine,
                                    const uint8_t random[HORON_HANDSHAKE_RANDOM_BYTES]);
/** Wipes it. */
void horon_handshake_deinit(struct horon_handshake *handshake);

/** @return how many bytes may be read now: never any that belong to what follows the handshake. 0
 * once it is proven or has failed. */
size_t horon_handshake_want(const struct horon_handshake *handshake);

/**
 * Takes @p bytes bytes, at most horon_handshake_want().
 * @return AGAIN, want more | OK, proven: handshake->theirs is true | ERR_AUTH, the key differs |
 *         ERR_PROTO, not horon's bytes; a text is in handshake->error
 */
horon_status_t horon_handshake_feed(struct horon_handshake *handshake, const uint8_t *in,
                                    size_t bytes);

/** Bytes to send, NULL if none; also after a failure (the 'N'). */
const uint8_t *horon_handshake_out(const struct horon_handshake *handshake, size_t *bytes_out);
void horon_handshake_sent(struct horon_handshake *handshake, size_t bytes);

/** What a proven handshake over @p fd hands over. Wiped by the taker. */
struct horon_proven horon_handshake_take(const struct horon_handshake *handshake, int fd);

/**
 * Are two proven sides of one job and compatible? Their versions the handshake has compared.
 * @return OK | ERR_CONFIG, they believe in different sizes | ERR_PROTO, something else differs,
 * with the values of both sides | ERR_INVALID, theirs is another job's
 */
horon_status_t horon_hello_check(const struct horon_hello *mine, const struct horon_hello *theirs,
                                 struct horon_error *error);

/** Fills @p bytes with random bytes of the kernel, 256 at most. */
horon_status_t horon_random(void *bytes, size_t byte_count, struct horon_error *error);

#endif
