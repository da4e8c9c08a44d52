/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What Horovod's workers leave for each other while they connect, and how they ask for it: values
 * by scope and key, over HTTP, as Horovod's rendezvous server has them. No I/O here.
 */
#ifndef HORONRUN_SCOPES_H
#define HORONRUN_SCOPES_H

#include "bytes.h"
#include "status.h"

struct horonrun_scopes;

/** For a job of @p size ranks: that bounds what is kept. @return NULL: out of memory */
struct horonrun_scopes *horonrun_scopes_create(int size);

/** NULL is a no-op. */
void horonrun_scopes_destroy(struct horonrun_scopes *scopes);

/** A scope that is cleared when so many ranks have told that they are through with it; of others a
 * DELETE takes the key alone. @return false: out of memory */
bool horonrun_scopes_declare(struct horonrun_scopes *scopes, const char *name, int ranks);

/**
 * Looks at all that has come over one connection, and does what is asked once that is whole.
 * @param answer out: what to send, then the connection ends; empty before
 * @return OK, answered, perhaps with a refusal | AGAIN, want more | ERR_MEMORY, no answer can be
 *         made
 */
horon_status_t horonrun_scopes_ask(struct horonrun_scopes *scopes, const char *bytes, size_t count,
                                   struct horonrun_bytes *answer);

/** The answer to one that was too slow. @return false: out of memory */
bool horonrun_scopes_too_slow(struct horonrun_bytes *answer);

#endif
