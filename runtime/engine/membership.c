/* SPDX-License-Identifier: Apache-2.0 */
/* Tables, and the links' muxes. See membership.h for the idea. */
#include "engine/membership.h"

#include "alloc.h"

#include <assert.h>
#include <stdio.h>

static void move(struct horon_membership *membership, int rank, enum horon_peer_state to)
{
    static const unsigned legal[] = {
        [HORON_PEER_UNLINKED] = 1u << HORON_PEER_CONNECTING | 1u << HORON_PEER_LINKED,
        [HORON_PEER_CONNECTING] =
            1u << HORON_PEER_UNREACHED | 1u << HORON_PEER_UNLINKED | 1u << HORON_PEER_LINKED,
        [HORON_PEER_UNREACHED] = 1u << HORON_PEER_UNLINKED | 1u << HORON_PEER_LINKED,
        [HORON_PEER_LINKED] = 1u << HORON_PEER_LOST | 1u << HORON_PEER_UNLINKED,
        [HORON_PEER_LOST] = 0};
    assert(rank >= 0 && rank < membership->topology->size);
    assert(rank != membership->topology->rank);
    assert(legal[membership->states[rank]] & 1u << to);
    membership->states[rank] = to;
}

static bool allocate(struct horon_membership *membership, size_t size)
{
    membership->rank_name_texts = horon_zalloc(size, sizeof *membership->rank_name_texts);
    membership->rank_names = horon_zalloc(size, sizeof *membership->rank_names);
    membership->mux_of = horon_zalloc(size, sizeof *membership->mux_of);
    membership->dead_of = horon_zalloc(size, sizeof *membership->dead_of);
    membership->peers = horon_zalloc(size, sizeof *membership->peers);
    membership->left = horon_zalloc(size, sizeof *membership->left);
    membership->ended = horon_zalloc(size, sizeof *membership->ended);
    membership->mutual = horon_zalloc(size, sizeof *membership->mutual);
    membership->gone = horon_zalloc(size, sizeof *membership->gone);
    membership->states = horon_zalloc(size, sizeof *membership->states);
    membership->failures = horon_zalloc(size, sizeof(struct horon_error *));
    return membership->rank_name_texts && membership->rank_names && membership->mux_of &&
           membership->dead_of && membership->peers && membership->left && membership->ended &&
           membership->mutual && membership->gone && membership->states && membership->failures;
}

static void name_ranks(struct horon_membership *membership)
{
    const struct horon_topology *topology = membership->topology;
    for (int rank = 0; rank < topology->size; rank++) {
        char *text = membership->rank_name_texts[rank];
        snprintf(text, sizeof membership->rank_name_texts[rank], "rank %d (%s)", rank,
                 topology->host_name[topology->host_of[rank]]);
        membership->rank_names[rank] = text;
    }
}

horon_status_t horon_membership_make_mux(const struct horon_membership *membership, int rank,
                                         struct horon_link *link, struct horon_mux **mux_out,
                                         struct horon_error *error)
{
    const struct horon_config *config = membership->options.config;
    const size_t eager_bytes = (size_t)config->net_eager_bytes;
    const size_t lend_bytes = (size_t)config->shm_lend_bytes;
    /* below, two copies by way of a ring are done before the system has begun with one */
    const bool lends = link->lends && lend_bytes > 0 && eager_bytes >= lend_bytes;
    const struct horon_mux_options options = {
        .eager_bytes = lends ? lend_bytes - 1 : eager_bytes,
        .eager_total_bytes = (size_t)config->net_eager_bytes * 16,
        .control_bytes_max = HORON_CONTROL_BYTES_MAX,
        .generation = membership->generation,
        .peer = rank,
        .peer_name = membership->rank_names[rank],
        .owner = membership->options.owner,
        .on_control = membership->options.on_control,
        .on_announced = membership->options.on_announced,
        .is_over = membership->options.is_over,
        .arg = membership->options.arg,
    };
    const horon_status_t status = horon_mux_create(link, &options, mux_out);
    if (status != HORON_OK)
        horon_error_set(error, status, "no memory for the link to %s",
                        membership->rank_names[rank]);
    return status;
}

static void unwatch(struct horon_membership *membership, struct horon_link *link)
{
    if (membership->options.poller && link)
        horon_poller_remove(membership->options.poller, link);
}

horon_status_t horon_membership_add_link(struct horon_membership *membership, int rank,
                                         struct horon_link *link, struct horon_error *error)
{
    assert(!membership->mux_of[rank] && !membership->dead_of[rank]);
    struct horon_poller *poller = membership->options.poller;
    struct horon_mux *mux = NULL;
    horon_status_t status = horon_membership_make_mux(membership, rank, link, &mux, error);
    if (status != HORON_OK) {
        link->ops->destroy(link);
        return status;
    }
    if (poller)
        status = horon_poller_add(poller, link, error);
    if (status != HORON_OK) {
        horon_mux_destroy(mux);
        return status;
    }
    move(membership, rank, HORON_PEER_LINKED);
    horon_free(membership->failures[rank]); /* of a try that the other side was faster than */
    membership->failures[rank] = NULL;
    membership->mux_of[rank] = mux;
    membership->peers[membership->peer_count++] = rank;
    membership->changes++;
    return HORON_OK;
}

bool horon_membership_may_link(const struct horon_membership *membership, int rank)
{
    return rank != membership->topology->rank && membership->states[rank] < HORON_PEER_LINKED;
}

void horon_membership_expect_link(struct horon_membership *membership, int rank)
{
    move(membership, rank, HORON_PEER_CONNECTING);
}

void horon_membership_lack_link(struct horon_membership *membership, int rank,
                                const struct horon_error *why)
{
    if (membership->states[rank] != HORON_PEER_CONNECTING)
        return;
    struct horon_error *kept = horon_alloc(sizeof *kept);
    if (kept)
        *kept = *why;
    assert(!membership->failures[rank]);
    membership->failures[rank] = kept;
    move(membership, rank, HORON_PEER_UNREACHED);
    membership->changes++;
}

void horon_membership_forget_try(struct horon_membership *membership, int rank)
{
    const enum horon_peer_state state = membership->states[rank];
    horon_free(membership->failures[rank]);
    membership->failures[rank] = NULL;
    if (state != HORON_PEER_CONNECTING && state != HORON_PEER_UNREACHED)
        return;
    move(membership, rank, HORON_PEER_UNLINKED);
    membership->changes++; /* a message may have waited for it: it tries again */
}

horon_status_t horon_membership_take_failure(struct horon_membership *membership, int rank,
                                             struct horon_error *error)
{
    struct horon_error *kept = membership->failures[rank];
    move(membership, rank, HORON_PEER_UNLINKED);
    if (!kept)
        return horon_error_set(error, HORON_ERR_MEMORY, "%s could not be reached",
                               membership->rank_names[rank]);
    *error = *kept;
    horon_free(kept);
    membership->failures[rank] = NULL;
    return error->status;
}

void horon_membership_lose_link(struct horon_membership *membership, int rank)
{
    assert(membership->mux_of[rank] && !membership->dead_of[rank]);
    move(membership, rank, HORON_PEER_LOST);
    unwatch(membership, horon_mux_link(membership->mux_of[rank]));
    membership->dead_of[rank] = membership->mux_of[rank];
    membership->mux_of[rank] = NULL;
    membership->gone[rank] = true;
    membership->changes++;
}

struct horon_mux *horon_membership_take_link(struct horon_membership *membership, int rank)
{
    struct horon_mux *mux = membership->mux_of[rank];
    int *peers = membership->peers;
    int at = 0;
    assert(mux);
    assert(!membership->mutual[rank]);
    move(membership, rank, HORON_PEER_UNLINKED);
    unwatch(membership, horon_mux_link(mux));
    membership->mux_of[rank] = NULL;
    while (peers[at] != rank)
        at++;
    peers[at] = peers[--membership->peer_count]; /* in the middle of a turn it may miss this one */
    membership->changes++; /* a message may have waited for it: it tries again */
    return mux;
}

/* Of these both sides have made theirs once both have joined. Any other one a rank made that had
 * joined before. */
static bool is_of_joining(const struct horon_topology *topology, int rank)
{
    return horon_topology_is_here(topology, rank) ||
           horon_topology_linked(topology, topology->rank, rank);
}

horon_status_t horon_membership_create(const struct horon_membership_options *options,
                                       struct horon_membership **membership_out,
                                       struct horon_error *error)
{
    horon_status_t status = HORON_ERR_MEMORY;
    const int size = options->topology->size;
    struct horon_membership *membership = horon_zalloc(1, sizeof *membership);
    if (!membership)
        goto done;
    membership->options = *options;
    membership->topology = options->topology;
    membership->generation = options->generation;
    if (!allocate(membership, (size_t)size))
        goto done;
    name_ranks(membership);
    status = HORON_OK;
    for (int rank = 0; rank < size && status == HORON_OK; rank++) {
        struct horon_link *link = options->links[rank];
        options->links[rank] = NULL;
        if (link)
            status = horon_membership_add_link(membership, rank, link, error);
        membership->mutual[rank] = link && is_of_joining(membership->topology, rank);
    }
    if (status != HORON_OK)
        goto done;
    *membership_out = membership;
    membership = NULL;
done:
    horon_membership_destroy(membership);
    for (int rank = 0; rank < size; rank++) {
        if (options->links[rank])
            options->links[rank]->ops->destroy(options->links[rank]);
        options->links[rank] = NULL;
    }
    return status;
}

void horon_membership_destroy(struct horon_membership *membership)
{
    if (!membership)
        return;
    for (int i = 0; i < membership->peer_count; i++) {
        unwatch(membership, horon_mux_link(membership->mux_of[membership->peers[i]]));
        horon_mux_destroy(membership->mux_of[membership->peers[i]]);
        horon_mux_destroy(membership->dead_of[membership->peers[i]]);
    }
    for (int rank = 0; membership->failures && rank < membership->topology->size; rank++)
        horon_free(membership->failures[rank]);
    horon_free(membership->failures);
    horon_free(membership->states);
    horon_free(membership->rank_name_texts);
    horon_free(membership->rank_names);
    horon_free(membership->mux_of);
    horon_free(membership->dead_of);
    horon_free(membership->peers);
    horon_free(membership->left);
    horon_free(membership->ended);
    horon_free(membership->mutual);
    horon_free(membership->gone);
    horon_free(membership);
}
