/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the TCP sockets at which other hosts reach this rank, and says where they are. */
#include "boot/listen.h"

#include "boot/auth.h"
#include "boot/process.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* One socket of each family for all addresses, or one for each address that was chosen. */
static horon_status_t listen_on(struct horon_listeners *listeners, struct horon_address *address,
                                const struct horon_config *config, int rank,
                                struct horon_error *error)
{
    int first, last;
    char text[HORON_ADDRESS_TEXT_BYTES];
    horon_status_t status = horon_port_range_parse(config->port_range, &first, &last, error);
    if (status != HORON_OK)
        return status;
    horon_fds_hold(listeners->noted);
    int fd =
        horon_fds_note(listeners->noted, horon_address_listen_range(address, first, last, rank));
    horon_fds_release(listeners->noted);
    if (fd >= 0) {
        listeners->fds[listeners->count++] = fd;
        return HORON_OK;
    }
    if (errno == EADDRINUSE)
        return horon_error_set(error, HORON_ERR_CONFIG, "no port of HORON_PORT_RANGE=%s is free",
                               config->port_range);
    return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "cannot listen at %s",
                                 horon_address_text(address, text));
}

static horon_status_t listen_to_all(struct horon_listeners *listeners,
                                    const struct horon_config *config, int rank,
                                    struct horon_error *error)
{
    static const struct {
        int family;
        const char *any;
    } kinds[] = {{AF_INET, "0.0.0.0"}, {AF_INET6, "::"}};
    struct horon_addresses *all = &listeners->addresses;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        struct horon_address any;
        bool listening = false;
        for (int i = 0; i < all->count; i++) {
            if (all->items[i].any.sa_family != kinds[k].family)
                continue;
            if (!listening) {
                horon_address_parse(kinds[k].any, 0, &any);
                horon_status_t status = listen_on(listeners, &any, config, rank, error);
                if (status != HORON_OK)
                    return status;
                listening = true;
            }
            horon_address_set_port(&all->items[i], horon_address_port(&any));
        }
    }
    return HORON_OK;
}

horon_status_t horon_listeners_open(struct horon_listeners *listeners,
                                    const struct horon_config *config, bool key_given, int rank,
                                    struct horon_error *error)
{
    listeners->count = 0;
    struct horon_addresses *all = &listeners->addresses;
    horon_status_t status = horon_addresses_of_machine(config->interfaces, !key_given, all, error);
    if (status == HORON_OK && key_given && !config->interfaces[0])
        status = listen_to_all(listeners, config, rank, error);
    else
        for (int i = 0; i < all->count && status == HORON_OK; i++)
            status = listen_on(listeners, &all->items[i], config, rank, error);
    if (status != HORON_OK) {
        horon_listeners_close(listeners);
        all->count = 0;
    }
    return status;
}

void horon_listeners_close(struct horon_listeners *listeners)
{
    for (int i = 0; i < listeners->count; i++)
        close(listeners->fds[i]);
    listeners->count = 0;
}

/* Without pidfds deaths could not be seen: sharing memory would not be safe. */
horon_status_t horon_listen_on_host(int rank, char *name, size_t name_bytes, int *fd_out,
                                    struct horon_fds *fds, const struct horon_log *log,
                                    struct horon_error *error)
{
    uint64_t random[2];
    struct horon_address address;
    const int pidfd = horon_process_open_self();
    name[0] = 0;
    *fd_out = -1;
    if (pidfd >= 0) {
        close(pidfd);
        horon_status_t status = horon_random(random, sizeof random, error);
        if (status != HORON_OK)
            return status;
        snprintf(name, name_bytes, "horon-%d-%016" PRIx64 "%016" PRIx64, rank, random[0],
                 random[1]);
        horon_address_abstract(name, &address);
        horon_fds_hold(fds);
        *fd_out = horon_fds_note(fds, horon_address_listen(&address));
        horon_fds_release(fds);
    }
    if (*fd_out >= 0)
        return HORON_OK;
    HORON_LOG_WARN(log, "no shared memory: no %s (%s)", pidfd < 0 ? "pidfd" : "unix socket",
                   strerrordesc_np(errno));
    name[0] = 0;
    return HORON_OK;
}
