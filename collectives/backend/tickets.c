/* SPDX-License-Identifier: Apache-2.0 */
/* A list as short as the rank's lanes are many. */
#include "backend/tickets.h"

#include <assert.h>
#include <stddef.h>

uint64_t horon_ticket_propose(struct horon_tickets *tickets, struct horon_ticket *ticket)
{
    for (const struct horon_ticket *other = tickets->first; other; other = other->next)
        assert(other != ticket && other->lane != ticket->lane);
    ticket->number = ++tickets->highest;
    ticket->drawn = false;
    ticket->next = tickets->first;
    tickets->first = ticket;
    return ticket->number;
}

void horon_ticket_draw(struct horon_tickets *tickets, struct horon_ticket *ticket, uint64_t number)
{
    assert(!ticket->drawn);
    assert(number >= ticket->number);
    ticket->number = number;
    ticket->drawn = true;
    if (number > tickets->highest)
        tickets->highest = number;
}

static bool is_before(const struct horon_ticket *a, const struct horon_ticket *b)
{
    return a->number < b->number || (a->number == b->number && a->lane < b->lane);
}

bool horon_ticket_is_next(const struct horon_tickets *tickets, const struct horon_ticket *ticket)
{
    assert(ticket->drawn);
    for (const struct horon_ticket *other = tickets->first; other; other = other->next)
        if (is_before(other, ticket))
            return false;
    return true;
}

void horon_ticket_use(struct horon_tickets *tickets, struct horon_ticket *ticket)
{
    struct horon_ticket **link = &tickets->first;
    while (*link && *link != ticket)
        link = &(*link)->next;
    if (*link)
        *link = ticket->next;
    ticket->next = NULL;
}
