/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What Horovod's own workers expect of horovodrun --gloo, so that they start here as well: a server
 * at which they find each other, whose scopes are cleared when a meeting is over, and variables.
 * horon's ranks use none of it. Elastic jobs are not served. It is not on by itself, as the server
 * authenticates nobody. A job's ranks, sizes and places are told to all programs anyway
 * (environment.c).
 */
#include "environment.h"
#include "job_internal.h"

#include <net/if.h>
#include <stdio.h>
#include <string.h>

/* The host that two ranks of the launcher share goes by the name that the user gave. */
static bool declare(struct job *job, struct horonrun_scopes *scopes)
{
    char name[300];
    bool ok = horonrun_scopes_declare(scopes, "global", job->setup->size);
    int most = 0;
    for (int i = 0; ok && i < job->host_count; i++) {
        snprintf(name, sizeof name, "local_%s", job->hosts[i].host->name);
        ok = horonrun_scopes_declare(scopes, name, job->host_ranks[i]);
        most = job->host_ranks[i] > most ? job->host_ranks[i] : most;
    }
    for (int local = 0; ok && local < most; local++) {
        int ranks = 0;
        for (int i = 0; i < job->host_count; i++)
            ranks += job->host_ranks[i] > local;
        snprintf(name, sizeof name, "cross_%d", local);
        ok = horonrun_scopes_declare(scopes, name, ranks);
    }
    return ok;
}

/* The interface that Gloo is to use: the loopback, or the first that the user has chosen by name.
 * @return false: it is not known */
static bool find_interface(const struct job *job, char name[IF_NAMESIZE])
{
    const char *chosen = job->remote_count ? job->setup->config->interfaces : "lo";
    const size_t bytes = strcspn(chosen, ", ");
    if (bytes == 0 || bytes >= IF_NAMESIZE)
        return false;
    memcpy(name, chosen, bytes);
    name[bytes] = 0;
    return if_nametoindex(name) != 0;
}

horon_status_t job_gloo_begin(struct job *job, struct horon_error *error)
{
    char name[IF_NAMESIZE];
    if (!job->setup->options->gloo)
        return HORON_OK;
    struct horonrun_scopes *scopes = horonrun_scopes_create(job->setup->size);
    if (!scopes || !declare(job, scopes)) {
        horonrun_scopes_destroy(scopes);
        return horon_error_set(error, HORON_ERR_MEMORY, "out of memory");
    }
    const horon_status_t status =
        horonrun_rendezvous_create(&job->rendezvous, job->loop, scopes, job->setup->size,
                                   job->remote_count > 0, job->setup->config, error);
    if (status != HORON_OK)
        return status;
    horonrun_output_say(job->output,
                        "warning: --gloo: what reaches this job's rendezvous server%s can read and "
                        "change what workers of Horovod tell each other there; Gloo authenticates "
                        "nobody",
                        job->remote_count ? ", from other hosts too," : ", on this host,");
    if (!find_interface(job, name) && !horonrun_environment_find(environ, "HOROVOD_GLOO_IFACE"))
        horonrun_output_say(
            job->output, "warning: --gloo: workers of Horovod use the address of their host's "
                         "name; --network-interface NAME says better where they reach each other");
    return HORON_OK;
}

bool job_gloo_tell(const struct job_host *host, char ***environment)
{
    const struct job *job = host->job;
    char address[HORON_ADDRESS_TEXT_BYTES], port[16], name[IF_NAMESIZE], timeout[16];
    if (!job->rendezvous)
        return true;
    snprintf(port, sizeof port, "%d",
             horonrun_rendezvous_address(job->rendezvous, host->seen_as, address));
    const int timeout_s = job->setup->options->gloo_timeout_s;
    snprintf(timeout, sizeof timeout, "%d", timeout_s);
    const struct {
        const char *name, *value;
        bool may_be_set; /* by the user, whose word counts */
    } variables[] = {
        {"HOROVOD_HOSTNAME", host->host->name, false},
        {"HOROVOD_GLOO_RENDEZVOUS_ADDR", address, false},
        {"HOROVOD_GLOO_RENDEZVOUS_PORT", port, false},
        {"HOROVOD_CONTROLLER", "gloo", false},
        {"HOROVOD_CPU_OPERATIONS", "gloo", false},
        {"HOROVOD_GLOO_TIMEOUT_SECONDS", timeout_s ? timeout : NULL, false},
        {"HOROVOD_GLOO_IFACE", find_interface(job, name) ? name : NULL, true},
        {"NCCL_SOCKET_IFNAME", find_interface(job, name) ? name : NULL, true},
    };
    bool ok = true;
    for (size_t i = 0; ok && i < sizeof variables / sizeof variables[0]; i++)
        if (variables[i].value && !(variables[i].may_be_set &&
                                    horonrun_environment_find(*environment, variables[i].name)))
            ok = horonrun_environment_set(environment, variables[i].name, variables[i].value);
    return ok;
}
