/* SPDX-License-Identifier: Apache-2.0 */
/* Two hash tables of chains in the order of arrival; a rank and tag are in one chain of each, and
 * never in both tables at a time. The tables grow with what waits, and stay so; without memory for
 * that they are as they were, and slower. */
#include "engine/matching.h"

#include "alloc.h"

#include <assert.h>

#define BITS_MIN 8  /* of the number of a bucket */
#define BITS_MAX 20 /* more receives than that wait nowhere */
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

struct expected_chain {
    struct horon_expected *first, **last;
};

struct offer_chain {
    struct kept *first, **last;
};

struct horon_matching {
    struct expected_chain *expected; /* [1 << bits] */
    struct offer_chain *offers;      /* likewise */
    struct kept *spare;
    size_t receives; /* that wait */
    size_t waiting, waiting_max;
    int bits;
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

static size_t bucket_count(int bits)
{
    return (size_t)1 << bits;
}

void horon_matching_destroy(struct horon_matching *matching)
{
    if (!matching)
        return;
    for (size_t i = 0; matching->offers && i < bucket_count(matching->bits); i++)
        free_chain(matching->offers[i].first);
    free_chain(matching->spare);
    horon_free(matching->offers);
    horon_free(matching->expected);
    horon_free(matching);
}

/* Empty ones. @return false: no memory */
static bool make_tables(int bits, struct expected_chain **expected_out,
                        struct offer_chain **offers_out)
{
    struct expected_chain *expected = horon_alloc(bucket_count(bits) * sizeof *expected);
    struct offer_chain *offers = horon_alloc(bucket_count(bits) * sizeof *offers);
    if (!expected || !offers) {
        horon_free(expected);
        horon_free(offers);
        return false;
    }
    for (size_t i = 0; i < bucket_count(bits); i++) {
        expected[i] = (struct expected_chain){NULL, &expected[i].first};
        offers[i] = (struct offer_chain){NULL, &offers[i].first};
    }
    *expected_out = expected;
    *offers_out = offers;
    return true;
}

struct horon_matching *horon_matching_create(int size, size_t waiting_max)
{
    struct horon_matching *matching =
        horon_zalloc(1, sizeof *matching + (size_t)size * sizeof matching->peers[0]);
    if (!matching)
        return NULL;
    matching->size = size;
    matching->waiting_max = waiting_max;
    matching->bits = BITS_MIN;
    if (!make_tables(BITS_MIN, &matching->expected, &matching->offers) || !add_spare(matching)) {
        horon_matching_destroy(matching);
        return NULL;
    }
    return matching;
}

static size_t bucket_of(const struct horon_matching *matching, int peer, uint64_t tag)
{
    const uint64_t mixed = (tag + ((uint64_t)peer << 40)) * 0x9e3779b97f4a7c15u;
    return (size_t)(mixed >> (64 - matching->bits));
}

static void append_expected(struct horon_matching *matching, struct horon_expected *expected)
{
    struct expected_chain *chain =
        &matching->expected[bucket_of(matching, expected->peer, expected->tag)];
    expected->next = NULL;
    *chain->last = expected;
    chain->last = &expected->next;
}

static void append_offer(struct horon_matching *matching, struct kept *kept)
{
    struct offer_chain *chain =
        &matching->offers[bucket_of(matching, kept->offer.peer, kept->offer.tag)];
    kept->next = NULL;
    *chain->last = kept;
    chain->last = &kept->next;
}

/* What shares a rank and tag shares a chain, in both tables, and so stays in order. */
static void grow(struct horon_matching *matching)
{
    struct expected_chain *expected = matching->expected;
    struct offer_chain *offers = matching->offers;
    const size_t before = bucket_count(matching->bits);
    if (!make_tables(matching->bits + 1, &matching->expected, &matching->offers))
        return;
    matching->bits++;
    for (size_t i = 0; i < before; i++) {
        struct horon_expected *receive = expected[i].first, *next_receive;
        struct kept *kept = offers[i].first, *next_kept;
        for (; receive; receive = next_receive) {
            next_receive = receive->next;
            append_expected(matching, receive);
        }
        for (; kept; kept = next_kept) {
            next_kept = kept->next;
            append_offer(matching, kept);
        }
    }
    horon_free(expected);
    horon_free(offers);
}

/* Before something is added. */
static void make_room(struct horon_matching *matching)
{
    const size_t count = matching->receives + matching->waiting;
    if (count >= bucket_count(matching->bits) && matching->bits < BITS_MAX)
        grow(matching);
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
    const size_t bucket = bucket_of(matching, peer, tag);
    struct horon_expected **at = &matching->expected[bucket].first, *found;
    while (*at && ((*at)->peer != peer || (*at)->tag != tag || (which && *at != which)))
        at = &(*at)->next;
    found = *at;
    if (found)
        *at = found->next;
    if (found && !*at)
        matching->expected[bucket].last = at;
    assert(matching->receives >= (found != NULL));
    matching->receives -= found != NULL;
    return found;
}

static struct kept *take_offer(struct horon_matching *matching, int peer, uint64_t tag)
{
    const size_t bucket = bucket_of(matching, peer, tag);
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
    struct peer *peer = peer_of(matching, expected->peer);
    struct kept *kept = take_offer(matching, expected->peer, expected->tag);
    if (!kept) {
        make_room(matching);
        append_expected(matching, expected);
        matching->receives++;
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
    if (peer->waiting == matching->waiting_max)
        return HORON_ERR_PROTO;
    if (!matching->spare && !add_spare(matching))
        return HORON_ERR_MEMORY;
    make_room(matching);
    const size_t bucket = bucket_of(matching, offer->peer, offer->tag);
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

void horon_matching_count_offer(struct horon_matching *matching, int peer)
{
    peer_of(matching, peer)->announced++;
}

size_t horon_matching_waiting(const struct horon_matching *matching)
{
    return matching->waiting;
}
