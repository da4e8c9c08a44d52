/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line. A row of the table below is a flag: its letter or word, how its value is read,
 * where it is stored and its help line, so that what is understood and what is explained cannot
 * drift apart. The letters are those of nccl-tests. Values are read strictly: a number with
 * something behind it, a size of nothing or an unknown word is refused with the flag's name.
 */
#include "options.h"

#include "names.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum flag_kind { FLAG_SIZE, FLAG_COUNT, FLAG_WORD, FLAG_SWITCH, FLAG_TEXT, FLAG_HELP };

/* Codes of the flags that have no letter, above any character. */
enum {
    CODE_JSON = 256,
    CODE_NAMED,
    CODE_PERSISTENT,
    CODE_TENSORS,
    CODE_GROUP,
    CODE_SETS,
    CODE_PEER,
    CODE_LIBRARY,
    CODE_BACKEND,
    CODE_POLLED,
    CODE_MULTIPLE,
    CODE_PLACE,
    CODE_PIN
};

struct flag {
    const char *word;
    int code; /* the letter, or one of the codes above */
    enum flag_kind kind;
    size_t offset;     /* SIZE, COUNT: of a uint64_t. SWITCH: of a bool. TEXT: of a const char * */
    uint64_t min, max; /* COUNT */
    const char *value; /* what the help calls the value; NULL for a SWITCH */
    const char *doc;
};

#define AT(field) offsetof(struct perf_options, field)

static const struct flag flags[] = {
    {.word = "minbytes",
     .code = 'b',
     .kind = FLAG_SIZE,
     .offset = AT(begin_bytes),
     .value = "SIZE",
     .doc = "first size, K M G are powers of 1024 (8; 1K of a verb with a part for each rank)"},
    {.word = "maxbytes",
     .code = 'e',
     .kind = FLAG_SIZE,
     .offset = AT(end_bytes),
     .value = "SIZE",
     .doc = "last size (the first)"},
    {.word = "stepbytes",
     .code = 'i',
     .kind = FLAG_SIZE,
     .offset = AT(step_bytes),
     .value = "SIZE",
     .doc = "the next size is the last plus this"},
    {.word = "stepfactor",
     .code = 'f',
     .kind = FLAG_COUNT,
     .offset = AT(factor),
     .min = 2,
     .max = 1u << 20,
     .value = "N",
     .doc = "the next size is the last times this (2)"},
    {.word = "iters",
     .code = 'n',
     .kind = FLAG_COUNT,
     .offset = AT(iterations),
     .min = 1,
     .max = PERF_ITERATIONS_MAX,
     .value = "N",
     .doc = "timed calls a size (20)"},
    {.word = "warmup_iters",
     .code = 'w',
     .kind = FLAG_COUNT,
     .offset = AT(warmup),
     .min = 0,
     .max = PERF_ITERATIONS_MAX,
     .value = "N",
     .doc = "calls before them (5)"},
    {.word = "check",
     .code = 'c',
     .kind = FLAG_COUNT,
     .offset = AT(checks),
     .min = 0,
     .max = PERF_ITERATIONS_MAX,
     .value = "N",
     .doc = "calls after them whose results are checked (1)"},
    {.word = "datatype",
     .code = 'd',
     .kind = FLAG_WORD,
     .value = "TYPE",
     .doc = "element type (float)"},
    {.word = "op", .code = 'o', .kind = FLAG_WORD, .value = "OP", .doc = "reduction (sum)"},
    {.word = "root",
     .code = 'r',
     .kind = FLAG_WORD,
     .value = "RANK",
     .doc = "root of a broadcast, gather, scatter or reduce (0)"},
    {.word = "json",
     .code = CODE_JSON,
     .kind = FLAG_TEXT,
     .offset = AT(json_path),
     .value = "FILE",
     .doc = "also write the results there, one object a line"},
    {.word = "named",
     .code = CODE_NAMED,
     .kind = FLAG_SWITCH,
     .offset = AT(named),
     .doc = "match by name, through submit and wait (default: in order)"},
    {.word = "persistent",
     .code = CODE_PERSISTENT,
     .kind = FLAG_SWITCH,
     .offset = AT(persistent),
     .doc = "prepare the operations once, start them each time"},
    {.word = "tensors",
     .code = CODE_TENSORS,
     .kind = FLAG_COUNT,
     .offset = AT(tensors),
     .min = 1,
     .max = PERF_TENSORS_MAX,
     .value = "N",
     .doc = "operations a call, each of the size (1)"},
    {.word = "group",
     .code = CODE_GROUP,
     .kind = FLAG_SWITCH,
     .offset = AT(group),
     .doc = "submit those of a call, and of a process set, as one group"},
    {.word = "sets",
     .code = CODE_SETS,
     .kind = FLAG_COUNT,
     .offset = AT(sets),
     .min = 1,
     .max = PERF_SETS_MAX,
     .value = "K",
     .doc = "the same on each of K process sets at once, of all ranks but two; times are a set's"},
    {.word = "place",
     .code = CODE_PLACE,
     .kind = FLAG_WORD,
     .value = "WHERE",
     .doc = "in, out or both (both)"},
    {.word = "pin",
     .code = CODE_PIN,
     .kind = FLAG_SWITCH,
     .offset = AT(pin),
     .doc = "bind each rank to a core, counted round"},
    {.word = "peer",
     .code = CODE_PEER,
     .kind = FLAG_WORD,
     .value = "LIBRARY",
     .doc = "horon, or mpi: the MPI library found at run time, under mpirun (horon)"},
    {.word = "mpi-library",
     .code = CODE_LIBRARY,
     .kind = FLAG_TEXT,
     .offset = AT(mpi_library),
     .value = "FILE",
     .doc = "which MPI library (libmpi.so.40, libmpich.so.12, libmpi.so.12)"},
    {.word = "polled",
     .code = CODE_POLLED,
     .kind = FLAG_SWITCH,
     .offset = AT(polled),
     .doc = "with --peer mpi: one operation is a nonblocking call, and MPI_Test until it ends"},
    {.word = "mpi-multiple",
     .code = CODE_MULTIPLE,
     .kind = FLAG_SWITCH,
     .offset = AT(mpi_multiple),
     .doc = "with --peer mpi: begun with MPI_THREAD_MULTIPLE, as horon begins it"},
    {.word = "backend",
     .code = CODE_BACKEND,
     .kind = FLAG_TEXT,
     .offset = AT(backend),
     .value = "LIST",
     .doc =
         "what carries horon's operations: native, mpi, comma separated (as HORON_BACKEND says); "
         "Gloo's wire is measured by HORON_GLOO_STORE"},
    {.word = "help", .code = 'h', .kind = FLAG_HELP, .doc = "print this"},
};
#define FLAGS (sizeof flags / sizeof flags[0])

void perf_options_help(FILE *to)
{
    fprintf(to,
            "usage: horonrun -np N horon-perf VERB [flags]\n"
            "       mpirun -np N horon-perf VERB --peer mpi [flags]\n"
            "Measures one verb at a row of sizes.\n"
            "verbs: %s\ntypes: %s\nops:   %s\nflags:\n",
            perf_verb_words(), perf_dtype_words(), perf_redop_words());
    for (size_t i = 0; i < FLAGS; i++) {
        char head[48];
        const int letter = flags[i].code < 256 ? flags[i].code : ' ';
        snprintf(head, sizeof head, "%c%c%c --%s%s%s", letter == ' ' ? ' ' : '-', letter,
                 letter == ' ' ? ' ' : ',', flags[i].word, flags[i].value ? " " : "",
                 flags[i].value ? flags[i].value : "");
        fprintf(to, "  %-28s %s\n", head, flags[i].doc);
    }
}

int perf_size_parse(const char *text, uint64_t *bytes_out)
{
    char *end = NULL;
    if (text[0] < '0' || text[0] > '9') {
        return -1;
    }
    errno = 0;
    const unsigned long long number = strtoull(text, &end, 10);
    int shift = 0;
    if (*end != '\0') {
        const char *const units = "KkMmGg";
        const char *const unit = strchr(units, *end);
        if (unit == NULL || (end[1] != '\0' && strcmp(end + 1, "iB") != 0)) {
            return -1;
        }
        shift = 10 * (1 + (int)((unit - units) / 2));
    }
    if (errno != 0 || number > (UINT64_MAX >> shift)) {
        return -1;
    }
    *bytes_out = (uint64_t)number << shift;
    return 0;
}

static int count_parse(const char *text, uint64_t *count_out)
{
    char *end = NULL;
    if (text[0] < '0' || text[0] > '9') {
        return -1;
    }
    errno = 0;
    const unsigned long long number = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0') {
        return -1;
    }
    *count_out = number;
    return 0;
}

static int root_parse(const char *text, int32_t *root_out)
{
    uint64_t number;
    if (count_parse(text, &number) != 0 || number > INT32_MAX) {
        return -1;
    }
    *root_out = (int32_t)number;
    return 0;
}

static int place_parse(const char *text, enum perf_place *place_out)
{
    static const char *const words[] = {"", "out", "in", "both"};
    for (size_t i = PERF_OUT_OF_PLACE; i <= PERF_BOTH_PLACES; i++) {
        if (strcmp(text, words[i]) == 0) {
            *place_out = (enum perf_place)i;
            return 0;
        }
    }
    return -1;
}

static int peer_parse(const char *text, enum perf_peer_kind *peer_out)
{
    if (strcmp(text, "horon") == 0 || strcmp(text, "mpi") == 0) {
        *peer_out = text[0] == 'h' ? PERF_PEER_HORON : PERF_PEER_MPI;
        return 0;
    }
    return -1;
}

static int word_store(struct perf_options *options, int code, const char *text, char *why)
{
    const char *allowed = "";
    int wrong = -1;
    if (code == 'd') {
        allowed = perf_dtype_words();
        wrong = perf_dtype_find(text, &options->dtype);
    } else if (code == 'o') {
        allowed = perf_redop_words();
        wrong = perf_redop_find(text, &options->redop);
    } else if (code == 'r') {
        allowed = "0 1 2 ...";
        wrong = root_parse(text, &options->root);
    } else if (code == CODE_PLACE) {
        allowed = "in out both";
        wrong = place_parse(text, &options->places);
    } else if (code == CODE_PEER) {
        allowed = "horon mpi";
        wrong = peer_parse(text, &options->peer);
    }
    if (wrong != 0) {
        snprintf(why, PERF_TEXT_BYTES, "\"%.64s\" is none of: %s", text, allowed);
    }
    return wrong;
}

static int flag_store(struct perf_options *options, const struct flag *flag, const char *text,
                      char *why)
{
    char *const at = (char *)options + flag->offset;
    uint64_t number = 0;
    switch (flag->kind) {
    case FLAG_SWITCH:
        *(bool *)at = true;
        return 0;
    case FLAG_TEXT:
        *(const char **)(void *)at = text;
        return 0;
    case FLAG_SIZE:
        if (perf_size_parse(text, &number) != 0) {
            snprintf(why, PERF_TEXT_BYTES, "\"%.64s\" is no size, such as 8, 64K, 1M or 2G", text);
            return -1;
        }
        *(uint64_t *)(void *)at = number;
        return 0;
    case FLAG_COUNT:
        if (count_parse(text, &number) != 0 || number < flag->min || number > flag->max) {
            snprintf(why, PERF_TEXT_BYTES, "\"%.64s\" is no number from %" PRIu64 " to %" PRIu64,
                     text, flag->min, flag->max);
            return -1;
        }
        *(uint64_t *)(void *)at = number;
        return 0;
    case FLAG_WORD:
        return word_store(options, flag->code, text, why);
    case FLAG_HELP:
        break;
    }
    return 0;
}

static const struct flag *flag_of(int code)
{
    for (size_t i = 0; i < FLAGS; i++) {
        if (flags[i].code == code) {
            return &flags[i];
        }
    }
    return NULL;
}

/* Makes getopt's two tables out of ours. */
static void getopt_tables(char *letters, struct option *words)
{
    size_t n = 0;
    letters[n++] = ':'; /* a missing value is told apart */
    for (size_t i = 0; i < FLAGS; i++) {
        const int has_value = flags[i].value != NULL;
        words[i] = (struct option){.name = flags[i].word,
                                   .has_arg = has_value ? required_argument : no_argument,
                                   .flag = NULL,
                                   .val = flags[i].code};
        if (flags[i].code < 256) {
            letters[n++] = (char)flags[i].code;
            if (has_value) {
                letters[n++] = ':';
            }
        }
    }
    words[FLAGS] = (struct option){.name = NULL, .has_arg = 0, .flag = NULL, .val = 0};
    letters[n] = '\0';
}

/* What no single flag can tell. */
static int options_check(const struct perf_options *options, char *why)
{
    const char *text = NULL;
    if (options->end_bytes < options->begin_bytes) {
        text = "--maxbytes is below --minbytes";
    } else if (options->begin_bytes == 0 && options->step_bytes == 0 && options->end_bytes > 0) {
        text = "--minbytes 0 needs --stepbytes: no factor leads on from 0";
    } else if (perf_verb_reduces(options->verb) && !perf_dtype_reduces(options->dtype)) {
        text = "this type only moves: it has no reduction";
    } else if (perf_verb_reduces(options->verb) &&
               !perf_dtype_has(options->dtype, options->redop)) {
        text = "this type has no such reduction: bool no average, floats no bitwise ones";
    } else if (options->peer == PERF_PEER_MPI &&
               (options->named || options->persistent || options->group)) {
        text = "--named, --persistent and --group are horon's own: MPI has none";
    } else if (options->peer == PERF_PEER_MPI && options->backend != NULL) {
        text = "--backend: horon's own, and MPI is measured";
    } else if (options->peer != PERF_PEER_MPI && options->polled) {
        text = "--polled is how --peer mpi waits";
    } else if (options->peer != PERF_PEER_MPI && options->mpi_multiple) {
        text = "--mpi-multiple is how --peer mpi begins";
    } else if (options->group && options->persistent) {
        text = "--group: what is persistent is started as it was prepared, one by one";
    } else if (options->group && (options->verb == HORON_BARRIER || options->verb == HORON_SEND)) {
        text = "--group: barriers and messages have none";
    } else if (options->peer == PERF_PEER_MPI && options->sets > 0) {
        text = "--sets is of horon's process sets: MPI is measured on all ranks";
    } else if (options->verb == HORON_BARRIER && options->tensors > 1) {
        text = "a barrier has no tensors";
    } else if (options->verb != HORON_BARRIER && perf_size_smallest(options) > 0 &&
               perf_size_smallest(options) < perf_dtype_bytes(options->dtype)) {
        text = "the smallest size is below one element of this type: give a larger --minbytes (or "
               "--stepbytes, which leads on from 0)";
    }
    if (text != NULL) {
        snprintf(why, PERF_TEXT_BYTES, "%s", text);
        return -1;
    }
    return 0;
}

static enum perf_parse parse_flags(int argc, char **argv, struct perf_options *options, char *why)
{
    char letters[2 * FLAGS + 2];
    struct option words[FLAGS + 1];
    char text[PERF_TEXT_BYTES];
    getopt_tables(letters, words);
    optind = 0; /* GNU: begin anew */
    opterr = 0;
    int code;
    while ((code = getopt_long(argc, argv, letters, words, NULL)) != -1) {
        if (code == 'h') {
            return PERF_PARSE_HELP;
        }
        if (code == '?' || code == ':') {
            snprintf(why, PERF_TEXT_BYTES, "%.64s: %s; --help lists the flags", argv[optind - 1],
                     code == ':' ? "its value is missing" : "no such flag");
            return PERF_PARSE_WRONG;
        }
        const struct flag *const flag = flag_of(code);
        if (flag_store(options, flag, optarg, text) != 0) {
            snprintf(why, PERF_TEXT_BYTES, "--%s: %.900s", flag->word, text);
            return PERF_PARSE_WRONG;
        }
    }
    return PERF_PARSE_RUN;
}

/* Small, but an element of every rank. */
static uint64_t default_begin(const struct perf_options *options)
{
    const uint64_t element = perf_dtype_bytes(options->dtype);
    if (options->verb != HORON_ALLREDUCE && options->verb != HORON_BROADCAST &&
        options->verb != HORON_REDUCE && options->verb != HORON_SEND) {
        return 1024;
    }
    return element > 8 ? element : 8;
}

enum perf_parse perf_options_parse(int argc, char **argv, struct perf_options *options_out,
                                   char *why)
{
    struct perf_options options = {.dtype = HORON_FLOAT32,
                                   .redop = HORON_SUM,
                                   .begin_bytes = UINT64_MAX,
                                   .end_bytes = UINT64_MAX,
                                   .factor = 2,
                                   .iterations = 20,
                                   .warmup = 5,
                                   .checks = 1,
                                   .tensors = 1,
                                   .places = PERF_BOTH_PLACES};
    const enum perf_parse parse = parse_flags(argc, argv, &options, why);
    if (parse != PERF_PARSE_RUN) {
        return parse;
    }
    if (optind + 1 != argc || perf_verb_find(argv[optind], &options.verb) != 0) {
        snprintf(why, PERF_TEXT_BYTES, "say one verb (%s), not %s%.64s%s", perf_verb_words(),
                 optind < argc ? "\"" : "", optind < argc ? argv[argc - 1] : "none",
                 optind < argc ? "\"" : "");
        return PERF_PARSE_WRONG;
    }
    if (options.begin_bytes == UINT64_MAX) {
        options.begin_bytes = default_begin(&options);
    }
    if (options.end_bytes == UINT64_MAX) {
        options.end_bytes = options.begin_bytes;
    }
    if (options_check(&options, why) != 0) {
        return PERF_PARSE_WRONG;
    }
    if (options.verb == HORON_BARRIER) { /* nothing of it has a size */
        options.begin_bytes = 0;
        options.end_bytes = 0;
    }
    *options_out = options;
    return PERF_PARSE_RUN;
}

uint64_t perf_size_smallest(const struct perf_options *options)
{
    if (options->begin_bytes > 0) {
        return options->begin_bytes;
    }
    return options->step_bytes <= options->end_bytes ? options->step_bytes : 0;
}

uint64_t perf_size_next(const struct perf_options *options, uint64_t bytes)
{
    uint64_t next = 0;
    if (options->step_bytes > 0) {
        if (options->step_bytes > options->end_bytes - bytes) {
            return 0;
        }
        next = bytes + options->step_bytes;
    } else {
        if (bytes == 0 || bytes > options->end_bytes / options->factor) {
            return 0;
        }
        next = bytes * options->factor;
    }
    return next;
}
