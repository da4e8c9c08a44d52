/* SPDX-License-Identifier: Apache-2.0 */
/* All sockets of a listener have one port: others are told one, and a firewall opens one. */
#include "boot/connect/listen.h"

#include "boot/connect/handshake.h"
#include "boot/host/process.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PORT_TRIES 16 /* of ports that are free at one address and taken at another */

static int open_noted(struct horon_address *address, int first, int last, int start,
                      struct horon_fds *noted)
{
    horon_fds_hold(noted);
    const int fd = horon_fds_note(noted, horon_address_listen_range(address, first, last, start));
    horon_fds_release(noted);
    return fd;
}

int horon_listen_at(const struct horon_addresses *addresses, int first, int last, int start,
                    struct horon_fds *noted, int *fds, int *port_out)
{
    int why = EADDRNOTAVAIL, count = 0;
    for (int tries = 0; tries < PORT_TRIES; tries++) {
        int port = 0;
        bool taken = false;
        for (int i = 0; i < addresses->count && !taken; i++) {
            struct horon_address address = addresses->items[i];
            fds[count] = count ? open_noted(&address, port, port, 0, noted)
                               : open_noted(&address, first, last, start + tries, noted);
            if (fds[count] >= 0) {
                port = horon_address_port(&address);
                count++;
                continue;
            }
            why = errno;
            taken = why == EADDRINUSE; /* else: a machine without IPv6, for one */
        }
        *port_out = port;
        if (count == 0 || !taken)
            break;
        while (count > 0)
            close(fds[--count]);
    }
    errno = why;
    return count ? count : -1;
}

void horon_listen_everywhere(struct horon_addresses *addresses)
{
    addresses->count = 2;
    horon_address_parse("0.0.0.0", 0, &addresses->items[0]);
    horon_address_parse("::", 0, &addresses->items[1]);
}

horon_status_t horon_listeners_open(struct horon_listeners *listeners,
                                    const struct horon_config *config, bool key_given, int rank,
                                    struct horon_error *error)
{
    int first, last, port = 0;
    struct horon_addresses here, at;
    horon_status_t status =
        horon_addresses_of_machine(config->interfaces, !key_given, &here, error);
    if (status == HORON_OK)
        status = horon_port_range_parse(config->port_range, &first, &last, error);
    if (status != HORON_OK)
        return status;
    at = here;
    if (key_given && !config->interfaces[0])
        horon_listen_everywhere(&at);
    const int count =
        horon_listen_at(&at, first, last, rank, listeners->noted, listeners->fds, &port);
    if (count < 0 && errno == EADDRINUSE)
        return horon_error_set(error, HORON_ERR_CONFIG, "no port of HORON_PORT_RANGE=%s is free",
                               config->port_range);
    if (count < 0)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "this rank cannot listen");
    for (int i = 0; i < here.count; i++)
        horon_address_set_port(&here.items[i], port);
    listeners->count = count;
    listeners->addresses = here;
    return HORON_OK;
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
