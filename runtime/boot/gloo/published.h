/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank publishes of itself in the store, byte for byte, and what follows from it: which of
 * two ranks connects to the other, and with which sequence number. Bytes only: no store, no
 * sockets. What is read comes from others, and is believed only as far as it was checked.
 */
#ifndef HORON_BOOT_GLOO_PUBLISHED_H
#define HORON_BOOT_GLOO_PUBLISHED_H

#include "address.h"
#include "codec.h"
#include "status.h"

#include <stdbool.h>
#include <stdint.h>

/** Gloo's ways to rendezvous, which cannot be mixed; nothing negotiates them. */
enum horon_gloo_era {
    HORON_GLOO_ERA_NONE, /* what was read is nothing that Gloo publishes */
    HORON_GLOO_ERA_1,    /* until May 2023: Debian 12, Horovod, torch up to 2.0 */
    HORON_GLOO_ERA_2,    /* until July 2023: torch 2.1 and 2.2; not supported, only recognised */
    HORON_GLOO_ERA_3,    /* since: torch 2.3 and later */
};

#define HORON_GLOO_ADDRESS_BYTES ((size_t)136)
#define HORON_GLOO_NO_SEQUENCE ((int64_t)-1)
/** Of a name of a host, final 0 included. */
#define HORON_GLOO_HOST_BYTES 65
/** A job has fewer ranks: what is published grows with them. */
#define HORON_GLOO_RANKS_MAX 30000

/** Where a rank listens. */
struct horon_gloo_address {
    struct horon_address at; /* IPv4 or IPv6 */
    int64_t sequence;        /* HORON_GLOO_NO_SEQUENCE, but in era 2 */
    bool of_horon;           /* of a rank that says so; not of Gloo, or of an older horon */
};

/** What one rank needs to know of another. */
struct horon_gloo_peer {
    struct horon_gloo_address address; /* E1: of its listener for the rank that reads */
    int64_t sequence; /* E3: what the rank that reads writes when it connects there */
    bool no_ids;      /* E3: as a rank publishes that may connect only once it needs another */
    char host[HORON_GLOO_HOST_BYTES]; /* E3: that it is on; "": not known, or not fit to show */
};

void horon_gloo_address_write(struct horon_writer *out, const struct horon_gloo_address *address);
/** The reader fails if it is neither IPv4 nor IPv6, or has no port. */
void horon_gloo_address_read(struct horon_reader *in, struct horon_gloo_address *address);

/** Bytes that horon_gloo_publish() needs at most. */
size_t horon_gloo_published_bytes(enum horon_gloo_era era, int size);

/**
 * Writes what rank @p rank publishes under "<rank>".
 * @param listeners E1: [size - 1], of each other rank, ascending; E3: one
 */
void horon_gloo_publish(struct horon_writer *out, enum horon_gloo_era era, int size,
                        const char *host, const struct horon_address *listeners);

/** @return the era in whose form a rank of @p size published these bytes; NONE, if of none, or
 * among another number of ranks */
enum horon_gloo_era horon_gloo_era_of(const void *bytes, size_t count, int size);

/**
 * Reads what @p peer published.
 * @param rank the one that reads, which is another
 * @return OK | ERR_CONFIG, it is of another era or one of another number of ranks, named, with what
 *         to set | ERR_PROTO, it is nothing that Gloo publishes
 */
horon_status_t horon_gloo_peer_read(enum horon_gloo_era era, const void *bytes, size_t count,
                                    int size, int rank, int peer, struct horon_gloo_peer *peer_out,
                                    struct horon_error *error);

/**
 * Which of two ranks connects, as both decide alike from what they published for each other.
 * @param here, there of this rank and of the other
 * @return > 0, this one | < 0, the other | 0, neither: they are the same, or of different families
 */
int horon_gloo_connects(const struct horon_address *here, const struct horon_address *there);

const char *horon_gloo_era_text(enum horon_gloo_era era);

#endif
