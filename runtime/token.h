/* SPDX-License-Identifier: Apache-2.0 */
/* The progress token: which thread may use the engine. See token.c for the idea. */
#ifndef HORON_TOKEN_H
#define HORON_TOKEN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct horon_context;
struct horon_request;

/** Tells the progress thread, if it sleeps and nobody drives, that something was posted. */
void horon_context_notify(struct horon_context *ctx);
/** After a post to the mailbox: may the progress thread sleep, with nobody driving? */
bool horon_context_may_be_asleep(struct horon_context *ctx);
bool horon_token_try(struct horon_context *ctx);
void horon_token_take(struct horon_context *ctx);
/** Asks the thread that has it to give way, which one that drives does soon. One that has it for
 * long otherwise is not waited for. @return got it */
bool horon_token_ask(struct horon_context *ctx);
/** Is anything in flight, so that perhaps nobody drives for it? Thread: any. */
bool horon_token_flies(const struct horon_context *ctx);
/** With the token in hand: one turn of everything. @return did anything move? */
bool horon_token_look(struct horon_context *ctx);
void horon_token_release(struct horon_context *ctx);
/** Likewise, by a thread that has begun and ended an operation by flags of this host alone, or
 * messages whose links it has asked itself: no link and no coordinator has more to do than when it
 * took the token. */
void horon_token_release_as_found(struct horon_context *ctx);
/** Likewise for the progress thread, which watches its sockets and is about to sleep. */
void horon_token_release_armed(struct horon_context *ctx);
/** With the token in hand: drives what run.c began, to its end, the deadline, or time to sleep. */
void horon_requests_drive(struct horon_context *ctx, struct horon_request *const *requests,
                          size_t n, uint64_t deadline_ns);
/** A turn, if a backend needs this thread for its operations, and no other one drives. */
void horon_context_move_here(struct horon_context *ctx);
/** engine_options.wake_waiters */
void horon_waiters_wake(_Atomic uint32_t *state);

#endif
