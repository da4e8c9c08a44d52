/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every option is one row of one table: environment variable HORON_<NAME>, flag --<name>, default,
 * bounds, help, HOROVOD_* alias. Parsing is strict: a value that is not understood is an error with
 * its name. config_parse.c is the only file that reads the environment for options.
 */
#ifndef HORON_BASE_CONFIG_H
#define HORON_BASE_CONFIG_H

#include "status.h"

#include <stdbool.h>
#include <stdint.h>

/** Room for the longest text of a row: all addresses of a machine with many. */
#define HORON_CONFIG_TEXT_BYTES 1024

/** By what an average is divided once ranks have joined. */
enum { HORON_JOIN_AVERAGE_ALL, HORON_JOIN_AVERAGE_GIVEN };

/** The values of one context. Filled by horon_config_load(); then read only. */
/** Of GLOO_ERA, in the order of its choices. */
enum horon_gloo_era_choice { HORON_GLOO_AUTO, HORON_GLOO_E1, HORON_GLOO_E3 };

struct horon_config {
    int64_t log_level; /* horon_log_level_t */
    char store[HORON_CONFIG_TEXT_BYTES];
    char ranks[HORON_CONFIG_TEXT_BYTES];
    char gloo_store[HORON_CONFIG_TEXT_BYTES];
    char gloo_prefix[HORON_CONFIG_TEXT_BYTES];
    int64_t gloo_era; /* enum horon_gloo_era_choice */
    int64_t gloo_native;
    char job_key[HORON_CONFIG_TEXT_BYTES];
    char job_key_file[HORON_CONFIG_TEXT_BYTES];
    char failure_file[HORON_CONFIG_TEXT_BYTES];
    char interfaces[HORON_CONFIG_TEXT_BYTES];
    char port_range[HORON_CONFIG_TEXT_BYTES];
    int64_t start_timeout_ms;
    int64_t peer_timeout_ms;
    int64_t fusion_bytes;
    int64_t cache_entries;
    int64_t inflight_max;
    int64_t shm_chunk_bytes;
    int64_t shm_lend_bytes;
    int64_t shm_small_bytes;
    int64_t shm_enabled;
    int64_t net_eager_bytes;
    int64_t net_chunk_bytes;
    char net_algorithm[HORON_CONFIG_TEXT_BYTES];
    int64_t deterministic;
    char backend[HORON_CONFIG_TEXT_BYTES];
    char mpi_library[HORON_CONFIG_TEXT_BYTES];
    int64_t mpi_serialized;
    int64_t spin_us;
    int64_t yield_us;
    int64_t stall_warn_ms, stall_shutdown_ms;
    char timeline[HORON_CONFIG_TEXT_BYTES];
    int64_t timeline_cycles;
    int64_t objects; /* choice */
    char process_sets[HORON_CONFIG_TEXT_BYTES];
    int64_t dynamic_process_sets;
    int64_t join_average; /* choice: HORON_JOIN_AVERAGE_* */
    int64_t join_verbs;   /* choice */
};

enum horon_config_type {
    HORON_CONFIG_INT,   /* decimal */
    HORON_CONFIG_BYTES, /* 123, 64k, 8m, 1g (powers of 1024) */
    HORON_CONFIG_TIME,  /* 500ms, 2s, 3min, 1h; a bare number is seconds */
    HORON_CONFIG_BOOL,  /* 0 1 no yes false true off on */
    HORON_CONFIG_WORD,  /* one of choices */
    HORON_CONFIG_TEXT
};

/** A word of an alias, in any case, and ours for it. */
struct horon_config_word {
    const char *theirs; /* NULL: the end */
    const char *ours;   /* NULL: nothing here does that; as if the alias were not set */
};

/** One row. A WORD with a numeric field stores the index of the choice. */
struct horon_config_row {
    const char *name;       /* "FUSION_BYTES": HORON_FUSION_BYTES, --fusion-bytes */
    const char *alias;      /* "HOROVOD_FUSION_THRESHOLD" or NULL */
    const char *alias_too;  /* another one, read where the first says nothing; or NULL */
    const char *alias_off;  /* a switch that comes before them: on, it means 0; or NULL */
    const char *alias_unit; /* unit of the alias's number, if it is not ours; or NULL */
    const struct horon_config_word *alias_words; /* all that an alias may say; NULL: as we do */
    enum horon_config_type type;
    size_t offset;          /* into struct horon_config */
    const char *dflt;       /* parsed like user text */
    int64_t min, max;       /* numbers only */
    const char *choices;    /* WORD: "error warn info"; else NULL */
    bool names;             /* TEXT: a list, in any case; empty is as if it were not set */
    const char *lacking;    /* WORD: one that users may look for among the choices, or NULL; ... */
    const char *lacking_is; /* ... and what it is: the error says so, and that it is not there */
    const char *doc;        /* one or two sentences */
    bool secret;            /* its value is never printed */
    bool from_launcher;     /* horonrun sets it for its ranks: it has no flag */
    bool agreed;            /* all ranks must have the same value; part of the settings hash */
};

/** Where a value came from. */
enum horon_config_origin {
    HORON_CONFIG_FROM_DEFAULT,
    HORON_CONFIG_FROM_ENVIRONMENT,
    HORON_CONFIG_FROM_ALIAS,
    HORON_CONFIG_FROM_ALIAS_TOO,
    HORON_CONFIG_FROM_ALIAS_OFF,
    HORON_CONFIG_FROM_CALLER
};

/** @return the table; *count_out rows. Static. */
const struct horon_config_row *horon_config_rows(size_t *count_out);
/** @return the row of that name, without HORON_; NULL: there is none */
const struct horon_config_row *horon_config_find(const char *name, size_t name_bytes);

/**
 * Fills @p config from defaults, then HOROVOD_* aliases, then HORON_*, then @p settings (NULL, or a
 * NULL-ended list of "NAME=value").
 * @param origins NULL or [rows] where each value came from
 * @return OK | ERR_CONFIG, a value or name is wrong; named with what is allowed, and the nearest
 * name
 */
horon_status_t horon_config_load(struct horon_config *config, const char *const *settings,
                                 enum horon_config_origin *origins, struct horon_error *error);

/** Fills in one row of these, from default, alias or environment. @return likewise; @p origin is
 * set in any case */
horon_status_t horon_config_load_row(struct horon_config *config,
                                     const struct horon_config_row *row,
                                     enum horon_config_origin *origin, struct horon_error *error);

/** Fills in one row from @p text, which the user gave to @p variable. @return likewise */
horon_status_t horon_config_parse(struct horon_config *config, const struct horon_config_row *row,
                                  const char *variable, const char *text,
                                  struct horon_error *error);

/** @return what @p text means as an alias of a row with words; NULL: none of them */
const struct horon_config_word *horon_config_alias_word(const struct horon_config_row *row,
                                                        const char *text);

/** Prints the value of a row as a user would write it. Secrets print as "(set)" or "". */
void horon_config_format(const struct horon_config *config, const struct horon_config_row *row,
                         char *text, size_t text_bytes);

/** Prints the bounds of a row that is a number, with units: "500ms..24h", "0..4g". */
void horon_config_bounds(const struct horon_config_row *row, char *text, size_t text_bytes);

/** @return a hash of the values all ranks must agree on; the handshake compares it. */
uint64_t horon_config_agreed_hash(const struct horon_config *config);

/**
 * Looks for environment variables HORON_* that mean nothing to any part of horon.
 * @return how many; the first, with the nearest name, as text in @p error (status ERR_CONFIG)
 */
int horon_config_unknown(struct horon_error *error);
/** Warns of them, in one line. */
struct horon_log;
void horon_config_warn_unknown(const struct horon_log *log);

/**
 * Looks for rows of a job among Gloo's ranks that are not at their defaults, where there is no such
 * job: GLOO_STORE is empty.
 * @param text their variables, comma separated; "" if there is none
 * @return how many
 */
int horon_config_without_gloo(const struct horon_config *config, char *text, size_t text_bytes);
/** Warns of them, in one line. */
void horon_config_warn_without_gloo(const struct horon_config *config, const struct horon_log *log);

/** What HOROVOD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE, _CROSS_RANK and _CROSS_SIZE tell. */
enum { HORON_CONFIG_PLACES = 6 };

/**
 * Looks for environment variables HOROVOD_* that are set and mean nothing to horon, ask for what
 * nothing here does, or tell another place than the job has given this rank.
 * @param found [HORON_CONFIG_PLACES] that place, -1: this is not known; NULL: they are not
 * compared, as where horonrun has set them
 * @param text their names, comma separated, as many as fit; "" if there is none
 * @return how many
 */
int horon_config_unheeded(const int *found, char *text, size_t text_bytes);
/** Warns of them, in one line. */
void horon_config_warn_unheeded(const struct horon_log *log, const int *found);

#endif
