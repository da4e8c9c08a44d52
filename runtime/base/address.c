/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the socket calls want of addresses, in one place. Nothing here connects or waits, but for
 * the resolver of names.
 */
#include "address.h"

#include "numbers.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A whole large job may arrive at once; the kernel cuts it to its own. */
#define LISTEN_BACKLOG 4096

/* @return the 4 or 16 bytes; NULL if it is neither IPv4 nor IPv6 */
static const void *raw_of(const struct horon_address *address, size_t *raw_bytes_out)
{
    if (address->any.sa_family == AF_INET) {
        *raw_bytes_out = sizeof address->v4.sin_addr;
        return &address->v4.sin_addr;
    }
    if (address->any.sa_family == AF_INET6) {
        *raw_bytes_out = sizeof address->v6.sin6_addr;
        return &address->v6.sin6_addr;
    }
    return NULL;
}

bool horon_address_parse(const char *text, int port, struct horon_address *address)
{
    char host[HORON_ADDRESS_TEXT_BYTES]; /* what must be cut for it is no address */
    const size_t bytes = strlen(text);
    const bool brackets = bytes > 2 && text[0] == '[' && text[bytes - 1] == ']';
    snprintf(host, sizeof host, "%.*s", (int)(brackets ? bytes - 2 : bytes), text + brackets);
    memset(address, 0, sizeof *address);
    if (inet_pton(AF_INET, host, &address->v4.sin_addr) == 1) {
        address->v4.sin_family = AF_INET;
        address->bytes = sizeof address->v4;
    } else if (inet_pton(AF_INET6, host, &address->v6.sin6_addr) == 1) {
        address->v6.sin6_family = AF_INET6;
        address->bytes = sizeof address->v6;
    } else {
        return false;
    }
    horon_address_set_port(address, port);
    return true;
}

bool horon_address_cut(const char *text, size_t bytes, char host[HORON_ADDRESS_TEXT_BYTES],
                       int *port_out)
{
    char copy[HORON_ADDRESS_TEXT_BYTES + 16];
    if ((size_t)snprintf(copy, sizeof copy, "%.*s", (int)bytes, text) >= sizeof copy)
        return false;
    char *colon = strrchr(copy, ':');
    if (!colon || colon == copy || colon - copy >= HORON_ADDRESS_TEXT_BYTES ||
        strpbrk(copy, " \t") || !horon_number_parse(colon + 1, 1, 65535, port_out))
        return false;
    *colon = 0;
    strcpy(host, copy);
    return true;
}

void horon_address_abstract(const char *name, struct horon_address *address)
{
    size_t bytes = strlen(name);
    const size_t room = sizeof address->local.sun_path - 1;
    bytes = bytes < room ? bytes : room;
    memset(address, 0, sizeof *address);
    address->local.sun_family = AF_UNIX;
    memcpy(address->local.sun_path + 1, name, bytes);
    address->bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + bytes);
}

static_assert(offsetof(struct sockaddr_in, sin_port) == offsetof(struct sockaddr_in6, sin6_port),
              "a port is in one place, be it of IPv4 or IPv6");

int horon_address_port(const struct horon_address *address)
{
    return address->any.sa_family == AF_UNIX ? 0 : ntohs(address->v4.sin_port);
}

void horon_address_set_port(struct horon_address *address, int port)
{
    assert(port >= 0 && port <= UINT16_MAX);
    if (address->any.sa_family != AF_UNIX)
        address->v4.sin_port = htons((uint16_t)port);
}

bool horon_address_is_loopback(const struct horon_address *address)
{
    if (address->any.sa_family == AF_INET)
        return ntohl(address->v4.sin_addr.s_addr) >> 24 == 127;
    if (address->any.sa_family != AF_INET6)
        return address->any.sa_family == AF_UNIX;
    const struct in6_addr *v6 = &address->v6.sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127);
}

bool horon_address_is_link_local(const struct horon_address *address)
{
    return address->any.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&address->v6.sin6_addr);
}

bool horon_address_agrees(const struct horon_address *a, const struct horon_address *b, int bits)
{
    size_t a_bytes = 0, b_bytes = 0;
    const uint8_t *a_raw = raw_of(a, &a_bytes), *b_raw = raw_of(b, &b_bytes);
    assert(bits >= 0);
    if (!a_raw || !b_raw || a_bytes != b_bytes)
        return false;
    const int all = (int)a_bytes * 8, wanted = bits < all ? bits : all, rest = wanted % 8;
    return memcmp(a_raw, b_raw, (size_t)wanted / 8) == 0 &&
           (rest == 0 || (a_raw[wanted / 8] ^ b_raw[wanted / 8]) >> (8 - rest) == 0);
}

bool horon_address_same_host(const struct horon_address *a, const struct horon_address *b)
{
    return horon_address_agrees(a, b, HORON_ADDRESS_BITS_MAX);
}

const char *horon_address_host_text(const struct horon_address *address,
                                    char text[HORON_ADDRESS_TEXT_BYTES])
{
    char host[INET6_ADDRSTRLEN] = "?";
    size_t raw_bytes = 0;
    const void *raw = raw_of(address, &raw_bytes);
    if (raw) {
        inet_ntop(address->any.sa_family, raw, host, sizeof host);
        snprintf(text, HORON_ADDRESS_TEXT_BYTES, raw_bytes == 4 ? "%s" : "[%s]", host);
        return text;
    }
    const int bytes = (int)address->bytes - (int)offsetof(struct sockaddr_un, sun_path) - 1;
    snprintf(text, HORON_ADDRESS_TEXT_BYTES, "socket %.*s", bytes > 0 ? bytes : 0,
             address->local.sun_path + 1);
    return text;
}

const char *horon_address_text(const struct horon_address *address,
                               char text[HORON_ADDRESS_TEXT_BYTES])
{
    horon_address_host_text(address, text);
    if (address->any.sa_family == AF_INET || address->any.sa_family == AF_INET6)
        horon_text_add(text, HORON_ADDRESS_TEXT_BYTES, ":", "%d", horon_address_port(address));
    return text;
}

const char *horon_address_end_text(int socket, bool there, char text[HORON_ADDRESS_TEXT_BYTES])
{
    struct horon_address end = {.bytes = sizeof end.local};
    const int why = there ? getpeername(socket, &end.any, &end.bytes)
                          : getsockname(socket, &end.any, &end.bytes);
    return why == 0 ? horon_address_text(&end, text) : strcpy(text, "?");
}

bool horon_address_is_to_itself(int socket)
{
    struct horon_address here = {.bytes = sizeof here.local}, there = {.bytes = sizeof there.local};
    return getsockname(socket, &here.any, &here.bytes) == 0 &&
           getpeername(socket, &there.any, &there.bytes) == 0 &&
           horon_address_same_host(&here, &there) &&
           horon_address_port(&here) == horon_address_port(&there);
}

void horon_addresses_add(struct horon_addresses *addresses, const struct horon_address *address)
{
    assert(addresses->count >= 0 && addresses->count <= HORON_ADDRESSES_MAX);
    for (int i = 0; i < addresses->count; i++)
        if (horon_address_same_host(&addresses->items[i], address) &&
            horon_address_port(&addresses->items[i]) == horon_address_port(address))
            return;
    if (addresses->count < HORON_ADDRESSES_MAX)
        addresses->items[addresses->count++] = *address;
}

void horon_addresses_write(const struct horon_addresses *addresses, char *text, size_t text_bytes)
{
    text[0] = 0;
    for (int i = 0; i < addresses->count; i++) {
        char one[HORON_ADDRESS_TEXT_BYTES];
        horon_text_add(text, text_bytes, ",", "%s", horon_address_text(&addresses->items[i], one));
    }
}

bool horon_addresses_read(const char *text, struct horon_addresses *addresses)
{
    memset(addresses, 0, sizeof *addresses);
    for (const char *at = text; *at; at += *at == ',') {
        char host[HORON_ADDRESS_TEXT_BYTES];
        const size_t bytes = strcspn(at, ",");
        int port;
        if (addresses->count == HORON_ADDRESSES_MAX || !horon_address_cut(at, bytes, host, &port) ||
            !horon_address_parse(host, port, &addresses->items[addresses->count]))
            return false;
        addresses->count++;
        at += bytes;
    }
    return true;
}

/* @return false for what is neither IPv4 nor IPv6 */
static bool take(const struct sockaddr *from, struct horon_address *address)
{
    memset(address, 0, sizeof *address);
    if (from->sa_family == AF_INET)
        address->bytes = sizeof address->v4;
    if (from->sa_family == AF_INET6)
        address->bytes = sizeof address->v6;
    memcpy(&address->any, from, address->bytes);
    return address->bytes > 0;
}

horon_status_t horon_addresses_resolve(const char *host, int port,
                                       struct horon_addresses *addresses, struct horon_error *error)
{
    memset(addresses, 0, sizeof *addresses);
    if (horon_address_parse(host, port, &addresses->items[0])) {
        addresses->count = 1;
        return HORON_OK;
    }
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int why = getaddrinfo(host, NULL, &hints, &found);
    if (why != 0)
        return horon_error_set(error, HORON_ERR_CONFIG, "the host name '%s' is not known: %s", host,
                               gai_strerror(why));
    for (const struct addrinfo *at = found; at; at = at->ai_next) {
        struct horon_address address;
        if (!take(at->ai_addr, &address))
            continue;
        horon_address_set_port(&address, port);
        horon_addresses_add(addresses, &address);
    }
    freeaddrinfo(found);
    if (addresses->count == 0)
        return horon_error_set(error, HORON_ERR_CONFIG, "the host '%s' has no IP address", host);
    return HORON_OK;
}

static bool prefix_matches(const char *prefix, const struct horon_address *address)
{
    char host[HORON_ADDRESS_TEXT_BYTES];
    struct horon_address base;
    const char *slash = strchr(prefix, '/');
    int bits = HORON_ADDRESS_BITS_MAX;
    snprintf(host, sizeof host, "%.*s", (int)strcspn(prefix, "/"), prefix);
    if (!horon_address_parse(host, 0, &base))
        return false;
    const int all = base.any.sa_family == AF_INET ? 32 : HORON_ADDRESS_BITS_MAX;
    return (!slash || horon_number_parse(slash + 1, 0, all, &bits)) &&
           horon_address_agrees(&base, address, bits);
}

static bool spec_matches(const char *spec, const char *interface,
                         const struct horon_address *address)
{
    if (!spec[0])
        return true;
    for (const char *at = spec; *at; at += strspn(at, ", ")) {
        char word[HORON_ADDRESS_TEXT_BYTES]; /* longer than any that could match */
        const size_t bytes = strcspn(at, ", ");
        snprintf(word, sizeof word, "%.*s", (int)bytes, at);
        if (strcmp(word, interface) == 0 || prefix_matches(word, address))
            return true;
        at += bytes;
    }
    return false;
}

/* @return false for one that is down, of another family, or good on one interface only */
static bool address_of(const struct ifaddrs *at, struct horon_address *address)
{
    return at->ifa_addr && at->ifa_flags & IFF_UP && take(at->ifa_addr, address) &&
           !horon_address_is_link_local(address);
}

static horon_status_t nothing_matches(const struct ifaddrs *all, const char *spec,
                                      bool loopback_only, struct horon_error *error)
{
    char list[512] = "";
    for (const struct ifaddrs *at = all; at; at = at->ifa_next) {
        struct horon_address address;
        char text[HORON_ADDRESS_TEXT_BYTES];
        if (address_of(at, &address))
            horon_text_add(list, sizeof list, ", ", "%s %s", at->ifa_name,
                           horon_address_host_text(&address, text));
    }
    return horon_error_set(
        error, HORON_ERR_CONFIG,
        "HORON_INTERFACES=%s matches no %saddress of this machine, which has: %s", spec,
        loopback_only ? "loopback (there is no job key) " : "", list);
}

horon_status_t horon_addresses_of_machine(const char *spec, bool loopback_only,
                                          struct horon_addresses *addresses,
                                          struct horon_error *error)
{
    struct ifaddrs *all = NULL;
    horon_status_t status = HORON_OK;
    memset(addresses, 0, sizeof *addresses);
    if (getifaddrs(&all) != 0)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno,
                                     "the network interfaces cannot be listed");
    for (int loopback = loopback_only; loopback <= 1; loopback++) {
        for (const struct ifaddrs *at = all; at; at = at->ifa_next) {
            struct horon_address address;
            if (address_of(at, &address) && horon_address_is_loopback(&address) == loopback &&
                spec_matches(spec, at->ifa_name, &address))
                horon_addresses_add(addresses, &address);
        }
    }
    if (addresses->count == 0)
        status = nothing_matches(all, spec, loopback_only, error);
    freeifaddrs(all);
    return status;
}

bool horon_address_is_here(const struct horon_address *address)
{
    struct ifaddrs *all = NULL;
    bool here = horon_address_is_loopback(address); /* 127.8.9.1, too, which no interface has */
    if (here || getifaddrs(&all) != 0)
        return here;
    for (const struct ifaddrs *at = all; at && !here; at = at->ifa_next) {
        struct horon_address one;
        here = at->ifa_addr && take(at->ifa_addr, &one) && horon_address_same_host(&one, address);
    }
    freeifaddrs(all);
    return here;
}

int horon_addresses_count(const struct horon_addresses *addresses,
                          bool (*is)(const struct horon_address *address))
{
    int count = 0;
    for (int i = 0; i < addresses->count; i++)
        count += is(&addresses->items[i]);
    return count;
}

void horon_addresses_everywhere(struct horon_addresses *addresses)
{
    addresses->count = 2;
    horon_address_parse("0.0.0.0", 0, &addresses->items[0]);
    horon_address_parse("::", 0, &addresses->items[1]);
}

horon_status_t horon_port_range_parse(const char *text, int *first_out, int *last_out,
                                      struct horon_error *error)
{
    int first = 0, last = 0, read = 0;
    *first_out = *last_out = 0;
    if (!text[0])
        return HORON_OK;
    if (sscanf(text, "%9d%n-%9d%n", &first, &read, &last, &read) == 1)
        last = first;
    if (text[read] || first < 1 || last > 65535 || first > last)
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "HORON_PORT_RANGE=%s is not FIRST-LAST within 1-65535", text);
    *first_out = first;
    *last_out = last;
    return HORON_OK;
}

int horon_address_listen(struct horon_address *address)
{
    const int on = 1;
    int fd = socket(address->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (address->any.sa_family != AF_UNIX)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); /* old connections linger */
    if (address->any.sa_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    struct horon_address got = {.bytes = sizeof got.local}; /* the largest member */
    if (bind(fd, &address->any, address->bytes) == 0 && listen(fd, LISTEN_BACKLOG) == 0 &&
        getsockname(fd, &got.any, &got.bytes) == 0) {
        horon_address_set_port(address, horon_address_port(&got));
        return fd;
    }
    const int why = errno;
    close(fd);
    errno = why;
    return -1;
}
