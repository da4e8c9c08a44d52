/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Network interfaces that are up, with their speed and addresses: those that HORON_INTERFACES can
 * name.
 */
#include "machine.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_BYTES 2048

/* The kernel's word on an interface: megabits a second; 0 or less: it does not know. */
static long speed_of(const char *name)
{
    char path[128];
    long speed = 0;
    snprintf(path, sizeof path, "/sys/class/net/%.64s/speed", name);
    FILE *in = fopen(path, "re");
    char line[64];
    if (in && fgets(line, sizeof line, in))
        speed = strtol(line, NULL, 10);
    if (in)
        fclose(in);
    return speed;
}

static int prefix_bits(const void *mask, size_t bytes)
{
    int bits = 0;
    for (size_t i = 0; i < bytes; i++)
        bits += __builtin_popcount(((const unsigned char *)mask)[i]);
    return bits;
}

/* @return false: neither IPv4 nor IPv6 */
static bool write_address(const struct ifaddrs *one, char *text, size_t bytes)
{
    char address[INET6_ADDRSTRLEN];
    if (!one->ifa_addr || !one->ifa_netmask)
        return false;
    int family = one->ifa_addr->sa_family;
    const void *raw, *mask;
    if (family == AF_INET) {
        raw = &((const struct sockaddr_in *)(const void *)one->ifa_addr)->sin_addr;
        mask = &((const struct sockaddr_in *)(const void *)one->ifa_netmask)->sin_addr;
    } else if (family == AF_INET6) {
        raw = &((const struct sockaddr_in6 *)(const void *)one->ifa_addr)->sin6_addr;
        mask = &((const struct sockaddr_in6 *)(const void *)one->ifa_netmask)->sin6_addr;
    } else {
        return false;
    }
    inet_ntop(family, raw, address, sizeof address);
    snprintf(text, bytes, "%s/%d", address, prefix_bits(mask, family == AF_INET ? 4 : 16));
    return true;
}

static bool seen_before(const struct ifaddrs *all, const struct ifaddrs *one)
{
    for (; all != one; all = all->ifa_next)
        if (strcmp(all->ifa_name, one->ifa_name) == 0)
            return true;
    return false;
}

static void print_interface(FILE *to, const struct ifaddrs *one)
{
    char label[64], text[TEXT_BYTES] = "", address[128];
    size_t used = 0;
    long speed = speed_of(one->ifa_name);
    for (const struct ifaddrs *next = one; next; next = next->ifa_next) {
        if (strcmp(next->ifa_name, one->ifa_name) != 0 ||
            !write_address(next, address, sizeof address) || used + sizeof address > sizeof text)
            continue;
        used +=
            (size_t)snprintf(text + used, sizeof text - used, "%s%s", used ? ", " : "", address);
    }
    snprintf(label, sizeof label, "%s", one->ifa_name);
    if (speed > 0)
        horon_info_row(to, label, "%s; %ld Mbit/s", used ? text : "no address", speed);
    else
        horon_info_row(to, label, "%s", used ? text : "no address");
}

void horon_info_print_networks(FILE *to)
{
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0) {
        horon_info_row(to, "none", "%s", strerror(errno));
        return;
    }
    for (const struct ifaddrs *one = all; one; one = one->ifa_next)
        if (one->ifa_flags & IFF_UP && !seen_before(all, one))
            print_interface(to, one);
    freeifaddrs(all);
}
