/* SPDX-License-Identifier: Apache-2.0 */
/* The wiring of tree.h. */
#undef NDEBUG
#include "tree.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t tree_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int parent_of(struct tree *tree, int rank, enum tree_shape shape)
{
    if (rank == 0)
        return -1;
    switch (shape) {
    case TREE_STAR:
        return 0;
    case TREE_BINOMIAL:
        return rank & (rank - 1);
    case TREE_CHAIN:
        return rank - 1;
    case TREE_RANDOM:
        return (int)tree_below(&tree->random, (uint64_t)rank);
    }
    return -1;
}

void tree_init(struct tree *tree, int size, enum tree_shape shape, size_t cache_entries,
               uint64_t fusion_bytes, uint64_t seed)
{
    assert(size <= TREE_SIZE_MAX);
    memset(tree, 0, sizeof *tree);
    tree->size = size;
    tree->random = seed;
    for (int rank = 0; rank < size; rank++) {
        tree->parent[rank] = parent_of(tree, rank, shape);
        tree->up[rank].last = &tree->up[rank].first;
        tree->down[rank].last = &tree->down[rank].first;
        snprintf(tree->names[rank], sizeof tree->names[rank], "rank %d (host-%c)", rank,
                 'a' + rank / 2 % 26);
        tree->name_list[rank] = tree->names[rank];
    }
    for (int rank = 0; rank < size; rank++) {
        int children[TREE_SIZE_MAX], child_count = 0;
        for (int other = 0; other < size; other++)
            if (tree->parent[other] == rank)
                children[child_count++] = other;
        struct horon_coordinator_options options = {
            .rank = rank,
            .size = size,
            .parent = tree->parent[rank],
            .children = children,
            .child_count = child_count,
            .cache_entries = cache_entries,
            .fusion_bytes = fusion_bytes,
            .rank_names = tree->name_list,
        };
        horon_status_t status = horon_coordinator_create(&options, &tree->ranks[rank]);
        assert(status == HORON_OK);
    }
}

static void queue_deinit(struct tree_queue *queue)
{
    while (queue->first) {
        struct tree_message *message = queue->first;
        queue->first = message->next;
        free(message);
    }
}

void tree_deinit(struct tree *tree)
{
    for (int rank = 0; rank < tree->size; rank++) {
        horon_coordinator_destroy(tree->ranks[rank]);
        queue_deinit(&tree->up[rank]);
        queue_deinit(&tree->down[rank]);
    }
}

static void post(struct tree *tree, int from, int to, const void *bytes, size_t byte_count)
{
    bool up = tree->parent[from] == to;
    struct tree_queue *queue = up ? &tree->up[from] : &tree->down[to];
    assert(up || tree->parent[to] == from);
    struct tree_message *message = malloc(sizeof *message + byte_count);
    assert(message);
    message->next = NULL;
    message->bytes = byte_count;
    memcpy(message->data, bytes, byte_count);
    *queue->last = message;
    queue->last = &message->next;
    tree->in_flight++;
    tree->sent_count++;
    tree->sent_bytes += byte_count;
    if (byte_count > tree->longest_bytes)
        tree->longest_bytes = byte_count;
}

horon_status_t tree_flush(struct tree *tree, int rank, bool decide)
{
    horon_status_t status = horon_coordinator_flush(tree->ranks[rank], decide);
    int to;
    const void *bytes;
    size_t byte_count;
    while (horon_coordinator_next_message(tree->ranks[rank], &to, &bytes, &byte_count))
        post(tree, rank, to, bytes, byte_count);
    return status;
}

horon_status_t tree_deliver(struct tree *tree, int rank, bool up)
{
    struct tree_queue *queue = up ? &tree->up[rank] : &tree->down[rank];
    int from = up ? rank : tree->parent[rank], to = up ? tree->parent[rank] : rank;
    struct tree_message *message = queue->first;
    if (!message)
        return HORON_AGAIN;
    queue->first = message->next;
    if (!queue->first)
        queue->last = &queue->first;
    tree->in_flight--;
    horon_status_t status = horon_coordinator_receive(tree->ranks[to], from, message->data,
                                                      message->bytes, &tree->error);
    free(message);
    return status;
}

/* Is there a message of this edge, and a rank that takes it? */
static bool deliverable(const struct tree *tree, int rank, bool up)
{
    const int to = up ? tree->parent[rank] : rank;
    return (up ? tree->up : tree->down)[rank].first && (!tree->stopped || to != tree->stopped);
}

static bool any_deliverable(const struct tree *tree)
{
    bool any = false;
    for (int rank = 0; rank < tree->size && !any && tree->in_flight; rank++)
        any = deliverable(tree, rank, true) || deliverable(tree, rank, false);
    return any;
}

horon_status_t tree_deliver_any(struct tree *tree, int *to_out)
{
    if (tree->stopped ? !any_deliverable(tree) : tree->in_flight == 0)
        return HORON_AGAIN;
    for (;;) {
        uint64_t pick = tree_below(&tree->random, (uint64_t)tree->size * 2);
        int rank = (int)(pick / 2);
        bool up = pick % 2;
        if (!deliverable(tree, rank, up))
            continue;
        *to_out = up ? tree->parent[rank] : rank;
        return tree_deliver(tree, rank, up);
    }
}

horon_status_t tree_run(struct tree *tree)
{
    horon_status_t status = HORON_OK;
    for (int rank = tree->size - 1; rank >= 0 && !status; rank--)
        status = tree_flush(tree, rank, true);
    while (!status) {
        int to;
        status = tree_deliver_any(tree, &to);
        if (!status)
            status = tree_flush(tree, to, true);
    }
    return status == HORON_AGAIN ? HORON_OK : status;
}

/* Names that were ever used; chained by hash. */
static struct kept_name {
    struct kept_name *next;
    char text[];
} * names[4096];

void tree_name(struct horon_operation *op, const char *name)
{
    op->name_bytes = (uint32_t)strlen(name);
    op->name_hash = horon_name_hash(name, op->name_bytes);
    struct kept_name **bucket = &names[op->name_hash % 4096], *kept = *bucket;
    while (kept && strcmp(kept->text, name))
        kept = kept->next;
    if (!kept) {
        kept = malloc(sizeof *kept + op->name_bytes + 1);
        assert(kept);
        memcpy(kept->text, name, op->name_bytes + 1);
        kept->next = *bucket;
        *bucket = kept;
    }
    op->name = kept->text;
}

struct horon_operation tree_tensor(uint64_t count, const char *format, ...)
{
    struct horon_operation op = {
        .agreed =
            {
                .verb = HORON_ALLREDUCE,
                .dtype = HORON_FLOAT32,
                .redop = HORON_SUM,
                .memory = HORON_MEMORY_HOST,
                .ndim = 1,
                .prescale = 1,
                .postscale = 1,
                .shape = {count},
            },
    };
    char name[HORON_NAME_BYTES_MAX + 1];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    tree_name(&op, name);
    return op;
}

horon_status_t tree_submit(struct horon_coordinator *coordinator, const struct horon_operation *op,
                           uint64_t token)
{
    struct horon_operation canonical = *op;
    horon_signature_make_canonical(&canonical.agreed);
    return horon_coordinator_submit(coordinator, &canonical, token);
}

horon_status_t tree_intern(struct horon_coordinator *coordinator, const struct horon_operation *op,
                           uint32_t *handle_out)
{
    struct horon_operation canonical = *op;
    horon_signature_make_canonical(&canonical.agreed);
    return horon_coordinator_intern(coordinator, &canonical, handle_out);
}
