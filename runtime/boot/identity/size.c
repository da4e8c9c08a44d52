/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PRRTE's prterun puts into variables which rank a process is, and tells of how many by PMIx alone.
 * It is asked before the identity is found, and only where it has to be, as its begin takes tens of
 * milliseconds (identity.c). The error of one that cannot be asked names the variable that helps.
 */
#include "boot/identity/identity.h"
#include "boot/identity/space.h"

#include "clock.h"

horon_status_t horon_identity_ask(struct horon_identity *identity, int rank, int size,
                                  const char *store, int64_t limit_ms, horon_environment_fn get,
                                  struct horon_error *error)
{
    int own = 0, told = 0;
    if (rank == -1 && size == -1 && horon_identity_lacks_size(get, &own)) {
        struct horon_space space = {.calls = &horon_space_pmix,
                                    .rank = own,
                                    .deadline_ns =
                                        horon_clock_deadline(horon_clock_ns(), limit_ms)};
        const horon_status_t status = horon_space_pmix_size(&space, &told, error);
        if (status != HORON_OK)
            return status;
    }
    return horon_identity_find(identity, rank, size, store, told, get, error);
}
