/* SPDX-License-Identifier: Apache-2.0 */
/* A ring of team numbers that grows when it is full. */
#include "backend/tickets.h"

#include "alloc.h"

#include <assert.h>

#define TICKETS_FIRST 16

void horon_tickets_deinit(struct horon_tickets *tickets)
{
    horon_free(tickets->teams);
    *tickets = (struct horon_tickets){0};
}

static horon_status_t grow(struct horon_tickets *tickets)
{
    const size_t capacity = tickets->capacity ? tickets->capacity * 2 : TICKETS_FIRST;
    int32_t *teams = horon_zalloc(capacity, sizeof *teams);
    if (!teams)
        return HORON_ERR_MEMORY;
    for (size_t i = 0; i < tickets->count; i++)
        teams[i] = tickets->teams[(tickets->first + i) % tickets->capacity];
    horon_free(tickets->teams);
    tickets->teams = teams;
    tickets->capacity = capacity;
    tickets->first = 0;
    return HORON_OK;
}

horon_status_t horon_tickets_draw(struct horon_tickets *tickets, int32_t team)
{
    if (tickets->count == tickets->capacity && grow(tickets) != HORON_OK)
        return HORON_ERR_MEMORY;
    tickets->teams[(tickets->first + tickets->count) % tickets->capacity] = team;
    tickets->count++;
    return HORON_OK;
}

bool horon_tickets_turn(const struct horon_tickets *tickets, int32_t team)
{
    return tickets->count > 0 && tickets->teams[tickets->first] == team;
}

void horon_tickets_use(struct horon_tickets *tickets, int32_t team)
{
    assert(horon_tickets_turn(tickets, team));
    (void)team;
    tickets->first = (tickets->first + 1) % tickets->capacity;
    tickets->count--;
}
