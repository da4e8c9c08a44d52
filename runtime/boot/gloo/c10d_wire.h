/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What torch's TCPStore and its clients say to each other, and the table of keys that a server
 * answers from. Bytes only: no sockets, no time. One codec for both sides, and for both dialects.
 */
#ifndef HORON_BOOT_GLOO_C10D_WIRE_H
#define HORON_BOOT_GLOO_C10D_WIRE_H

#include "codec.h"
#include "status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HORON_C10D_MAGIC UINT32_C(0x3C85F7CE)
#define HORON_C10D_INIT_KEY "init/" /* counts the ranks; torch's rank 0 waits */
/** Of a horon's server, until its ranks have met: the prefix of their job. Ranks of torch's do not
 * look for it. */
#define HORON_C10D_JOB_KEY "horon.job"
#define HORON_C10D_KEY_BYTES_MAX ((size_t)8192)      /* torch's own */
#define HORON_C10D_VALUE_BYTES_MAX ((size_t)8 << 20) /* torch's own */
#define HORON_C10D_KEYS_MAX ((uint64_t)131072)       /* of one request; torch's own */
/** Of one request, and of answers that a client does not fetch. */
#define HORON_C10D_BUFFER_BYTES_MAX ((size_t)64 << 20)
/** Of all keys and values of a server. */
#define HORON_C10D_TABLE_BYTES_MAX ((size_t)512 << 20)

enum horon_c10d_op {
    HORON_C10D_VALIDATE,
    HORON_C10D_SET,
    HORON_C10D_COMPARE_SET,
    HORON_C10D_GET,
    HORON_C10D_ADD,
    HORON_C10D_CHECK,
    HORON_C10D_WAIT,
    HORON_C10D_COUNT,
    HORON_C10D_DELETE,
    HORON_C10D_APPEND,
    HORON_C10D_MULTI_GET,
    HORON_C10D_MULTI_SET,
    HORON_C10D_CANCEL_WAIT,
    HORON_C10D_PING,
    HORON_C10D_OPS, /* queues and lists of keys, later ones, are not served */
};

/** Until torch 2.0 ops are numbered from SET on, there is none behind COUNT that is served, and a
 * client that is a rank begins with its part of the count "init/". Since 2.3 it begins with
 * VALIDATE. */
enum horon_c10d_dialect {
    HORON_C10D_UNHEARD, /* nothing has been said yet */
    HORON_C10D_UNTIL_2_0,
    HORON_C10D_SINCE_2_3,
};

enum { HORON_C10D_READY = 0, HORON_C10D_NOT_READY = 1 };     /* answers CHECK */
enum { HORON_C10D_CAME = 0, HORON_C10D_WAIT_CANCELLED = 1 }; /* answers WAIT */

/** Bytes that grow. All zero is empty. */
struct horon_c10d_buffer {
    uint8_t *bytes;
    size_t used, room;
};
/** @return false: there is no memory, or it would be more than the maximum */
bool horon_c10d_buffer_add(struct horon_c10d_buffer *buffer, const void *bytes, size_t count);
/** Takes @p count bytes from its beginning. */
void horon_c10d_buffer_cut(struct horon_c10d_buffer *buffer, size_t count);
void horon_c10d_buffer_deinit(struct horon_c10d_buffer *buffer);

struct horon_c10d_view {
    const uint8_t *bytes;
    size_t count;
};

/** Views into the bytes that were read. */
struct horon_c10d_request {
    enum horon_c10d_op op;
    uint64_t number;                 /* of VALIDATE, PING, ADD */
    struct horon_c10d_view parts[3]; /* a key; value; COMPARE_SET: what is expected, what is new */
    uint64_t keys;                   /* CHECK, WAIT, MULTI_*: so many ... */
    struct horon_reader list;        /* ... which horon_c10d_next() reads; checked */
};

/** @return the next of strings and values, which the reader fails for if it is too long */
struct horon_c10d_view horon_c10d_next(struct horon_reader *in, size_t bytes_max);

/** @param dialect not UNHEARD @param used_out its bytes
 * @return OK | AGAIN, want more | ERR_PROTO, it is none */
horon_status_t horon_c10d_request_read(const uint8_t *bytes, size_t count,
                                       enum horon_c10d_dialect dialect,
                                       struct horon_c10d_request *request_out, size_t *used_out);

/** What a client sends: the op, and then what these write. */
void horon_c10d_write_op(struct horon_writer *out, enum horon_c10d_dialect dialect,
                         enum horon_c10d_op op);
void horon_c10d_write_view(struct horon_writer *out, const void *bytes, size_t count);

struct horon_c10d_table;
/** @return NULL: no memory */
struct horon_c10d_table *horon_c10d_table_create(void);
void horon_c10d_table_destroy(struct horon_c10d_table *table);
/** Grows with whatever changes a key: then those that wait may look again. */
uint64_t horon_c10d_table_changes(const struct horon_c10d_table *table);
/** Says under HORON_C10D_JOB_KEY whose server it is; NULL: everybody's. @return false: no memory */
bool horon_c10d_table_name(struct horon_c10d_table *table, const char *job);

/**
 * Does what a client asks.
 * @param answer to which it is appended
 * @return OK | AGAIN, keys that are waited for are not there yet; nothing was done | ERR_PROTO |
 *         ERR_MEMORY, also: there are as many bytes as there may be
 */
horon_status_t horon_c10d_serve(struct horon_c10d_table *table,
                                const struct horon_c10d_request *request,
                                struct horon_c10d_buffer *answer);

/**
 * Does all that a client has said so far, and cuts that from @p heard; a WAIT that is not over
 * stays, unless it is cancelled behind.
 * @param dialect in which it has begun as clients do; its state, UNHEARD at first
 * @return OK | ERR_PROTO | ERR_MEMORY: close it
 */
horon_status_t horon_c10d_serve_all(struct horon_c10d_table *table,
                                    enum horon_c10d_dialect *dialect,
                                    struct horon_c10d_buffer *heard,
                                    struct horon_c10d_buffer *answer);

#endif
