/* SPDX-License-Identifier: Apache-2.0 */
/*
 * horon-info: which horon this is, what it found on the machine and why it did not find the rest,
 * and every option with its value and where that comes from.
 */
#include "carriers.h"
#include "found.h"
#include "machine.h"
#include "options_table.h"

#include <errno.h>
#include <horon/horon.h>
#include <stdbool.h>
#include <string.h>

#define OUTPUT_BYTES ((size_t)256 << 10)

static void help(FILE *to)
{
    fprintf(to, "usage: horon-info [--machine] [--check-build] [--config [--markdown]] "
                "[--version]\n\n"
                "  --machine   only what was found on the machine\n"
                "  --check-build\n"
                "              only the backends: what was found of each, or why not\n"
                "  --config    only the option table: values, origins, bounds, meaning\n"
                "  --markdown  with --config: the table for documentation, without values\n"
                "  --version   only the version\n");
}

static int refuse(const char *word)
{
    fprintf(stderr, "horon-info: %s is not one of its options\n\n", word);
    help(stderr);
    return 2;
}

static void print_features(FILE *to)
{
    static const char *const others[] = {"persistent", "in_order", "process_sets", "join",
                                         "shm",        "tcp",      "timeline",     "cuda",
                                         "native",     "nccl",     "mpi",          "gloo"};
    const size_t count = HORON_VERB_COUNT + sizeof others / sizeof others[0];
    char yes[256] = "", no[256] = "";
    for (size_t i = 0; i < count; i++) {
        const char *name =
            i < HORON_VERB_COUNT ? horon_verb_name((horon_verb_t)i) : others[i - HORON_VERB_COUNT];
        char *list = horon_feature(name) ? yes : no;
        size_t used = strlen(list);
        snprintf(list + used, sizeof yes - used, "%s%s", used ? " " : "", name);
    }
    horon_info_row(to, "has", "%s", yes);
    horon_info_row(to, "has not", "%s", no[0] ? no : "-");
}

static void print_found(FILE *to, const char *label, void (*ask)(struct horon_found *found))
{
    struct horon_found found;
    ask(&found);
    horon_info_row(to, label, "%s%s", found.yes ? "" : "no: ", found.text);
}

static void print_machine(FILE *to)
{
    fprintf(to, "machine\n");
    horon_info_print_machine(to);
    fprintf(to, "\nnetworks\n");
    horon_info_print_networks(to);
    fprintf(to, "\nlibraries\n");
    print_found(to, "CUDA", horon_found_cuda);
    print_found(to, "Python", horon_found_python);
    fprintf(to, "\nbackends\n");
    horon_info_print_backends(to);
    fprintf(to, "\noperations\n");
    horon_info_print_carriers(to);
}

/* What could not be written was not said. */
static int end_output(int code)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    fprintf(stderr, "horon-info: standard output cannot be written: %s\n",
            errno ? strerror(errno) : "a write failed");
    return code ? code : 1;
}

int main(int argc, char **argv)
{
    bool machine = false, backends = false, config = false, markdown = false, version = false;
    int code = 0;
    static char output[OUTPUT_BYTES];
    setvbuf(stdout, output, _IOFBF, sizeof output); /* a write that fails does so at the end */
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--machine") == 0) {
            machine = true;
        } else if (strcmp(argv[i], "--check-build") == 0) {
            backends = true;
        } else if (strcmp(argv[i], "--config") == 0) {
            config = true;
        } else if (strcmp(argv[i], "--markdown") == 0) {
            config = markdown = true;
        } else if (strcmp(argv[i], "--version") == 0) {
            version = true;
        } else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            help(stdout);
            return end_output(0);
        } else {
            return refuse(argv[i]);
        }
    }
    const bool all = !machine && !backends && !config && !version;
    if (all || version)
        printf("horon %s\n", horon_version());
    if (all)
        print_features(stdout);
    if (all)
        printf("\n");
    if (all || machine)
        print_machine(stdout);
    if (backends)
        horon_info_print_backends(stdout);
    if (all)
        printf("\noptions\n");
    if (markdown)
        horon_info_print_options_markdown(stdout);
    else if (all || config)
        code = horon_info_print_options(stdout);
    return end_output(code);
}
