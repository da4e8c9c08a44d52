/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of the hosts is this machine? One that is must not be reached by ssh: it may have no sshd.
 * The plain names are answered without asking a name server; only what is left is resolved and
 * compared with the addresses of our interfaces.
 */
#include "hosts.h"

#include "address.h"

#include <string.h>
#include <strings.h>
#include <unistd.h>

static bool is_own_name(const char *name)
{
    char own[256] = "";
    if (strcasecmp(name, "localhost") == 0)
        return true;
    if (gethostname(own, sizeof own - 1) != 0 || !own[0])
        return false;
    size_t label = strcspn(own, ".");
    return strcasecmp(name, own) == 0 || (strlen(name) == label && !strncasecmp(name, own, label));
}

/* False also for a name that only ssh knows, from its own configuration. */
static bool resolves_to_us(const char *name)
{
    struct horon_addresses found;
    return horon_addresses_resolve(name, 0, &found, NULL) == HORON_OK &&
           horon_addresses_count(&found, horon_address_is_here) > 0;
}

void horonrun_hosts_find_local(struct horonrun_hosts *hosts)
{
    for (size_t i = 0; i < hosts->count; i++) {
        struct horonrun_host *host = &hosts->at[i];
        const char *at = strrchr(host->name, '@');
        const char *name = at ? at + 1 : host->name;
        host->local = is_own_name(name) || resolves_to_us(name);
    }
}
