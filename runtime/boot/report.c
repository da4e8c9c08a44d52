/* SPDX-License-Identifier: Apache-2.0 */
/* One line an object. Nothing here is formatted unless the level asks for it. */
#include "backend/mpi_begin.h"
#include "boot/identity/space.h"
#include "boot/joining.h"

#include <string.h>

void horon_joining_report_identity(const struct horon_joining *j)
{
    const struct horon_identity *id = &j->id;
    const char *through = j->caller->mpi_comm             ? "the communicator"
                          : id->space == &horon_space_mpi ? "MPI"
                                                          : "the launcher";
    HORON_LOG_DEBUG(j->log, "this is rank %d of %d, as %s says", id->rank, id->size, id->source);
    if (id->local_rank >= 0)
        HORON_LOG_DEBUG(j->log, "%s says, too, that it is local rank %d of %d", id->source,
                        id->local_rank, id->local_size);
    if (id->size == 1)
        return;
    HORON_LOG_DEBUG(j->log, "ranks meet at %s%s%s", id->store,
                    id->told        ? ", as rank 0 said through "
                    : id->port_scan ? ", made of the launcher's variables"
                                    : "",
                    id->told ? through : "");
    /* the key itself is nobody's to read */
    HORON_LOG_DEBUG(j->log, "the job key comes from %s",
                    j->config->job_key[0]        ? "HORON_JOB_KEY"
                    : j->config->job_key_file[0] ? "HORON_JOB_KEY_FILE"
                    : !j->boot->key->given       ? "nowhere: there is none"
                    : id->told                   ? "rank 0"
                                                 : "the launcher's folder of this launch");
}

/* A launcher of a family of MPI's. Below others MPI may be begun by each rank for itself. */
static bool is_mpirun(const struct horon_launcher *launcher)
{
    return launcher->name &&
           (strcmp(launcher->name, "Open MPI") == 0 || strcmp(launcher->name, "PMI") == 0);
}

void horon_joining_report_mpi(const struct horon_joining *j)
{
    const struct horon_identity *id = &j->id;
    if (id->rank == 0 && id->size > 1 && is_mpirun(&j->boot->launcher) && horon_mpi_world() == 1)
        HORON_LOG_WARN(j->log,
                       "%s started %d ranks, and each is alone in the program's MPI, which sees "
                       "one: start them with that MPI's own mpirun",
                       id->source, id->size);
}

void horon_joining_report_links(const struct horon_joining *j)
{
    const struct horon_boot *boot = j->boot;
    const struct horon_topology *topology = &boot->topology;
    if (!horon_log_wants(j->log, HORON_LOG_DEBUG))
        return;
    HORON_LOG_DEBUG(j->log,
                    "made an arena of %zu bytes; the %d rank%s of this host share %zu bytes",
                    boot->local[topology->local_rank_of[topology->rank]].arena.bytes,
                    boot->local_count, boot->local_count == 1 ? "" : "s", boot->control.bytes);
    for (int r = 0; r < topology->size; r++) {
        const char *host = topology->host_name[topology->host_of[r]];
        char from[HORON_ADDRESS_TEXT_BYTES], to[HORON_ADDRESS_TEXT_BYTES];
        const int fd = boot->proven[r].fd;
        if (r != topology->rank && horon_topology_is_here(topology, r))
            HORON_LOG_DEBUG(j->log,
                            "linked to rank %d (%s) by shared memory, its arena of %zu bytes", r,
                            host, boot->local[topology->local_rank_of[r]].arena.bytes);
        else if (fd >= 0)
            HORON_LOG_DEBUG(j->log, "linked to rank %d (%s) by tcp, %s to %s", r, host,
                            horon_address_end_text(fd, false, from),
                            horon_address_end_text(fd, true, to));
    }
    if (topology->size == 1)
        return;
    HORON_LOG_DEBUG(j->log, "joined %d ranks on %d host%s: met in %.1f ms, connected in %.1f",
                    topology->size, topology->host_count, topology->host_count == 1 ? "" : "s",
                    (double)(j->met_ns - j->begun_ns) / 1e6,
                    (double)(j->connected_ns - j->met_ns) / 1e6);
}
