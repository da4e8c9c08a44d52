/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request is an op of one byte and what belongs to it; strings and values are a u64 length and
 * bytes. It is read once it is whole, from the beginning each time, so there is no state between.
 * A length allocates nothing: what has not come is waited for. A count that ADD keeps is decimal
 * text, as torch keeps it.
 */
#include "boot/gloo/c10d_wire.h"

#include "alloc.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define BUCKETS 1024
#define BUFFER_ROOM_MIN 256

struct entry {
    struct entry *next;
    size_t key_bytes, value_bytes;
    uint8_t bytes[]; /* the key, then the value */
};

struct horon_c10d_table {
    struct entry *buckets[BUCKETS];
    uint64_t count, changes;
    size_t bytes;
};

bool horon_c10d_buffer_add(struct horon_c10d_buffer *buffer, const void *bytes, size_t count)
{
    if (count > HORON_C10D_BUFFER_BYTES_MAX - buffer->used)
        return false;
    if (buffer->used + count > buffer->room) {
        size_t room = buffer->room > BUFFER_ROOM_MIN ? buffer->room : BUFFER_ROOM_MIN;
        while (room < buffer->used + count)
            room *= 2;
        uint8_t *grown = horon_realloc(buffer->bytes, room);
        if (!grown)
            return false;
        buffer->bytes = grown;
        buffer->room = room;
    }
    if (count)
        memcpy(buffer->bytes + buffer->used, bytes, count);
    buffer->used += count;
    return true;
}

void horon_c10d_buffer_cut(struct horon_c10d_buffer *buffer, size_t count)
{
    assert(count <= buffer->used);
    buffer->used -= count;
    if (count && buffer->used)
        memmove(buffer->bytes, buffer->bytes + count, buffer->used);
}

void horon_c10d_buffer_deinit(struct horon_c10d_buffer *buffer)
{
    horon_free(buffer->bytes);
    *buffer = (struct horon_c10d_buffer){0};
}

/* What is missing makes the reader fail, what is too long takes its bytes away: see is_short(). */
struct horon_c10d_view horon_c10d_next(struct horon_reader *in, size_t bytes_max)
{
    const uint64_t count = horon_read_u64(in);
    if (in->ok && count > bytes_max) {
        in->ok = false;
        in->used = in->limit = 0; /* for ever */
    }
    const uint8_t *bytes = in->ok ? horon_read_view(in, (size_t)count) : NULL;
    return (struct horon_c10d_view){bytes, bytes ? (size_t)count : 0};
}

/* @return may it become whole when more comes? */
static bool is_short(const struct horon_reader *in)
{
    return !in->ok && in->limit > 0;
}

static void read_list(struct horon_reader *in, struct horon_c10d_request *request)
{
    request->keys = horon_read_u64(in);
    if (in->ok && request->keys > HORON_C10D_KEYS_MAX) {
        in->ok = false;
        in->used = in->limit = 0;
    }
    const size_t from = in->ok ? in->used : 0;
    for (uint64_t i = 0; in->ok && i < request->keys; i++) {
        horon_c10d_next(in, HORON_C10D_KEY_BYTES_MAX);
        if (request->op == HORON_C10D_MULTI_SET && in->ok)
            horon_c10d_next(in, HORON_C10D_VALUE_BYTES_MAX);
    }
    if (in->ok)
        request->list = horon_reader_over(in->bytes + from, in->used - from);
}

static void read_parts(struct horon_reader *in, struct horon_c10d_request *request, int parts)
{
    for (int i = 0; i < parts && in->ok; i++)
        request->parts[i] =
            horon_c10d_next(in, i == 0 ? HORON_C10D_KEY_BYTES_MAX : HORON_C10D_VALUE_BYTES_MAX);
}

/* @return the op that a client names by @p number; OPS: none that is served */
static enum horon_c10d_op op_of(enum horon_c10d_dialect dialect, uint8_t number)
{
    if (dialect == HORON_C10D_UNTIL_2_0)
        return number < HORON_C10D_COUNT ? number + HORON_C10D_SET : HORON_C10D_OPS;
    return number < HORON_C10D_OPS ? number : HORON_C10D_OPS;
}

horon_status_t horon_c10d_request_read(const uint8_t *bytes, size_t count,
                                       enum horon_c10d_dialect dialect,
                                       struct horon_c10d_request *request_out, size_t *used_out)
{
    static const uint8_t parts[HORON_C10D_OPS] = {
        [HORON_C10D_SET] = 2, [HORON_C10D_COMPARE_SET] = 3, [HORON_C10D_GET] = 1,
        [HORON_C10D_ADD] = 1, [HORON_C10D_DELETE] = 1,      [HORON_C10D_APPEND] = 2,
    };
    static const uint8_t numbers[HORON_C10D_OPS] = {
        [HORON_C10D_VALIDATE] = 4, [HORON_C10D_PING] = 4, [HORON_C10D_ADD] = 8};
    static const bool lists[HORON_C10D_OPS] = {[HORON_C10D_CHECK] = true,
                                               [HORON_C10D_WAIT] = true,
                                               [HORON_C10D_MULTI_GET] = true,
                                               [HORON_C10D_MULTI_SET] = true};
    if (count == 0)
        return HORON_AGAIN;
    struct horon_reader in = horon_reader_over(bytes, count);
    const enum horon_c10d_op op = op_of(dialect, horon_read_u8(&in));
    struct horon_c10d_request request = {.op = op};
    if (op == HORON_C10D_OPS)
        return HORON_ERR_PROTO;
    read_parts(&in, &request, parts[op]);
    if (in.ok && numbers[op])
        request.number = horon_read_uint(&in, numbers[op]);
    if (in.ok && lists[op])
        read_list(&in, &request);
    if (!in.ok)
        return is_short(&in) ? HORON_AGAIN : HORON_ERR_PROTO;
    *request_out = request;
    *used_out = in.used;
    return HORON_OK;
}

void horon_c10d_write_op(struct horon_writer *out, enum horon_c10d_dialect dialect,
                         enum horon_c10d_op op)
{
    const bool old = dialect == HORON_C10D_UNTIL_2_0;
    assert(!old || (op >= HORON_C10D_SET && op <= HORON_C10D_COUNT));
    horon_write_u8(out, (uint8_t)(old ? op - HORON_C10D_SET : op));
}

void horon_c10d_write_view(struct horon_writer *out, const void *bytes, size_t count)
{
    horon_write_u64(out, count);
    horon_write_bytes(out, bytes, count);
}

struct horon_c10d_table *horon_c10d_table_create(void)
{
    return horon_zalloc(1, sizeof(struct horon_c10d_table));
}

void horon_c10d_table_destroy(struct horon_c10d_table *table)
{
    for (int i = 0; table && i < BUCKETS; i++) {
        while (table->buckets[i]) {
            struct entry *entry = table->buckets[i];
            table->buckets[i] = entry->next;
            horon_free(entry);
        }
    }
    horon_free(table);
}

uint64_t horon_c10d_table_changes(const struct horon_c10d_table *table)
{
    return table->changes;
}

/* @return where the entry of @p key stands, or NULL stands at the end. FNV-1a chooses the bucket */
static struct entry **find(struct horon_c10d_table *table, struct horon_c10d_view key)
{
    uint32_t hash = UINT32_C(2166136261);
    for (size_t i = 0; i < key.count; i++)
        hash = (hash ^ key.bytes[i]) * UINT32_C(16777619);
    struct entry **at = &table->buckets[hash % BUCKETS];
    while (*at && ((*at)->key_bytes != key.count ||
                   (key.count && memcmp((*at)->bytes, key.bytes, key.count) != 0)))
        at = &(*at)->next;
    return at;
}

static struct horon_c10d_view value_of(const struct entry *entry)
{
    if (!entry)
        return (struct horon_c10d_view){NULL, 0};
    return (struct horon_c10d_view){entry->bytes + entry->key_bytes, entry->value_bytes};
}

static bool drop(struct horon_c10d_table *table, struct entry **at)
{
    struct entry *entry = *at;
    if (!entry)
        return false;
    *at = entry->next;
    table->bytes -= sizeof *entry + entry->key_bytes + entry->value_bytes;
    table->count--;
    horon_free(entry);
    return true;
}

/* The value is @p first and then @p second, which may be what is there. @return false: no memory */
static bool put(struct horon_c10d_table *table, struct horon_c10d_view key,
                struct horon_c10d_view first, struct horon_c10d_view second)
{
    const size_t bytes = sizeof(struct entry) + key.count + first.count + second.count;
    struct entry *entry =
        bytes <= HORON_C10D_TABLE_BYTES_MAX - table->bytes ? horon_alloc(bytes) : NULL;
    if (!entry)
        return false;
    *entry = (struct entry){NULL, key.count, first.count + second.count};
    struct horon_writer out = horon_writer_over(entry->bytes, bytes - sizeof *entry);
    horon_write_bytes(&out, key.bytes, key.count);
    horon_write_bytes(&out, first.bytes, first.count);
    horon_write_bytes(&out, second.bytes, second.count);
    struct entry **at = find(table, key);
    drop(table, at);
    entry->next = *at;
    *at = entry;
    table->bytes += bytes;
    table->count++;
    table->changes++;
    return true;
}

bool horon_c10d_table_name(struct horon_c10d_table *table, const char *job)
{
    static const char text[] = "/" HORON_C10D_JOB_KEY; /* as clients write keys */
    const struct horon_c10d_view key = {(const uint8_t *)text, sizeof text - 1}, none = {NULL, 0};
    if (job)
        return put(table, key, (struct horon_c10d_view){(const uint8_t *)job, strlen(job)}, none);
    drop(table, find(table, key));
    return true;
}

static bool answer_number(struct horon_c10d_buffer *answer, uint64_t number, size_t bytes)
{
    uint8_t raw[8];
    struct horon_writer out = horon_writer_over(raw, sizeof raw);
    horon_write_uint(&out, number, bytes);
    return horon_c10d_buffer_add(answer, raw, bytes);
}

static bool answer_view(struct horon_c10d_buffer *answer, struct horon_c10d_view view)
{
    return answer_number(answer, view.count, 8) &&
           horon_c10d_buffer_add(answer, view.bytes, view.count);
}

static bool add(struct horon_c10d_table *table, const struct horon_c10d_request *request,
                struct horon_c10d_buffer *answer)
{
    char text[24] = "";
    const struct horon_c10d_view old = value_of(*find(table, request->parts[0]));
    if (old.count && old.count < sizeof text)
        memcpy(text, old.bytes, old.count);
    const uint64_t now = (uint64_t)strtoll(text, NULL, 10) + request->number;
    const int bytes = snprintf(text, sizeof text, "%" PRId64, (int64_t)now);
    const struct horon_c10d_view value = {(const uint8_t *)text, (size_t)bytes};
    return put(table, request->parts[0], value, (struct horon_c10d_view){NULL, 0}) &&
           answer_number(answer, now, 8);
}

static bool compare_set(struct horon_c10d_table *table, const struct horon_c10d_request *request,
                        struct horon_c10d_buffer *answer)
{
    const struct horon_c10d_view *parts = request->parts, none = {NULL, 0};
    const struct entry *entry = *find(table, parts[0]);
    const struct horon_c10d_view now = value_of(entry);
    const bool equal = now.count == parts[1].count &&
                       (now.count == 0 || memcmp(now.bytes, parts[1].bytes, now.count) == 0);
    if (equal)
        return put(table, parts[0], parts[2], none) && answer_view(answer, parts[2]);
    return answer_view(answer, entry ? now : parts[1]);
}

static bool all_there(struct horon_c10d_table *table, const struct horon_c10d_request *request)
{
    struct horon_reader list = request->list;
    for (uint64_t i = 0; i < request->keys; i++)
        if (!*find(table, horon_c10d_next(&list, HORON_C10D_KEY_BYTES_MAX)))
            return false;
    return true;
}

static bool serve_list(struct horon_c10d_table *table, const struct horon_c10d_request *request,
                       struct horon_c10d_buffer *answer)
{
    struct horon_reader list = request->list;
    bool ok = true;
    for (uint64_t i = 0; ok && i < request->keys; i++) {
        const struct horon_c10d_view key = horon_c10d_next(&list, HORON_C10D_KEY_BYTES_MAX);
        if (request->op == HORON_C10D_MULTI_GET)
            ok = answer_view(answer, value_of(*find(table, key)));
        else
            ok = put(table, key, horon_c10d_next(&list, HORON_C10D_VALUE_BYTES_MAX),
                     (struct horon_c10d_view){NULL, 0});
    }
    return ok;
}

horon_status_t horon_c10d_serve(struct horon_c10d_table *table,
                                const struct horon_c10d_request *request,
                                struct horon_c10d_buffer *answer)
{
    const struct horon_c10d_view *parts = request->parts, none = {NULL, 0};
    bool ok = true, there;
    switch (request->op) {
    case HORON_C10D_VALIDATE:
        return request->number == HORON_C10D_MAGIC ? HORON_OK : HORON_ERR_PROTO;
    case HORON_C10D_SET:
        ok = put(table, parts[0], parts[1], none);
        break;
    case HORON_C10D_COMPARE_SET:
        ok = compare_set(table, request, answer);
        break;
    case HORON_C10D_GET:
        ok = answer_view(answer, value_of(*find(table, parts[0])));
        break;
    case HORON_C10D_ADD:
        ok = add(table, request, answer);
        break;
    case HORON_C10D_CHECK:
        there = all_there(table, request);
        ok = answer_number(answer, there ? HORON_C10D_READY : HORON_C10D_NOT_READY, 1);
        break;
    case HORON_C10D_WAIT:
        if (!all_there(table, request))
            return HORON_AGAIN;
        ok = answer_number(answer, HORON_C10D_CAME, 1);
        break;
    case HORON_C10D_COUNT:
        ok = answer_number(answer, table->count, 8);
        break;
    case HORON_C10D_DELETE:
        ok = answer_number(answer, drop(table, find(table, parts[0])), 8);
        break;
    case HORON_C10D_APPEND:
        ok = put(table, parts[0], value_of(*find(table, parts[0])), parts[1]);
        break;
    case HORON_C10D_MULTI_GET:
    case HORON_C10D_MULTI_SET:
        ok = serve_list(table, request, answer);
        break;
    case HORON_C10D_CANCEL_WAIT: /* it is over already */
        ok = answer_number(answer, HORON_C10D_WAIT_CANCELLED, 1);
        break;
    case HORON_C10D_PING:
        ok = answer_number(answer, request->number, 4);
        break;
    case HORON_C10D_OPS:
        return HORON_ERR_PROTO;
    }
    return ok ? HORON_OK : HORON_ERR_MEMORY;
}

/* The first byte tells, as what each of them begins with has a number of its own. */
static enum horon_c10d_dialect dialect_of(uint8_t first)
{
    const enum horon_c10d_dialect old = HORON_C10D_UNTIL_2_0;
    return op_of(old, first) == HORON_C10D_ADD ? old : HORON_C10D_SINCE_2_3;
}

static bool begins(const struct horon_c10d_request *request, enum horon_c10d_dialect dialect)
{
    const struct horon_c10d_view key = request->parts[0];
    if (dialect == HORON_C10D_SINCE_2_3)
        return request->op == HORON_C10D_VALIDATE;
    return request->op == HORON_C10D_ADD && key.count == strlen(HORON_C10D_INIT_KEY) &&
           memcmp(key.bytes, HORON_C10D_INIT_KEY, key.count) == 0;
}

horon_status_t horon_c10d_serve_all(struct horon_c10d_table *table,
                                    enum horon_c10d_dialect *dialect,
                                    struct horon_c10d_buffer *heard,
                                    struct horon_c10d_buffer *answer)
{
    size_t done = 0;
    horon_status_t status = HORON_OK;
    while (status == HORON_OK && done < heard->used) {
        struct horon_c10d_request request;
        size_t used = 0;
        const bool first = *dialect == HORON_C10D_UNHEARD;
        const enum horon_c10d_dialect in = first ? dialect_of(heard->bytes[done]) : *dialect;
        status =
            horon_c10d_request_read(heard->bytes + done, heard->used - done, in, &request, &used);
        if (status == HORON_OK && first && !begins(&request, in))
            status = HORON_ERR_PROTO;
        if (status == HORON_OK)
            status = horon_c10d_serve(table, &request, answer);
        if (status == HORON_AGAIN && used > 0 && done + used < heard->used &&
            op_of(in, heard->bytes[done + used]) == HORON_C10D_CANCEL_WAIT)
            status = HORON_OK; /* that is answered next, in its place */
        if (status != HORON_OK)
            break;
        *dialect = in;
        done += used;
    }
    horon_c10d_buffer_cut(heard, done);
    return status == HORON_AGAIN ? HORON_OK : status;
}
