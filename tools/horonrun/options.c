/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line. One table holds horonrun's own options, one what horovodrun calls rows of the
 * option table, one what horovodrun has and horon has no use for; every row of the option table
 * (config.h) is a flag by itself, but those that horonrun sets (the store, the key: nothing secret
 * on a command line).
 */
#include "options.h"

#include "alloc.h"
#include "boot/identity/identity.h"
#include "config.h"
#include "environment.h"
#include "frame.h"
#include "nearest.h"
#include "numbers.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum kind {
    KIND_FLAG,   /* bool */
    KIND_TEXT,   /* const char * */
    KIND_WORDS,  /* likewise, of words as a shell's */
    KIND_NP,     /* ranks to start */
    KIND_GRACE,  /* long ms from seconds */
    KIND_WAIT,   /* int, whole seconds */
    KIND_COLOR,  /* enum */
    KIND_EXPORT, /* adds to exports */
};

struct own_option {
    const char *names; /* space separated */
    enum kind kind;
    size_t offset;
    const char *value; /* word for the value in the help */
    const char *doc;
};

#define AT(field) offsetof(struct horonrun_options, field)
static const struct own_option own_options[] = {
    {"-np -n --np --num-proc", KIND_NP, 0, "N",
     "Ranks to start; needed unless hosts are given, "
     "then all their slots."},
    {"-H --hosts --host", KIND_TEXT, AT(hosts), "HOST[:SLOTS],...",
     "Hosts and how many ranks each may "
     "run. Without: this machine."},
    {"--hostfile -hostfile -f", KIND_TEXT, AT(host_file), "FILE",
     "The same, a line a host: HOST "
     "slots=N."},
    {"-p --ssh-port", KIND_TEXT, AT(ssh_port), "PORT", "Port of the ssh servers."},
    {"-i --ssh-identity-file", KIND_TEXT, AT(ssh_identity), "FILE", "Key file for ssh."},
    {"--ssh", KIND_TEXT, AT(ssh), "COMMAND",
     "ssh with further options, such as \"ssh -F config\"."},
    {"--remote-horonrun", KIND_TEXT, AT(remote_horonrun), "PATH",
     "horonrun on other hosts; else the "
     "same path as here."},
    {"-x --export", KIND_EXPORT, 0, "VAR[=VALUE]",
     "Pass VAR to all ranks (all but what describes this "
     "login is passed anyway), or set it. Repeatable."},
    {"--output-filename -o", KIND_TEXT, AT(output_directory), "DIR",
     "Also write what ranks print to "
     "DIR/rank.N/stdout and stderr."},
    {"--prefix-output-with-timestamp -prefix-timestamp", KIND_FLAG, AT(timestamps), NULL,
     "Begin each line with the time."},
    {"--no-prefix", KIND_FLAG, AT(no_prefix), NULL, "Do not begin lines with [rank]<stream>:."},
    {"--color", KIND_COLOR, AT(color), "auto|always|never",
     "Colour the rank; auto: on a terminal."},
    {"--grace", KIND_GRACE, AT(grace_ms), "SECONDS",
     "Between SIGTERM and SIGKILL when the job is "
     "ended (3). Ctrl-C: between SIGINT and SIGTERM, too."},
    {"--keep-survivors", KIND_FLAG, AT(keep_survivors), NULL,
     "Let the others go on when a rank fails: those of process sets without it can."},
    {"--gloo", KIND_FLAG, AT(gloo), NULL,
     "Serve Horovod's rendezvous, too, for programs that use Horovod itself."},
    {"--gloo-timeout-seconds", KIND_WAIT, AT(gloo_timeout_s), "SECONDS",
     "How long workers of Horovod look for each other; with --gloo."},
    {"--mpi", KIND_FLAG, AT(mpi), NULL,
     "Start the ranks by mpirun, of Open MPI or of MPICH; horonrun must be on all hosts."},
    {"--mpirun", KIND_TEXT, AT(mpirun), "PROGRAM",
     "With --mpi: this one, not the first mpirun, mpiexec or mpiexec.hydra of PATH."},
    {"--mpi-args", KIND_WORDS, AT(mpi_args), "OPTIONS",
     "With --mpi: further options of mpirun, as in --mpi-args=\"--map-by node\"."},
    {"--verbose", KIND_FLAG, AT(verbose), NULL, "Tell what is being done."},
    {"--check-build -cb", KIND_FLAG, AT(check_build), NULL,
     "Print what this horon can use, and stop."},
    {"--version -v", KIND_FLAG, AT(version), NULL, "Print the version, and stop."},
    {"--help -h", KIND_FLAG, AT(help), NULL, "Print this, and stop."},
};

/* horovodrun's names for rows; %s takes the value. */
enum alias_kind {
    ALIAS_TEXT,
    ALIAS_INTERFACE,
    ALIAS_FLAG,
};
static const struct {
    const char *name, *setting;
    enum alias_kind kind;
} aliases[] = {
    {"--fusion-threshold-mb", "FUSION_BYTES=%sm", ALIAS_TEXT},
    {"--cache-capacity", "CACHE_ENTRIES=%s", ALIAS_TEXT},
    {"--network-interfaces", "INTERFACES=%s", ALIAS_TEXT},
    {"--network-interface", NULL, ALIAS_INTERFACE},
    {"--stall-check-warning-time-seconds", "STALL_WARN=%s", ALIAS_TEXT},
    {"--stall-check-shutdown-time-seconds", "STALL_SHUTDOWN_TIME=%s", ALIAS_TEXT},
    {"--no-stall-check", "STALL_WARN=0", ALIAS_FLAG},
    {"--timeline-filename", "TIMELINE=%s", ALIAS_TEXT},
    {"--timeline-mark-cycles", "TIMELINE_CYCLES=1", ALIAS_FLAG},
    {"--no-timeline-mark-cycles", "TIMELINE_CYCLES=0", ALIAS_FLAG},
};

/* Options of horovodrun that need no counterpart. A name that ends in = takes a value. */
static const char *const ignorable[] = {
    "--cycle-time-ms=",
    "--disable-cache",
    "--hierarchical-allgather",
    "--hierarchical-allreduce",
    "--mpi-threads-disable",
    "--no-hierarchical-allgather",
    "--no-hierarchical-allreduce",
    "--no-mpi-threads-disable",
    "--no-torus-allreduce",
    "--num-nccl-streams=",
    "--stall-check",
    "--tcp",
    "--torus-allreduce",
};

static void row_flag(const struct horon_config_row *row, char *flag, size_t bytes)
{
    size_t used = (size_t)snprintf(flag, bytes, "--%s", row->name);
    for (size_t i = 2; i < used && i < bytes; i++) {
        const char c = flag[i];
        if (c == '_')
            flag[i] = '-';
        else if (c >= 'A' && c <= 'Z')
            flag[i] = (char)(c - 'A' + 'a');
    }
}

/* @return what was added; NULL: no memory */
static const char *list_add(char ***list, const char *format, const char *value)
{
    size_t count = 0;
    while (*list && (*list)[count])
        count++;
    char **grown = horon_realloc(*list, (count + 2) * sizeof *grown);
    if (!grown)
        return NULL;
    *list = grown;
    size_t bytes = strlen(format) + strlen(value) + 1;
    grown[count + 1] = NULL;
    grown[count] = horon_alloc(bytes);
    const char *mark = strstr(format, "%s");
    if (!grown[count])
        return NULL;
    int head = mark ? (int)(mark - format) : (int)strlen(format);
    snprintf(grown[count], bytes, "%.*s%s%s", head, format, mark ? value : "",
             mark ? mark + 2 : "");
    return grown[count];
}

/* ---- The nearest option, for "did you mean" ---- */

static void find_nearest(struct horon_nearest *nearest)
{
    size_t row_count;
    const struct horon_config_row *rows = horon_config_rows(&row_count);
    for (size_t i = 0; i < sizeof own_options / sizeof own_options[0]; i++)
        for (const char *name = own_options[i].names; *name; name += strspn(name, " ")) {
            size_t bytes = strcspn(name, " ");
            horon_nearest_consider(nearest, name, bytes);
            name += bytes;
        }
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++)
        horon_nearest_consider(nearest, aliases[i].name, strlen(aliases[i].name));
    for (size_t i = 0; i < row_count; i++) {
        char flag[64];
        row_flag(&rows[i], flag, sizeof flag);
        if (!rows[i].from_launcher)
            horon_nearest_consider(nearest, flag, strlen(flag));
    }
}

/* ---- One option ---- */

/* The word being looked at. */
struct word {
    char name[64];        /* without =value */
    const char *attached; /* after the =, or NULL */
    char **next;          /* what follows; moved on when a value is taken */
    struct horon_error *error;
};

static const char *take_value(struct word *word)
{
    if (word->attached)
        return word->attached;
    if (*word->next)
        return *word->next++;
    horon_error_set(word->error, HORON_ERR_CONFIG, "%s needs a value", word->name);
    return NULL;
}

static horon_status_t no_memory(struct word *word)
{
    return horon_error_set(word->error, HORON_ERR_MEMORY, "out of memory");
}

static horon_status_t wrong_value(struct word *word, const char *value, const char *wanted)
{
    return horon_error_set(word->error, HORON_ERR_CONFIG, "%s %s: want %s", word->name, value,
                           wanted);
}

static horon_status_t set_grace(long *grace_ms, struct word *word, const char *value)
{
    char *end;
    double seconds = strtod(value, &end);
    if (end == value || *end || !(seconds >= 0 && seconds <= 86400))
        return wrong_value(word, value, "seconds, 0..86400");
    *grace_ms = (long)(seconds * 1000);
    return HORON_OK;
}

static horon_status_t set_color(enum horonrun_color *color, struct word *word, const char *value)
{
    static const char *const words[] = {"auto", "always", "never"};
    for (int i = 0; i < 3; i++)
        if (strcmp(value, words[i]) == 0) {
            *color = (enum horonrun_color)i;
            return HORON_OK;
        }
    return wrong_value(word, value, "auto, always or never");
}

/* The value is not shown: it may be a secret. */
static horon_status_t add_export(struct horonrun_options *options, struct word *word,
                                 const char *value)
{
    const size_t bytes = strcspn(value, "=");
    if (value[bytes] && horonrun_environment_is_reserved(value))
        return horon_error_set(
            word->error, HORON_ERR_CONFIG, "%s %.*s=...: horonrun sets it for the ranks itself%s",
            word->name, (int)bytes, value,
            strncmp(value, "HORON_JOB_KEY", strlen("HORON_JOB_KEY")) == 0
                ? "; a key of your own is the job's if it is in horonrun's own environment"
                : "");
    return list_add(&options->exports, "%s", value) ? HORON_OK : no_memory(word);
}

bool horonrun_options_take_word(const char **text, char *word, bool *open_out)
{
    size_t used = 0;
    char quote = 0;
    const char *at = *text + strspn(*text, " \t\n");
    if (!*at)
        return false;
    for (; *at && (quote || !strchr(" \t\n", *at)); at++) {
        if (*at == quote)
            quote = 0;
        else if (!quote && (*at == '\'' || *at == '"'))
            quote = *at;
        else if (word)
            word[used++] = *at;
    }
    if (word)
        word[used] = 0;
    *open_out = quote != 0;
    *text = at;
    return true;
}

static horon_status_t check_quotes(struct word *word, const char *value)
{
    const char *rest = value;
    bool is_open = false;
    while (horonrun_options_take_word(&rest, NULL, &is_open) && !is_open)
        ;
    return is_open ? horon_error_set(word->error, HORON_ERR_CONFIG,
                                     "%s: a quote in it does not end: %.200s", word->name, value)
                   : HORON_OK;
}

static horon_status_t set_own(struct horonrun_options *options, const struct own_option *option,
                              struct word *word)
{
    void *field = (char *)options + option->offset;
    if (option->kind == KIND_FLAG && word->attached)
        return horon_error_set(word->error, HORON_ERR_CONFIG, "%s takes no value", word->name);
    if (option->kind == KIND_FLAG) {
        *(bool *)field = true;
        return HORON_OK;
    }
    const char *value = take_value(word);
    int number;
    if (!value)
        return HORON_ERR_CONFIG;
    switch (option->kind) {
    case KIND_FLAG:
        break;
    case KIND_TEXT:
        *(const char **)field = value;
        break;
    case KIND_WORDS:
        *(const char **)field = value;
        return check_quotes(word, value);
    case KIND_NP:
        if (!horon_number_parse(value, 1, HORON_BOOT_SIZE_MAX, &number)) {
            char wanted[64];
            snprintf(wanted, sizeof wanted, "a number of ranks, 1..%d", HORON_BOOT_SIZE_MAX);
            return wrong_value(word, value, wanted);
        }
        if (options->np && options->np != number)
            return horon_error_set(word->error, HORON_ERR_CONFIG,
                                   "%s %d: the ranks to start were given before, as %d", word->name,
                                   number, options->np);
        options->np = number;
        break;
    case KIND_GRACE:
        return set_grace(field, word, value);
    case KIND_WAIT:
        return horon_number_parse(value, 1, 86400, field)
                   ? HORON_OK
                   : wrong_value(word, value, "whole seconds, 1..86400");
    case KIND_COLOR:
        return set_color(field, word, value);
    case KIND_EXPORT:
        if (!*value || *value == '=')
            return wrong_value(word, value, "VAR or VAR=VALUE");
        return add_export(options, word, value);
    }
    return HORON_OK;
}

static const struct own_option *find_own(const char *wanted)
{
    size_t wanted_bytes = strlen(wanted);
    for (size_t i = 0; i < sizeof own_options / sizeof own_options[0]; i++)
        for (const char *name = own_options[i].names; *name; name += strspn(name, " ")) {
            size_t bytes = strcspn(name, " ");
            if (bytes == wanted_bytes && strncmp(name, wanted, bytes) == 0)
                return &own_options[i];
            name += bytes;
        }
    return NULL;
}

/* Adds a setting, of whose value a mistake is told with the name of the flag. */
static horon_status_t add_setting(struct horonrun_options *options, const char *format,
                                  const char *value, struct word *word)
{
    struct horon_config config;
    const char *unit = strstr(format, "%s");
    const size_t name_bytes = strcspn(format, "=");
    if (unit && unit[2] && (!*value || value[strspn(value, "0123456789")]))
        return wrong_value(word, value, "a whole number");
    const char *setting = list_add(&options->settings, format, value);
    if (!setting)
        return no_memory(word);
    const struct horon_config_row *row = horon_config_find(format, name_bytes);
    return row ? horon_config_parse(&config, row, word->name, setting + name_bytes + 1, word->error)
               : HORON_OK;
}

/* Adds one more interface to those given so far; the flag may be repeated. */
static horon_status_t add_interface(struct horonrun_options *options, const char *value,
                                    struct word *word)
{
    const char *before = "";
    for (char **setting = options->settings; setting && *setting; setting++)
        if (strncmp(*setting, "INTERFACES=", 11) == 0)
            before = *setting + 11;
    const size_t bytes = strlen(before) + strlen(value) + 2;
    char *all = horon_alloc(bytes);
    if (!all)
        return no_memory(word);
    snprintf(all, bytes, "%s%s%s", before, before[0] ? "," : "", value);
    const horon_status_t status = add_setting(options, "INTERFACES=%s", all, word);
    horon_free(all);
    return status;
}

/* @return OK | AGAIN, it is not one of these | a failure */
static horon_status_t set_alias(struct horonrun_options *options, struct word *word)
{
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++) {
        if (strcmp(aliases[i].name, word->name) != 0)
            continue;
        const char *value = aliases[i].kind == ALIAS_FLAG ? "" : take_value(word);
        if (!value)
            return HORON_ERR_CONFIG;
        return aliases[i].kind == ALIAS_INTERFACE
                   ? add_interface(options, value, word)
                   : add_setting(options, aliases[i].setting, value, word);
    }
    return HORON_AGAIN;
}

static horon_status_t set_row(struct horonrun_options *options, struct word *word)
{
    size_t count;
    const struct horon_config_row *rows = horon_config_rows(&count);
    for (size_t i = 0; i < count; i++) {
        char flag[64], format[80];
        row_flag(&rows[i], flag, sizeof flag);
        if (strcmp(flag, word->name) != 0)
            continue;
        if (rows[i].from_launcher)
            return horon_error_set(word->error, HORON_ERR_CONFIG,
                                   "%s is no option: horonrun sets HORON_%s itself", flag,
                                   rows[i].name);
        const char *value = take_value(word);
        if (!value)
            return HORON_ERR_CONFIG;
        snprintf(format, sizeof format, "%s=%%s", rows[i].name);
        return add_setting(options, format, value, word);
    }
    return HORON_AGAIN;
}

static horon_status_t set_ignored(struct horonrun_options *options, struct word *word)
{
    for (size_t i = 0; i < sizeof ignorable / sizeof ignorable[0]; i++) {
        size_t bytes = strcspn(ignorable[i], "=");
        if (strlen(word->name) != bytes || strncmp(ignorable[i], word->name, bytes) != 0)
            continue;
        if (ignorable[i][bytes] && !take_value(word))
            return HORON_ERR_CONFIG;
        return list_add(&options->ignored, "%s", word->name) ? HORON_OK : no_memory(word);
    }
    return HORON_AGAIN;
}

static horon_status_t set_option(struct horonrun_options *options, struct word *word)
{
    const struct own_option *own = find_own(word->name);
    if (own)
        return set_own(options, own, word);
    horon_status_t status = set_alias(options, word);
    if (status == HORON_AGAIN)
        status = set_row(options, word);
    if (status == HORON_AGAIN)
        status = set_ignored(options, word);
    if (status != HORON_AGAIN)
        return status;
    struct horon_nearest nearest = horon_nearest_to(word->name, strlen(word->name));
    find_nearest(&nearest);
    if (!horon_nearest_is_close(&nearest))
        return horon_error_set(word->error, HORON_ERR_CONFIG,
                               "no option is called %s (--help lists all)", word->name);
    return horon_error_set(word->error, HORON_ERR_CONFIG,
                           "no option is called %s; the nearest is %s (--help lists all)",
                           word->name, nearest.name);
}

horon_status_t horonrun_options_parse(struct horonrun_options *options, char **argv,
                                      struct horon_error *error)
{
    *options = (struct horonrun_options){.grace_ms = 3000, .ssh = "ssh"};
    char **next = argv + (argv[0] != NULL);
    while (*next && (*next)[0] == '-' && (*next)[1]) {
        const char *text = *next++;
        if (strcmp(text, "--") == 0)
            break;
        struct word word = {.next = next, .error = error};
        size_t bytes = strcspn(text, "=");
        snprintf(word.name, sizeof word.name, "%.*s", (int)bytes, text);
        word.attached = text[bytes] ? text + bytes + 1 : NULL;
        horon_status_t status = set_option(options, &word);
        if (status != HORON_OK)
            return status;
        next = word.next;
    }
    options->command = next;
    if (options->gloo_timeout_s && !options->gloo && /* horon's ranks have --start-timeout */
        !list_add(&options->ignored, "%s", "--gloo-timeout-seconds"))
        return horon_error_set(error, HORON_ERR_MEMORY, "out of memory");
    return HORON_OK;
}

static void print_wrapped(FILE *to, const char *left, const char *text)
{
    const size_t width = 62;
    fprintf(to, "  %s\n", left);
    while (*text) {
        size_t bytes = strlen(text);
        if (bytes > width)
            for (bytes = width; bytes && text[bytes] != ' '; bytes--)
                ;
        if (!bytes)
            bytes = strcspn(text, " ");
        fprintf(to, "        %.*s\n", (int)bytes, text);
        text += bytes;
        text += strspn(text, " ");
    }
}

void horonrun_options_help(FILE *to)
{
    char left[256];
    size_t count;
    const struct horon_config_row *rows = horon_config_rows(&count);
    fprintf(to, "usage: horonrun -np N [options] COMMAND [ARGUMENT...]\n\n"
                "Starts COMMAND as N ranks, here or on the hosts given, and ends all of them when\n"
                "one fails; returns the status of the one that was the cause. Standard input goes\n"
                "to rank 0 if it is a file or a pipe, that of the others is empty.\n\n");
    for (size_t i = 0; i < sizeof own_options / sizeof own_options[0]; i++) {
        const struct own_option *option = &own_options[i];
        snprintf(left, sizeof left, "%s%s%s", option->names, option->value ? " " : "",
                 option->value ? option->value : "");
        print_wrapped(to, left, option->doc);
    }
    fprintf(to, "\nSettings for the ranks (the same as HORON_... in the environment;\n"
                "a bare time is in seconds):\n\n");
    for (size_t i = 0; i < count; i++) {
        char flag[64];
        if (rows[i].from_launcher)
            continue;
        row_flag(&rows[i], flag, sizeof flag);
        snprintf(left, sizeof left, "%s VALUE (%s)", flag, rows[i].dflt[0] ? rows[i].dflt : "\"\"");
        print_wrapped(to, left, rows[i].doc);
    }
    fprintf(to, "\nhorovodrun's names for some of them:\n\n ");
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++)
        fprintf(to, " %s", aliases[i].name);
    fprintf(to, "\n");
}

void horonrun_options_deinit(struct horonrun_options *options)
{
    horonrun_strings_free(options->settings);
    horonrun_strings_free(options->exports);
    horonrun_strings_free(options->ignored);
    options->settings = options->exports = options->ignored = NULL;
}
