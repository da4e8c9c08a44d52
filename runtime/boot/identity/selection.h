/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job of some of the ranks that a launcher has started: init(comm=[0, 2]). Which they are is the
 * row RANKS; their numbers in the job are their places in that list. The mark of such a job is made
 * of the list, so ranks with different lists do not meet. The others need not join anything.
 */
#ifndef HORON_BOOT_SELECTION_H
#define HORON_BOOT_SELECTION_H

#include "boot/identity/identity.h"

/** Reads such a list. @param places [limit] of each rank below @p limit in it; -1: it is not there
 * @return how many there are; -1: this is no such list, or names a rank twice or one that there is
 * not */
int horon_ranks_parse(const char *text, int limit, int *places);

/**
 * Makes of the identity in the launch that in the job.
 * @param ranks "" for all, which changes nothing; else as in "0,2,4-7" or "0-98:2"
 * @return OK | ERR_CONFIG, this is no such list, or names a rank twice or one that there is not |
 *         ERR_INVALID, this rank is not in it | ERR_MEMORY
 */
horon_status_t horon_identity_select(struct horon_identity *identity, const char *ranks,
                                     struct horon_error *error);

#endif
