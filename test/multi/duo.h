/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two ranks in one process: a thread each makes its context, and then the test alone uses both, so
 * that what one of them does is known while the other does nothing.
 */
#ifndef HORON_TEST_MULTI_DUO_H
#define HORON_TEST_MULTI_DUO_H

#include <horon/horon.h>

#include <pthread.h>

#define DUO_SETTINGS_MAX 6
#define DUO_DEADLINE_S 30 /* of what must happen; only a failure reaches it */

/** Lines of the log of both ranks. */
struct duo_heard {
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t more;
    int lines;
    horon_log_level_t worst; /* the least important level that came */
    char all[8192];
};

struct duo {
    horon_context_t *ctx[2];
    struct duo_heard heard;
    const char *settings[DUO_SETTINGS_MAX + 4];
    char folder[32], store[64];
    struct duo_maker {
        struct duo *duo;
        int rank;
        pthread_t thread;
        horon_status_t status;
        char text[HORON_ERROR_TEXT_BYTES];
    } makers[2];
};

/** @param settings NULL-ended "NAME=value" besides the store and a key; may be NULL */
void duo_make(struct duo *duo, const char *const *settings);
/** Destroys the contexts that the test has not. */
void duo_end(struct duo *duo);
/** Waits until a line with @p word has been logged. */
void duo_wait_to_hear(struct duo *duo, const char *word);

/** @return the socket of the link to a rank of another host */
int duo_socket(horon_context_t *ctx, int peer);

/** A sum of one float, named. */
horon_descriptor_t duo_sum(const char *name, float *data);
horon_request_t *duo_submit(horon_context_t *ctx, const char *name, float *data);
/** Waits for it, which must end so, and releases it. */
void duo_expect_end(horon_request_t *request, horon_status_t status);

#endif
