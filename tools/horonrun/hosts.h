/* SPDX-License-Identifier: Apache-2.0 */
/* Which hosts run how many ranks: -H, host files, and the dealing out of ranks. */
#ifndef HORONRUN_HOSTS_H
#define HORONRUN_HOSTS_H

#include "status.h"

#include <stdbool.h>
#include <stddef.h>

#define HORONRUN_SLOTS_MAX 65536
#define HORONRUN_RANKS_MAX (1 << 20)

struct horonrun_host {
    char *name; /* as ssh is to be called: "node1", "user@node1", "fe80::1" */
    int slots;
    int first_rank, ranks; /* set by horonrun_hosts_deal() */
    bool local;            /* this machine: no ssh; set by horonrun_hosts_find_local() */
};

/** Embedded; all zero is empty. */
struct horonrun_hosts {
    struct horonrun_host *at; /* [count] */
    size_t count;
};

/**
 * Parses "host[:slots],..."; an IPv6 address with slots stands in brackets.
 * @return OK | ERR_CONFIG, naming the piece that is wrong, or the host that stands there twice |
 *         ERR_MEMORY
 */
horon_status_t horonrun_hosts_parse(struct horonrun_hosts *hosts, const char *text,
                                    struct horon_error *error);

/**
 * Parses the text of a host file, a line a host: "host", "host:slots", or "host slots=N" with
 * max_slots, max-slots ignored; # begins a comment.
 * @param file for messages: "FILE:LINE: what"
 */
horon_status_t horonrun_hosts_parse_file_text(struct horonrun_hosts *hosts, const char *file,
                                              const char *text, struct horon_error *error);

/** Reads and parses @p file. Also ERR_CONFIG if it cannot be read or is larger than 16 MiB. */
horon_status_t horonrun_hosts_read_file(struct horonrun_hosts *hosts, const char *file,
                                        struct horon_error *error);

/** This machine with @p slots slots. */
horon_status_t horonrun_hosts_only_local(struct horonrun_hosts *hosts, int slots,
                                         struct horon_error *error);

/**
 * Deals @p np ranks (0: as many as there are slots) to the hosts in order and forgets hosts that
 * get none. @return OK | ERR_CONFIG, more ranks than slots, or no host
 */
horon_status_t horonrun_hosts_deal(struct horonrun_hosts *hosts, int np, struct horon_error *error);

/**
 * Marks hosts that are this machine: localhost, its names, its addresses, or a name that resolves
 * to one. Blocks: name resolution, for names that are not plainly local.
 */
void horonrun_hosts_find_local(struct horonrun_hosts *hosts);

void horonrun_hosts_deinit(struct horonrun_hosts *hosts);

#endif
