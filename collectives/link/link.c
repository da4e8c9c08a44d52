/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a kind of link puts into the slots of its table that it has no use for: so no slot is NULL,
 * but `fetch`, which only a kind of link that lends has (link.h).
 */
#include "link/link.h"

horon_status_t horon_link_ended(const char *how, struct horon_error *error)
{
    horon_error_set(error, HORON_ERR_PEER_LOST,
                    "%s the connection without leaving the job (killed, crashed, or it exited)",
                    how);
    horon_error_blame(error, HORON_CAUSE_DIED, -1, -1);
    return HORON_ERR_PEER_LOST;
}

int horon_link_no_descriptor(const struct horon_link *link)
{
    (void)link;
    return -1;
}

unsigned horon_link_plain_interest(const struct horon_link *link, bool sends)
{
    (void)link;
    return HORON_LINK_READ | (sends ? HORON_LINK_WRITE : 0);
}

bool horon_link_always_ready(const struct horon_link *link)
{
    (void)link;
    return true;
}

void horon_link_finds_nothing(struct horon_link *link, unsigned events)
{
    (void)link;
    (void)events;
}

size_t horon_link_nothing_undelivered(const struct horon_link *link)
{
    (void)link;
    return 0;
}

horon_status_t horon_link_always_answers(struct horon_link *link, struct horon_error *error)
{
    (void)link;
    (void)error;
    return HORON_OK;
}
