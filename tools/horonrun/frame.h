/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The language of horonrun and its agents, one agent a host: frames over a pair of pipes (local) or
 * an ssh connection (remote), which has authenticated both sides. A frame is u32 body bytes, u8
 * type, body. The agent begins with HORONRUN_GREETING, so that what a login shell prints is passed
 * over. No I/O here.
 */
#ifndef HORONRUN_FRAME_H
#define HORONRUN_FRAME_H

#include "bytes.h"
#include "status.h"

#include <stdint.h>

#define HORONRUN_GREETING "\nhoronrun agent 1\n"
/** After more than this no greeting is waited for any more. */
#define HORONRUN_GREETING_SKIP_MAX ((size_t)64 << 10)
#define HORONRUN_FRAME_HEAD_BYTES ((size_t)5)
/** The largest is the environment and command of a job; Linux limits those to a few MiB. */
#define HORONRUN_FRAME_BODY_MAX ((size_t)16 << 20)
#define HORONRUN_OUTPUT_BYTES_MAX ((size_t)64 << 10)

enum horonrun_frame_type {
    /* to the agent */
    HORONRUN_WORK = 1,   /* struct horonrun_work */
    HORONRUN_STOP = 2,   /* u32 ms from SIGTERM to SIGKILL, u32 ms from SIGINT to SIGTERM, 0: no
                            SIGINT: end everything */
    HORONRUN_SIGNAL = 3, /* u32 signal for all processes */
    HORONRUN_PING = 4,   /* both ways: "I live"; a remote agent answers each */
    /* to horonrun */
    HORONRUN_HELLO = 16,   /* string version, host name, address of horonrun as seen there or "" */
    HORONRUN_STARTED = 17, /* u32 rank, u32 pid */
    HORONRUN_OUTPUT = 18,  /* u32 rank, u8 stream (1 stdout, 2 stderr), bytes */
    HORONRUN_EXIT = 19,    /* u32 rank, u32 wait status, u32 another rank, which it says has made it
                              fail, or ~0; after its output */
    HORONRUN_FAILED = 20,  /* u32 exit code, string: the ranks could not be started */
    HORONRUN_GONE = 21, /* u32 processes that needed SIGKILL, u32 that survived even that; last */
    HORONRUN_DUMPS = 22 /* u32 rank, u32 another rank as above: it has crashed, and the system
                           writes a core file of it; EXIT follows when that is done */
};

/** A view of one frame. */
struct horonrun_frame {
    uint8_t type;
    const char *body;
    size_t body_bytes;
    size_t bytes; /* head and body: what to consume */
};

/** What an agent is to run. */
struct horonrun_work {
    int *host_ranks;             /* [hosts] how many ranks run on each, in rank order */
    int hosts, host;             /* how many there are, and the agent's own */
    int first_rank, ranks, size; /* of that host, and of all: made from the above by decoding */
    char *directory;
    char **command;     /* NULL-ended */
    char **environment; /* NULL-ended; the agent adds HORON_RANK and the local ones */
    bool remote;        /* the environment goes over the agent's own, which is that of its host */
    /* 0, or the command is one launcher, which gets the environment as it is, and has its ranks
     * interrupted and ended by these signals. */
    int interrupt, terminate;
};

/**
 * Looks at the head of @p bytes. @return OK, a frame is whole | AGAIN, want more | ERR_PROTO, the
 * length is beyond HORONRUN_FRAME_BODY_MAX
 */
horon_status_t horonrun_frame_peek(const char *bytes, size_t count, struct horonrun_frame *frame);

/**
 * Finds the end of the greeting. @return OK, *skip_out bytes lead to the first frame | AGAIN |
 * ERR_PROTO, HORONRUN_GREETING_SKIP_MAX bytes without it
 */
horon_status_t horonrun_frame_skip_greeting(const char *bytes, size_t count, size_t *skip_out);

/** Appends a frame. @return false: out of memory or too long */
bool horonrun_frame_append(struct horonrun_bytes *to, uint8_t type, const void *body, size_t bytes);

/** Encodes @p work (body only). @return false: out of memory */
bool horonrun_work_encode(const struct horonrun_work *work, struct horonrun_bytes *to);

/** @return OK | ERR_PROTO | ERR_MEMORY. End @p work with horonrun_work_deinit() in any case. */
horon_status_t horonrun_work_decode(struct horonrun_work *work, const char *body, size_t bytes);
void horonrun_work_deinit(struct horonrun_work *work);

/** Adds a copy of @p text to a NULL-ended list, NULL at first. @return false: out of memory */
bool horonrun_strings_add(char ***list, const char *text);

/** Frees a NULL-ended list of strings; NULL is a no-op. */
void horonrun_strings_free(char **strings);

#endif
