/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of horonrun. */
#ifndef HORONRUN_OPTIONS_H
#define HORONRUN_OPTIONS_H

#include "status.h"

#include <stdbool.h>
#include <stdio.h>

enum horonrun_color { HORONRUN_COLOR_AUTO, HORONRUN_COLOR_ALWAYS, HORONRUN_COLOR_NEVER };

/** What the user asked for. The texts are views of argv or heap strings in the lists. */
struct horonrun_options {
    int np; /* 0: not said */
    const char *hosts, *host_file;
    const char *ssh, *ssh_port, *ssh_identity, *remote_horonrun;
    const char *output_directory;
    long grace_ms;
    int gloo_timeout_s; /* 0: not said */
    enum horonrun_color color;
    bool verbose, timestamps, no_prefix, keep_survivors, gloo, mpi;
    const char *mpirun, *mpi_args;
    bool check_build, version, help;
    char **settings; /* NULL-ended "NAME=value": rows of the option table, for the ranks */
    char **exports;  /* NULL-ended: "VAR" or "VAR=value" of -x */
    char **ignored;  /* NULL-ended: options of horovodrun that mean nothing here */
    char **command;  /* NULL-ended rest of argv; [0] may be NULL */
};

/**
 * Reads options up to the first word that is none, or up to "--"; the rest is the command.
 * @return OK | ERR_CONFIG, unknown, with the nearest; a value is missing or wrong | ERR_MEMORY. End
 *         @p options with horonrun_options_deinit() in any case.
 */
horon_status_t horonrun_options_parse(struct horonrun_options *options, char **argv,
                                      struct horon_error *error);

/**
 * Of an option that has words as a shell's, such as mpi_args: one at @p *text, which is moved on,
 * quotes taken off.
 * @param word      with room for all of the text; NULL: it is not wanted
 * @param open_out  a quote does not end: options were not parsed well
 * @return false: there is no other
 */
bool horonrun_options_take_word(const char **text, char *word, bool *open_out);

/** Prints --help. */
void horonrun_options_help(FILE *to);

void horonrun_options_deinit(struct horonrun_options *options);

#endif
