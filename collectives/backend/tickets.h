/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tickets: one order for what overlapping teams launch on one device (design 3.15).
 *
 * A launch of such a backend occupies the device until all ranks of the operation have launched it.
 * So every rank must launch in the same order: with teams {0,1}, {1,2} and {0,2} each rank could
 * otherwise begin with another team, and all would wait for ever.
 *
 * The order is made by the teams themselves. Once all ranks of a team have an operation, each of
 * them proposes a number above all that it has seen, and the highest proposal is the operation's
 * ticket: the same number on all of them. A rank launches the lowest of its tickets, once it has no
 * open proposal below it; an open one above cannot become a lower ticket, as tickets are no lower
 * than any proposal for them. So an operation waits only for operations that all ranks of their
 * teams have ready. (After Skeen's total order of messages to overlapping groups.)
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
