/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of the hosts is this machine? One that is must not be reached by ssh: it may have no sshd.
 * The plain names are answered without asking a name server; only what is left is resolved and
 * compared with the addresses of our interfaces.
 */
#include "hosts.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static bool same_address(const struct sockaddr *a, const struct sockaddr *b)
{
    if (a->sa_family != b->sa_family)
        return false;
    if (a->sa_family == AF_INET)
        return ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)(const void *)b)->sin_addr.s_addr;
    if (a->sa_family == AF_INET6)
        return memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr,
                      &((const struct sockaddr_in6 *)(const void *)b)->sin6_addr,
                      sizeof(struct in6_addr)) == 0;
    return false;
}

/* 127.0.0.0/8 is this machine though only 127.0.0.1 is on an interface. */
static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family != AF_INET)
        return false;
    const struct sockaddr_in *in = (const void *)address;
    return ntohl(in->sin_addr.s_addr) >> 24 == 127;
}

static bool is_ours(const struct sockaddr *address, const struct ifaddrs *interfaces)
{
    if (is_loopback(address))
        return true;
    for (; interfaces; interfaces = interfaces->ifa_next)
        if (interfaces->ifa_addr && same_address(address, interfaces->ifa_addr))
            return true;
    return false;
}

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

static bool resolves_to_us(const char *name, const struct ifaddrs *interfaces)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    bool ours = false;
    if (getaddrinfo(name, NULL, &hints, &found) != 0)
        return false; /* ssh may know the name from its own configuration */
    for (struct addrinfo *one = found; one && !ours; one = one->ai_next)
        ours = is_ours(one->ai_addr, interfaces);
    freeaddrinfo(found);
    return ours;
}

void horonrun_hosts_find_local(struct horonrun_hosts *hosts)
{
    struct ifaddrs *interfaces = NULL;
    for (size_t i = 0; i < hosts->count; i++) {
        struct horonrun_host *host = &hosts->at[i];
        const char *at = strrchr(host->name, '@');
        const char *name = at ? at + 1 : host->name;
        host->local = is_own_name(name);
        if (host->local)
            continue;
        if (!interfaces && getifaddrs(&interfaces) != 0)
            interfaces = NULL;
        host->local = resolves_to_us(name, interfaces);
    }
    if (interfaces)
        freeifaddrs(interfaces);
}
