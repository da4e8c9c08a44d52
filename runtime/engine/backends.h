/* SPDX-License-Identifier: Apache-2.0 */
/* What the options say to the backends of an engine, and how these open. */
#ifndef HORON_ENGINE_BACKENDS_H
#define HORON_ENGINE_BACKENDS_H

#include "engine/engine_state.h"

/** What @p config wants of the backends, in a job of @p size ranks, without links to Gloo's. It
 * has views of @p config. Thread: any. */
struct horon_backend_settings horon_engine_backend_settings(const struct horon_config *config,
                                                            const struct horon_launcher *launcher,
                                                            int size);

/** Those that @p config wants, in their order; none is opened. @return as horon_backends_order().
 * Thread: any. */
horon_status_t horon_engine_order_backends(const struct horon_config *config,
                                           struct horon_backends *backends,
                                           struct horon_error *error);

/** Says, once, if one of them has given up what its library still has: to every rank with a link,
 * which is one of each other host at least. */
void horon_engine_say_gave_up(struct horon_engine *engine);

/** Opens those that the engine's options name. @return as horon_backends_open() */
horon_status_t horon_engine_open_backends(struct horon_engine *engine, struct horon_error *error);

#endif
