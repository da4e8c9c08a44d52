/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A value lies under the path by which it is asked for, "/scope/key". PUT replaces it, GET takes it
 * or is told 404 at once, for a worker asks again. DELETE means that a rank is through with a
 * scope: when all are, it is empty again, so that the next meeting of the same name finds nothing
 * old.
 *
 * Horovod's server forgets on that occasion what was said of all other scopes, too, and then never
 * clears some of them; nobody can want that, and it is not so here.
 *
 * Anybody may ask. So what is kept is bounded: each value by what a worker of a job of this size
 * leaves, all by what its meetings do.
 *
 * Source: Horovod 0.28, horovod/runner/http/http_server.py (what it answers; no code).
 */
#include "scopes.h"

#include "alloc.h"
#include "http.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define BUCKETS 4096u
#define PEER_BYTES 136   /* of one rank's address in a worker's value */
#define VALUE_BYTES 4096 /* more than that */
#define MEETINGS 16      /* whose values may be there at once, before they are cleared */
#define TOTAL_BYTES ((size_t)16 << 20)
#define ENTRY_BYTES 128 /* what an empty value is counted as, with its path */

struct entry {
    struct entry *next;
    size_t path_bytes, value_bytes;
    char bytes[]; /* the path, then the value */
};

struct scope {
    char *name;
    int ranks, through;
};

struct horonrun_scopes {
    struct entry *buckets[BUCKETS];
    size_t used, limit, value_limit; /* in bytes */
    struct scope *declared;
    int declared_count;
};

struct horonrun_scopes *horonrun_scopes_create(int size)
{
    struct horonrun_scopes *scopes = horon_zalloc(1, sizeof *scopes);
    if (!scopes)
        return NULL;
    scopes->value_limit = VALUE_BYTES + PEER_BYTES * (size_t)size;
    scopes->limit =
        TOTAL_BYTES + MEETINGS * (size_t)size * (ENTRY_BYTES + PEER_BYTES * (size_t)size);
    return scopes;
}

bool horonrun_scopes_declare(struct horonrun_scopes *scopes, const char *name, int ranks)
{
    struct scope *grown =
        horon_realloc(scopes->declared, (size_t)(scopes->declared_count + 1) * sizeof *grown);
    if (!grown)
        return false;
    scopes->declared = grown;
    grown[scopes->declared_count] = (struct scope){.name = horon_strdup(name), .ranks = ranks};
    return grown[scopes->declared_count].name && ++scopes->declared_count;
}

/* ---- The table ------------------------------------------------------------------------------- */

/* Where the pointer to it is, or would be. */
static struct entry **find(struct horonrun_scopes *scopes, const char *path, size_t path_bytes)
{
    struct entry **at = &scopes->buckets[XXH3_64bits(path, path_bytes) % BUCKETS];
    while (*at && ((*at)->path_bytes != path_bytes || memcmp((*at)->bytes, path, path_bytes) != 0))
        at = &(*at)->next;
    return at;
}

static size_t cost_of(size_t path_bytes, size_t value_bytes)
{
    return ENTRY_BYTES + path_bytes + value_bytes;
}

static void drop(struct horonrun_scopes *scopes, struct entry **at)
{
    struct entry *entry = *at;
    const size_t cost = cost_of(entry->path_bytes, entry->value_bytes);
    assert(scopes->used >= cost);
    scopes->used -= cost;
    *at = entry->next;
    horon_free(entry);
}

/* @param prefix "/scope/", or "" for all */
static void clear(struct horonrun_scopes *scopes, const char *prefix, size_t prefix_bytes)
{
    for (unsigned i = 0; i < BUCKETS; i++)
        for (struct entry **at = &scopes->buckets[i]; *at;)
            if ((*at)->path_bytes >= prefix_bytes &&
                memcmp((*at)->bytes, prefix, prefix_bytes) == 0)
                drop(scopes, at);
            else
                at = &(*at)->next;
}

void horonrun_scopes_destroy(struct horonrun_scopes *scopes)
{
    if (!scopes)
        return;
    clear(scopes, "", 0);
    assert(scopes->used == 0);
    for (int i = 0; i < scopes->declared_count; i++)
        horon_free(scopes->declared[i].name);
    horon_free(scopes->declared);
    horon_free(scopes);
}

/* ---- Requests -------------------------------------------------------------------------------- */

struct request {
    const char *path;
    size_t path_bytes, scope_bytes; /* the scope begins behind the first byte */
    const char *body;
    size_t body_bytes;
};

/* @return false: it is not "/scope/key" */
static bool cut_path(const struct horon_http *head, struct request *request)
{
    const char *path = head->word[1], *end = path + head->word_bytes[1];
    const char *second = path[0] == '/' ? memchr(path + 1, '/', (size_t)(end - path - 1)) : NULL;
    if (!second || memchr(second + 1, '/', (size_t)(end - second - 1)))
        return false;
    request->path = path;
    request->path_bytes = head->word_bytes[1];
    request->scope_bytes = (size_t)(second - path - 1);
    return true;
}

/* @return the code of the answer, likewise below */
static int put(struct horonrun_scopes *scopes, const struct request *request)
{
    const size_t cost = cost_of(request->path_bytes, request->body_bytes);
    struct entry **at = find(scopes, request->path, request->path_bytes);
    const size_t freed = *at ? cost_of((*at)->path_bytes, (*at)->value_bytes) : 0;
    if (scopes->used - freed + cost > scopes->limit)
        return 507;
    struct entry *entry = horon_alloc(sizeof *entry + request->path_bytes + request->body_bytes);
    if (!entry)
        return 507;
    if (*at)
        drop(scopes, at);
    entry->next = *at;
    entry->path_bytes = request->path_bytes;
    entry->value_bytes = request->body_bytes;
    memcpy(entry->bytes, request->path, request->path_bytes);
    if (request->body_bytes)
        memcpy(entry->bytes + request->path_bytes, request->body, request->body_bytes);
    *at = entry;
    scopes->used += cost;
    return 200;
}

static int finish(struct horonrun_scopes *scopes, const struct request *request)
{
    for (int i = 0; i < scopes->declared_count; i++) {
        struct scope *scope = &scopes->declared[i];
        if (strlen(scope->name) != request->scope_bytes ||
            memcmp(scope->name, request->path + 1, request->scope_bytes) != 0)
            continue;
        if (++scope->through == scope->ranks) {
            clear(scopes, request->path, request->scope_bytes + 2);
            scope->through = 0;
        }
        return 200;
    }
    struct entry **at = find(scopes, request->path, request->path_bytes);
    if (*at)
        drop(scopes, at);
    return 200;
}

static bool write_answer(struct horonrun_bytes *answer, int code, const char *value, size_t bytes)
{
    char head[128];
    const size_t head_bytes = horon_http_write_answer(head, sizeof head, code, bytes);
    assert(head_bytes > 0);
    return horonrun_bytes_append(answer, head, head_bytes) &&
           (bytes == 0 || horonrun_bytes_append(answer, value, bytes));
}

static bool answer_whole(struct horonrun_scopes *scopes, const struct horon_http *head,
                         const struct request *request, struct horonrun_bytes *answer)
{
    if (horon_http_word_is(head, 0, "GET")) {
        const struct entry *entry = *find(scopes, request->path, request->path_bytes);
        return entry
                   ? write_answer(answer, 200, entry->bytes + entry->path_bytes, entry->value_bytes)
                   : write_answer(answer, 404, NULL, 0);
    }
    if (horon_http_word_is(head, 0, "PUT"))
        return write_answer(answer, head->has_length ? put(scopes, request) : 400, NULL, 0);
    if (horon_http_word_is(head, 0, "DELETE"))
        return write_answer(answer, finish(scopes, request), NULL, 0);
    return write_answer(answer, 405, NULL, 0);
}

horon_status_t horonrun_scopes_ask(struct horonrun_scopes *scopes, const char *bytes, size_t count,
                                   struct horonrun_bytes *answer)
{
    struct horon_http head;
    struct request request = {.path = NULL};
    assert(answer->used == 0);
    const horon_status_t status = horon_http_look(bytes, count, &head);
    if (status == HORON_AGAIN)
        return HORON_AGAIN;
    bool made;
    if (status != HORON_OK || !cut_path(&head, &request)) {
        made = write_answer(answer, 400, NULL, 0);
    } else if (head.length > scopes->value_limit) {
        made = write_answer(answer, 413, NULL, 0);
    } else if (count - head.head_bytes < head.length) {
        return HORON_AGAIN;
    } else {
        request.body = bytes + head.head_bytes;
        request.body_bytes = head.length;
        made = answer_whole(scopes, &head, &request, answer);
    }
    return made ? HORON_OK : HORON_ERR_MEMORY;
}

bool horonrun_scopes_too_slow(struct horonrun_bytes *answer)
{
    return write_answer(answer, 408, NULL, 0);
}
