/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tickets: one order for what overlapping teams launch on one device (design 3.15).
 *
 * A backend whose launches occupy the device until all ranks of the operation have launched it too
 * must see them in one order on every rank: with teams {0,1} and {1,2} and {0,2}, each rank could
 * otherwise begin another one first, and all would wait. So the teams draw tickets from one agreed
 * sequence; a ticket is the number of a team. Every rank learns the sequence in the same order (it
 * is decided where the job's batches are), keeps of it the tickets of teams that it is in, and
 * launches in that order.
 */
#ifndef HORON_BACKEND_TICKETS_H
#define HORON_BACKEND_TICKETS_H

#include "status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Of one device, as one rank sees it. All zero at first. */
struct horon_tickets {
    int32_t *teams; /* [capacity], a ring: drawn and not used, in their order */
    size_t capacity, first, count;
};

void horon_tickets_deinit(struct horon_tickets *tickets);

/** A team that this rank is in has drawn the next ticket. Every rank calls it in the same order.
 * @return OK | ERR_MEMORY, nothing changed */
horon_status_t horon_tickets_draw(struct horon_tickets *tickets, int32_t team);

/** Is it the team's turn to launch its next operation? */
bool horon_tickets_turn(const struct horon_tickets *tickets, int32_t team);

/** The team whose turn it was has launched. */
void horon_tickets_use(struct horon_tickets *tickets, int32_t team);

#endif
