/* SPDX-License-Identifier: Apache-2.0 */
/* Messages that a backend carries, where there are no links (messages.c calls it); carried.c. */
#ifndef HORON_ENGINE_CARRIED_H
#define HORON_ENGINE_CARRIED_H

#include "engine/engine_state.h"

/** Takes up one, which is in the team's list. It may end. */
void horon_carried_start(struct horon_request *request);
/** Moves all that are in flight, and ends those that have ended. @return did anything move? */
bool horon_carried_move(struct horon_engine_team *team);
/** Ends those that have ended by now. The backend gives the others up. */
void horon_carried_give_up(struct horon_engine_team *team);

#endif
