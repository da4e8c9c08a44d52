/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages that end within the call that begins them, in requests that nobody else sees; express.c.
 * Owner: the thread that holds the progress token, from the first call to the end of the last one.
 */
#ifndef HORON_ENGINE_EXPRESS_H
#define HORON_ENGINE_EXPRESS_H

#include "engine/engine.h"
#include "engine/matching.h"
#include "link/mux_announced.h"

/** A call begins: what it does has one time, but for what it waits for. */
void horon_express_begin(struct horon_engine *engine);
/**
 * Sends a message, which is launched and not posted.
 * @return OK, it has gone: it was never in flight | IN_PROGRESS, it is in flight | AGAIN, nothing
 * has happened: it is to be begun as any other
 */
horon_status_t horon_express_send(struct horon_engine *engine, struct horon_request *send);
/** Awaits a message likewise. @return IN_PROGRESS | AGAIN */
horon_status_t horon_express_expect(struct horon_engine *engine, struct horon_request *receive);
/** A turn of the link of the message that is awaited. @param spins  it may look more than once.
 * @return OK, it has come: it was never in flight | IN_PROGRESS | AGAIN, it is awaited no more: as
 * above, or in flight (`linked`), if a part has come */
horon_status_t horon_express_receive(struct horon_engine *engine, struct horon_request *receive,
                                     bool spins);
/** Awaits it no more. */
void horon_express_withdraw(struct horon_request *receive);

/** Messages that went so have touched nothing but their links: have those more to send now? Yes,
 * too, if anything else came over a link since horon_express_begin(): it may touch all. */
bool horon_express_leaves_work(const struct horon_engine *engine,
                               struct horon_request *const *messages, size_t n);

/** A turn of the links of messages alone, which are of one team and have not ended. All of them are
 * looked at: a thread that waits for the end of its send has a receive to move meanwhile.
 * @return OK, nothing moved | IN_PROGRESS, something did | AGAIN, a turn of everything is due */
horon_status_t horon_engine_move_messages(struct horon_engine *engine,
                                          struct horon_request *const *messages, size_t n);

/** A message has come. @return was it awaited, and was it taken? */
bool horon_express_take(struct horon_engine_team *team, const struct horon_offer *offer,
                        struct horon_mux_announced *announced);

#endif
