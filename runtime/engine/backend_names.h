/* SPDX-License-Identifier: Apache-2.0 */
/* What a launcher asks of the row BACKEND before it starts a rank: it includes no header of an
 * engine's. */
#ifndef HORON_ENGINE_BACKEND_NAMES_H
#define HORON_ENGINE_BACKEND_NAMES_H

#include "config.h"

/** Are those that @p config names in this horon, and each once? Without GLOO_STORE it may name
 * gloo, too: a rank may know the store that its launcher does not. Thread: any.
 * @return OK | ERR_CONFIG, they are not */
horon_status_t horon_engine_check_names(const struct horon_config *config,
                                        struct horon_error *error);

#endif
