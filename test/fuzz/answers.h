/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server that answers anything, in pieces of any size, or leaves, or stands still. A target that
 * has it is linked so that what a client of a store of Gloo's says and hears goes through here, not
 * through sockets.
 */
#ifndef HORON_TEST_ANSWERS_H
#define HORON_TEST_ANSWERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct horon_answers {
    /* What is left of the script: pieces, each with its length before it. 0: the server leaves;
     * 255: it stands still until the client's time is up. */
    const uint8_t *script;
    size_t left;
    bool ended; /* it has left, or stands still: nothing more is said or heard on this connection */
    /* The target's: looks at what the client says. */
    void (*hear)(const void *bytes, size_t count);
    /* The target's: asserts that the client has asked, before it is answered. */
    void (*answers)(void);
    int dialled; /* connections so far */
};

extern struct horon_answers horon_answers;

#endif
