/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A backend of a test: its ranks are in one thread, and it does what a backend may do. It delays,
 * refuses, dies, lacks verbs, types and kinds of memory, launches several operations at once, and
 * occupies a device from launch to end, so that two teams that launch in opposite orders wait for
 * each other for ever. It sums from left to right, not along the tree.
 */
#ifndef HORON_TEST_FAKE_H
#define HORON_TEST_FAKE_H

#include "backend/backends.h"

enum { FAKE_RANKS_MAX = 4, FAKE_LAUNCHED_MAX = 8, FAKE_LANES_MAX = 4, FAKE_INTERVAL_NS = 1000 };

struct fake;
struct fake_lane;

/** What a rank launched on its device, of any lane of any team, in that order. */
struct fake_device {
    const struct fake_lane *queue[FAKE_LAUNCHED_MAX];
    int queued;
};

struct fake_context {
    struct horon_backend_context base;
    const struct horon_log *log;
    int number; /* in the order of opening */
};

struct fake_channel {
    struct horon_backend_channel base;
    struct fake_context *context;
    struct fake *fake;
    struct fake_lane *lane;
    const struct horon_team *team;
    const struct horon_operation *ops[FAKE_LAUNCHED_MAX]; /* launched, by number */
    uint64_t begun, ended;
    int turns; /* since the first that has not ended was done, or of connecting */
    bool connected, aborted;
    int device;
    int bell; /* written when an operation is done, if that is how it wakes */
};

/** The channels of one lane, by rank. */
struct fake_lane {
    struct fake_channel *channels[FAKE_RANKS_MAX];
    int size;      /* ranks */
    uint64_t done; /* operations */
};

/** Of one team, or of teams whose first ranks are the job's. The first members are the test's to
 * set; as fake_init() leaves it, it has an allreduce, a broadcast and a barrier, and does each
 * operation at once. */
struct fake {
    struct horon_backend base;         /* as fake_init() made it; the test may change it */
    const char *absent;                /* why it cannot be opened; NULL: it can */
    uint32_t versions[FAKE_RANKS_MAX]; /* that are found, in the order of opening; 0: 1 */
    uint32_t since_2;                  /* mask of verbs that it has from version 2 on */
    uint32_t lacks;                    /* mask of verbs */
    uint32_t lacks_dtype;              /* mask of types */
    uint32_t lacks_memory;             /* mask of kinds */
    uint64_t prefers_from;             /* bytes, from which on it goes before others; 0: never */
    const char *refuses;               /* why it is not usable; NULL: it is */
    uint32_t refused;                  /* mask of ranks on which; 0: all */
    uint32_t unmade;                   /* mask of ranks that can make no channel */
    uint32_t unconnected;              /* mask of ranks whose channel fails to connect */
    int makes, making[FAKE_RANKS_MAX]; /* turns of each rank that making a channel takes; so far */
    int connects;                      /* turns of each rank that connecting takes */
    bool rings;                        /* it shows a descriptor, and needs no interval */
    bool roots_end_first; /* a rank is done with a broadcast of its own once it has begun it */
    int delay;            /* turns of each rank that an operation takes */
    int dies_on;          /* rank, with the operation of this number; -1: none */
    uint64_t dies_at;
    struct fake_device
        *devices;         /* [FAKE_RANKS_MAX] by rank of the job, or NULL: none is occupied */
    const int *device_of; /* [size] rank of the job of each rank of the team */

    /* by the number of the channel; the tests of a route use the first */
    struct fake_lane lanes[FAKE_LANES_MAX];
    int begun_most; /* operations at a time on a rank */
    int opened, closed;
    int unsettled;      /* channels that were destroyed so */
    unsigned disturbed; /* mask of contexts, as they were opened, that did not leave in peace */
    int connecting;     /* calls of connect */
};

void fake_init(struct fake *fake, const char *name, uint32_t caps);

#endif
