/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What torch until 2.0 has its ranks do in the store once they are connected, before
 * init_process_group() returns; since 2.3 it is nothing.
 */
#ifndef HORON_BOOT_GLOO_C10D_GROUP_H
#define HORON_BOOT_GLOO_C10D_GROUP_H

#include "boot/gloo/store.h"

/**
 * Tells torch's ranks that this one is connected with all, for which they wait; and as rank 0 what
 * they count collectives from. Nothing where the store's prefix is not that of a group that
 * init_process_group() or new_group() made, "default_pg/0/0" say, or torch does not meet there.
 * @return OK | what the store says
 */
horon_status_t horon_gloo_c10d_group_meet(struct horon_gloo_store *store, int rank,
                                          const struct horon_gloo_wait *wait,
                                          struct horon_error *error);

#endif
