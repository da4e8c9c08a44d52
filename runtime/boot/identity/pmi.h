/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The key-value space of a launcher that speaks PMI-1, as MPICH's hydra does: what one process of a
 * job puts there before a barrier all of them can get after it.
 *
 * Thread: one at a time, and no other of the process in a call of PMI. Blocks, up to the deadline.
 */
#ifndef HORON_BOOT_PMI_H
#define HORON_BOOT_PMI_H

#include "status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HORON_PMI_VALUE_BYTES 1024 /* of a value, with a final 0: hydra takes no longer ones */

struct horon_pmi {
    int fd;                     /* the launcher's, of PMI_FD; stays open */
    uint64_t deadline_ns;       /* of all that waits */
    bool (*goes_on)(void *arg); /* asked now and then while it waits; NULL: nobody is */
    void *arg;
    char space[256]; /* its name */
};

/** Finds the space. @param pmi all but the name is set
 * @return OK | ERR_CONFIG, PMI_FD is no socket | as horon_pmi_get() */
horon_status_t horon_pmi_open(struct horon_pmi *pmi, struct horon_error *error);

/** Of a key and a value that have no blanks. A key is put once. @return as horon_pmi_get() */
horon_status_t horon_pmi_put(struct horon_pmi *pmi, const char *key, const char *value,
                             struct horon_error *error);

/** @return OK | AGAIN, there is none | ERR_TIMEOUT | ERR_CANCELLED, it is not to go on | ERR_PROTO,
 * the answer makes no sense | ERR_SYSTEM, the launcher is gone */
horon_status_t horon_pmi_get(struct horon_pmi *pmi, const char *key,
                             char value[HORON_PMI_VALUE_BYTES], struct horon_error *error);

/** When this process exits with status 0, tells the launcher that all is well, unless MPI has. Else
 * the launcher takes a process that it has once heard of for one that crashed, and ends the others.
 * @return OK | ERR_MEMORY */
horon_status_t horon_pmi_end_at_exit(const struct horon_pmi *pmi, struct horon_error *error);

/** Waits until every process of the job is here. @return likewise */
horon_status_t horon_pmi_meet(struct horon_pmi *pmi, struct horon_error *error);

#endif
