/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank 0 puts "1,KEY,ADDRESSES" under one name; every rank puts a mark of its own, then waits,
 * once, and gets what rank 0 has put. A rank that finds its own mark has been here:
 * its process joins again, or a program that it started does, and what rank 0 put then still holds.
 * It serves there again, or at one of the next ports. If rank 0 had not come by the end of that
 * wait, it is waited for again where nobody else is needed for that.
 *
 * A communicator of MPI is such a space, too: without marks, as each meeting in it is a new one.
 *
 * The launcher's processes talk to each other as safely as they do for MPI: what can read that can
 * read the key. A key that the user gave does not travel. Where the space is public, as Horovod's
 * is, anybody that reaches the server could read a key, or leave an invitation of their own. So
 * ranks of one host take no key from there, and meet at the loopback by that of their user; those
 * of several hosts have nothing better, unless the user gives one, and are as safe as Horovod's
 * own.
 */
#include "boot/identity/meeting.h"

#include "address.h"
#include "boot/connect/handshake.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NAME "horon"
#define VERSION "1"
#define NO_KEY "-"   /* rank 0 was given one */
#define USER_KEY "." /* all ranks are of one host and one user, whose key they have */
#define KEY_BYTES 32
#define PORT_TRIES 64 /* of ports that the system gives */

static bool is_on_one_host(const struct horon_identity *id)
{
    return id->local_size == id->size;
}

/* @return what stands in the place of a key; NULL: a fresh one */
static const char *stand_in(const struct horon_identity *id, const struct horon_space *space,
                            bool has_key)
{
    if (has_key)
        return NO_KEY;
    return space->calls->is_public && is_on_one_host(id) ? USER_KEY : NULL;
}

/* @param port 0: any; set to the one that is free @return false, with errno */
static bool is_free(int *port)
{
    struct horon_addresses everywhere;
    horon_addresses_everywhere(&everywhere);
    horon_address_set_port(&everywhere.items[0], *port);
    const int fd = horon_address_listen(&everywhere.items[0]);
    if (fd < 0)
        return false;
    close(fd);
    *port = horon_address_port(&everywhere.items[0]);
    return true;
}

static bool are_next_free(int port)
{
    for (int i = 1; i <= HORON_PORT_SCAN && port + i <= UINT16_MAX; i++) {
        int next = port + i;
        if (!is_free(&next))
            return false;
    }
    return true;
}

/* One of the row PORT_RANGE that is free now. The next ones may be tried, too, and ranks of other
 * hosts do not see whether it is rank 0 that listens there (connect/listen.h): so one before free
 * ones, if there is any, lest they connect to a stranger. */
static horon_status_t find_port(const char *range, bool all_here, int *port_out,
                                struct horon_error *error)
{
    int first, last, found = 0;
    horon_status_t status = horon_port_range_parse(range, &first, &last, error);
    if (status != HORON_OK)
        return status;
    const int tries = first ? last - first + 1 : PORT_TRIES;
    for (int i = 0; i < tries; i++) {
        int port = first ? first + i : 0;
        if (!is_free(&port))
            continue;
        found = found ? found : port;
        if (!all_here && !are_next_free(port))
            continue;
        found = port;
        break;
    }
    *port_out = found;
    if (found)
        return HORON_OK;
    return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno,
                                 "no port of %d-%d is free for the ranks to meet at", first, last);
}

/* Those of this machine; the loopback only if all ranks are here, or there is nothing else. */
static horon_status_t write_addresses(const struct horon_identity *id,
                                      const struct horon_config *config, char *text,
                                      size_t text_bytes, struct horon_error *error)
{
    struct horon_addresses here;
    const bool all_here = is_on_one_host(id);
    int port = 0;
    horon_status_t status =
        horon_addresses_of_machine(all_here ? "" : config->interfaces, all_here, &here, error);
    if (status == HORON_OK)
        status = find_port(config->port_range, all_here, &port, error);
    if (status != HORON_OK)
        return status;
    const int loopbacks = horon_addresses_count(&here, horon_address_is_loopback);
    here.count -= loopbacks < here.count ? loopbacks : 0; /* they are last */
    for (int i = 0; i < here.count; i++)
        horon_address_set_port(&here.items[i], port);
    horon_addresses_write(&here, text, text_bytes);
    return HORON_OK;
}

static horon_status_t write_key(char text[2 * KEY_BYTES + 1], struct horon_error *error)
{
    uint8_t bytes[KEY_BYTES];
    const horon_status_t status = horon_random(bytes, sizeof bytes, error);
    for (size_t i = 0; status == HORON_OK && i < sizeof bytes; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    explicit_bzero(bytes, sizeof bytes);
    return status;
}

/* Rank 0's part. */
static horon_status_t invite(const struct horon_identity *id, const struct horon_config *config,
                             struct horon_space *space, bool has_key, struct horon_error *error)
{
    char value[HORON_SPACE_VALUE_BYTES], fresh[2 * KEY_BYTES + 1];
    char addresses[HORON_SPACE_VALUE_BYTES - sizeof fresh - sizeof VERSION];
    const char *other = stand_in(id, space, has_key);
    horon_status_t status = other ? HORON_OK : write_key(fresh, error);
    if (status == HORON_OK)
        status = write_addresses(id, config, addresses, sizeof addresses, error);
    if (status == HORON_OK) {
        snprintf(value, sizeof value, VERSION ",%s,%s", other ? other : fresh, addresses);
        status = space->calls->put(space, NAME, value, error);
    }
    explicit_bzero(value, sizeof value);
    explicit_bzero(fresh, sizeof fresh);
    return status;
}

/* @param value  set to what rank 0 has put */
static horon_status_t await_invitation(const struct horon_identity *id,
                                       const struct horon_config *config, struct horon_space *space,
                                       char value[HORON_SPACE_VALUE_BYTES],
                                       struct horon_error *error)
{
    const horon_status_t status = space->calls->await(space, 0, NAME, value, error);
    if (status != HORON_ERR_TIMEOUT || space->calls->is_public)
        return status;
    return horon_error_set(error, status,
                           "rank %d has waited %lld ms: not all of the %d processes %s", id->rank,
                           (long long)config->start_timeout_ms, id->size, space->calls->missing);
}

/* Once in the life of the launch. @param value  as above */
static horon_status_t meet(const struct horon_identity *id, const struct horon_config *config,
                           struct horon_space *space, const char *mark, bool has_key,
                           char value[HORON_SPACE_VALUE_BYTES], struct horon_error *error)
{
    horon_status_t status = HORON_OK;
    if (id->rank == 0)
        status = invite(id, config, space, has_key, error);
    if (status == HORON_OK && !space->calls->begins_at_open)
        status = space->calls->end_at_exit(space, error);
    if (status == HORON_OK)
        status = space->calls->put(space, mark, VERSION, error);
    if (status == HORON_OK)
        status = await_invitation(id, config, space, value, error);
    return status;
}

static horon_status_t no_invitation(struct horon_error *error)
{
    return horon_error_set(
        error, HORON_ERR_PROTO,
        "what rank 0 has left with the launcher makes no sense: is it of another "
        "version of horon?");
}

/* @param value what rank 0 has put; it is cut into pieces */
static horon_status_t accept_invitation(struct horon_identity *id, const struct horon_space *space,
                                        char *value, char key[HORON_KEY_TEXT_BYTES],
                                        struct horon_error *error)
{
    char *fresh = value + strlen(VERSION ",");
    char *addresses = strchr(fresh, ',');
    struct horon_addresses places;
    const bool has_key = key[0] != 0;
    const char *other = stand_in(id, space, has_key);
    if (strncmp(value, VERSION ",", strlen(VERSION ",")) != 0 || !addresses ||
        !horon_addresses_read(addresses + 1, &places) || places.count == 0 ||
        strlen(addresses) >= sizeof id->store - strlen("tcp://"))
        return no_invitation(error);
    *addresses++ = 0;
    const bool is_given = strcmp(fresh, NO_KEY) == 0;
    if (is_given != has_key)
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "%s has a job key, and %s has none: set HORON_JOB_KEY or "
                               "HORON_JOB_KEY_FILE on all ranks, or on none",
                               is_given ? "rank 0" : "this rank",
                               is_given ? "this rank" : "rank 0");
    if (other ? strcmp(fresh, other) != 0 : strlen(fresh) != 2 * KEY_BYTES)
        return no_invitation(error);
    if (!other)
        snprintf(key, HORON_KEY_TEXT_BYTES, "%s", fresh);
    snprintf(id->store, sizeof id->store, "tcp://%s", addresses);
    id->port_scan = HORON_PORT_SCAN;
    id->host_origin = NULL;
    id->told = true;
    return HORON_OK;
}

horon_status_t horon_meeting_hold(struct horon_identity *id, const struct horon_config *config,
                                  struct horon_space *space, char key[HORON_KEY_TEXT_BYTES],
                                  struct horon_error *error)
{
    char mark[32], value[HORON_SPACE_VALUE_BYTES] = "";
    struct horon_error ignored;
    assert(id->size > 1 && id->rank >= 0 && id->rank < id->size);
    assert(!id->told);
    snprintf(mark, sizeof mark, NAME ".%d", id->rank);
    horon_status_t status = space->calls->open(space, error);
    if (status != HORON_OK)
        return status;
    status = space->calls->get(space, id->rank, mark, value, error);
    if (status != HORON_OK && space->calls->begins_at_open) /* even if nothing comes of it */
        (void)space->calls->end_at_exit(space, &ignored);
    if (status == HORON_OK) {
        status = space->calls->get(space, 0, NAME, value, error);
        if (status == HORON_AGAIN && space->calls->waits_for_one)
            status = await_invitation(id, config, space, value, error);
        space->calls->close(space);
    } else if (status == HORON_AGAIN)
        status = meet(id, config, space, mark, key[0] != 0, value, error);
    if (status == HORON_AGAIN)
        status = horon_error_set(error, HORON_ERR_SYSTEM,
                                 "rank 0 has left nothing with the launcher: did it fail, or is it "
                                 "in its own MPI_Init(), which waits for all ranks? Either all "
                                 "begin MPI before they join, or none does");
    if (status == HORON_OK)
        status = accept_invitation(id, space, value, key, error);
    id->job = space->job ? space->job : id->job;
    explicit_bzero(value, sizeof value);
    return status;
}
