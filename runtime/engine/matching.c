/* SPDX-License-Identifier: Apache-2.0 */
/* Two hash tables of chains in the order of arrival; a rank and tag are in one chain of each, and
 * never in both tables at a time. */
#include "engine/matching.h"

#include "alloc.h"

#include <assert.h>

#define BUCKETS 256
/* Other ranks decide how many announcements wait at a time: some room is made before it is needed,
 * so that a steady cycle allocates nothing. */
#define KEPT_AT_ONCE 16

struct kept {
    struct horon_offer offer;
    struct kept *next;
};

struct peer {
    uint64_t sent, announced;
    size_t waiting; /* announcements */
};

struct horon_matching {
    struct {
        struct horon_expected *first, **last;
    } expected[BUCKETS];
    struct {
        struct kept *first, **last;
    } offers[BUCKETS];
    struct kept *spare;
    size_t waiting, waiting_max;
    int size;
    struct peer peers[];
};

/* @return false: no memory for all of them */
static bool add_spare(struct horon_matching *matching)
{
    for (int i = 0; i < KEPT_AT_ONCE; i++) {
        struct kept *kept = horon_alloc(sizeof *kept);
        if (!kept)
            return false;
        kept->next = matching->spare;
        matching->spare = kept;
    }
    return true;
}

static void free_chain(struct kept *kept)
{
    while (kept) {
        struct kept *next = kept->next;
        horon_free(kept);
        kept = next;
    }
}

void horon_matching_destroy(struct horon_matching *matching)
{
    if (!matching)
        return;
    for (size_t i = 0; i < BUCKETS; i++)
        free_chain(matching->offers[i].first);
    free_chain(matching->spare);
    horon_free(matching);
}

struct horon_matching *horon_matching_create(int size, size_t waiting_max)
{
    struct horon_matching *matching =
        horon_zalloc(1, sizeof *matching + (size_t)size * sizeof matching->peers[0]);
    if (!matching)
        return NULL;
    matching->size = size;
    matching->waiting_max = waiting_max;
    for (size_t i = 0; i < BUCKETS; i++) {
        matching->expected[i].last = &matching->expected[i].first;
        matching->offers[i].last = &matching->offers[i].first;
    }
    if (!add_spare(matching)) {
        horon_matching_destroy(matching);
        return NULL;
    }
    return matching;
}

static size_t bucket_of(int peer, uint64_t tag)
{
    return (size_t)((tag + ((uint64_t)peer << 40)) * 0x9e3779b97f4a7c15u >> 56) % BUCKETS;
}

static struct peer *peer_of(struct horon_matching *matching, int peer)
{
    assert(peer >= 0 && peer < matching->size);
    return &matching->peers[peer];
}

/* Takes out the first receive of a peer and tag; or @p which, one of these. @return NULL: none */
static struct horon_expected *take_expected(struct horon_matching *matching, int peer, uint64_t tag,
                                            const struct horon_expected *which)
{
    const size_t bucket = bucket_of(peer, tag);
    struct horon_expected **at = &matching->expected[bucket].first, *found;
    while (*at && ((*at)->peer != peer || (*at)->tag != tag || (which && *at != which)))
        at = &(*at)->next;
    found = *at;
    if (found)
        *at = found->next;
    if (found && !*at)
        matching->expected[bucket].last = at;
    return found;
}

static struct kept *take_offer(struct horon_matching *matching, int peer, uint64_t tag)
{
    const size_t bucket = bucket_of(peer, tag);
    struct kept **at = &matching->offers[bucket].first, *found;
    while (*at && ((*at)->offer.peer != peer || (*at)->offer.tag != tag))
        at = &(*at)->next;
    found = *at;
    if (found)
        *at = found->next;
    if (found && !*at)
        matching->offers[bucket].last = at;
    return found;
}

bool horon_matching_expect(struct horon_matching *matching, struct horon_expected *expected,
                           struct horon_offer *offer_out)
{
    const size_t bucket = bucket_of(expected->peer, expected->tag);
    struct peer *peer = peer_of(matching, expected->peer);
    struct kept *kept = take_offer(matching, expected->peer, expected->tag);
    if (!kept) {
        expected->next = NULL;
        *matching->expected[bucket].last = expected;
        matching->expected[bucket].last = &expected->next;
        return false;
    }
    assert(peer->waiting > 0);
    assert(matching->waiting > 0);
    *offer_out = kept->offer;
    kept->next = matching->spare;
    matching->spare = kept;
    peer->waiting--;
    matching->waiting--;
    return true;
}

void horon_matching_withdraw(struct horon_matching *matching, struct horon_expected *expected)
{
    struct horon_expected *found = take_expected(matching, expected->peer, expected->tag, expected);
    assert(found == expected); /* it waits */
    found->next = NULL;
}

static horon_status_t keep(struct horon_matching *matching, struct peer *peer,
                           const struct horon_offer *offer)
{
    const size_t bucket = bucket_of(offer->peer, offer->tag);
    if (peer->waiting == matching->waiting_max)
        return HORON_ERR_PROTO;
    if (!matching->spare && !add_spare(matching))
        return HORON_ERR_MEMORY;
    struct kept *kept = matching->spare;
    matching->spare = kept->next;
    *kept = (struct kept){.offer = *offer};
    *matching->offers[bucket].last = kept;
    matching->offers[bucket].last = &kept->next;
    peer->waiting++;
    matching->waiting++;
    return HORON_OK;
}

horon_status_t horon_matching_announce(struct horon_matching *matching, struct horon_offer *offer,
                                       struct horon_expected **expected_out)
{
    struct peer *peer = peer_of(matching, offer->peer);
    struct horon_expected *expected = take_expected(matching, offer->peer, offer->tag, NULL);
    horon_status_t status = HORON_OK;
    offer->number = peer->announced;
    *expected_out = expected;
    if (!expected)
        status = keep(matching, peer, offer);
    peer->announced += status == HORON_OK;
    return status;
}

uint64_t horon_matching_next_offer(const struct horon_matching *matching, int peer)
{
    assert(peer >= 0 && peer < matching->size);
    return matching->peers[peer].announced;
}

uint64_t horon_matching_next_send(const struct horon_matching *matching, int peer)
{
    assert(peer >= 0 && peer < matching->size);
    return matching->peers[peer].sent;
}

void horon_matching_count_send(struct horon_matching *matching, int peer)
{
    peer_of(matching, peer)->sent++;
}

size_t horon_matching_waiting(const struct horon_matching *matching)
{
    return matching->waiting;
}
