/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tickets: one order for what overlapping teams launch on one device (design 3.15).
 *
 * A backend whose launches occupy the device until all ranks of the operation have launched it too
 * must see them in one order on every rank: with teams {0,1} and {1,2} and {0,2}, each rank could
 * otherwise begin another one first, and all would wait.
 *
 * The order is made by the teams themselves. Once all ranks of a team have an operation, each of
 * them proposes a number above all that it has seen, and the highest proposal is the operation's
 * ticket. A rank launches the lowest of its tickets, once no number of its own that still stands
 * as a proposal is below: what becomes of that is no lower. So an operation of another team waits
 * only for what all ranks have ready, and a number that was drawn is the same for all. (After
 * Skeen's total order of messages to overlapping groups.)
 */
#ifndef HORON_BACKEND_TICKETS_H
#define HORON_BACKEND_TICKETS_H

#include <stdbool.h>
#include <stdint.h>

/** Of one rank's device. All zero at first. */
struct horon_tickets {
    uint64_t highest; /* number that was proposed or drawn so far */
    struct horon_ticket *first;
};

/** Of one lane's next operation; in the list from the proposal on. */
struct horon_ticket {
    struct horon_ticket *next;
    uint64_t number;
    uint32_t lane; /* its number in the job, alike on all ranks: decides between equal numbers */
    bool drawn;    /* `number` is the ticket, no longer a proposal */
};

/** Begins a ticket of the lane. @return this rank's proposal */
uint64_t horon_ticket_propose(struct horon_tickets *tickets, struct horon_ticket *ticket);
/** The highest proposal of the team's ranks is known. */
void horon_ticket_draw(struct horon_tickets *tickets, struct horon_ticket *ticket, uint64_t number);
/** May the operation be launched? */
bool horon_ticket_is_next(const struct horon_tickets *tickets, const struct horon_ticket *ticket);
/** It is launched, or given up: the ticket is out of the list. One that is not in it is left. */
void horon_ticket_use(struct horon_tickets *tickets, struct horon_ticket *ticket);

#endif
