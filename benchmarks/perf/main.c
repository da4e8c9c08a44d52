/* SPDX-License-Identifier: Apache-2.0 */
/*
 * horon-perf: how long the collectives take. Every rank runs this program; rank 0 reports.
 *
 *     horonrun -np 2 horon-perf allreduce -b 8 -e 256M -f 4 -d float -o sum -n 20 -w 5 -c 1
 *     mpirun   -np 2 horon-perf allreduce -b 8 -e 256M -f 4 --peer mpi
 *
 * It leaves nothing behind however it ends: the memory in which ranks meet has no name, and the
 * JSON file is the user's. Exit status: 0; 1 a result was wrong; 2 the command line; 3 the library
 * failed.
 */
#include "loop.h"
#include "names.h"
#include "report.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_WRONG = 1, EXIT_USAGE = 2, EXIT_FAILED = 3 };

static void complain(const char *text)
{
    fprintf(stderr, "horon-perf: %s\n", text);
}

/* All threads: those the library has already started belong to this rank too. */
static int pin_threads(const cpu_set_t *cores, char *why)
{
    DIR *const threads = opendir("/proc/self/task");
    int result = threads != NULL ? 0 : -1;
    for (struct dirent *entry = NULL; result == 0 && (entry = readdir(threads)) != NULL;) {
        const pid_t thread = (pid_t)strtol(entry->d_name, NULL, 10);
        if (thread > 0 && sched_setaffinity(thread, sizeof *cores, cores) != 0 && errno != ESRCH) {
            result = -1;
        }
    }
    if (threads != NULL) {
        closedir(threads);
    }
    if (result != 0) {
        snprintf(why, PERF_TEXT_BYTES, "--pin: cannot bind the threads of this process: %s",
                 strerror(errno));
    }
    return result;
}

/* The place-th core this process may use, counted round. */
static int pin(int place, char *why)
{
    cpu_set_t allowed;
    cpu_set_t one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
        snprintf(why, PERF_TEXT_BYTES, "--pin: the cores of this process cannot be asked");
        return -1;
    }
    int skip = place % CPU_COUNT(&allowed);
    for (size_t core = 0; core < CPU_SETSIZE; core++) {
        if (CPU_ISSET(core, &allowed) && skip-- == 0) {
            CPU_SET(core, &one);
        }
    }
    return pin_threads(&one, why);
}

/* Measures all sizes. @return what the program ends with */
static int measure(const struct perf_options *options, struct perf_peer *peer,
                   struct perf_report *report, struct perf_loop *loop)
{
    int result = 0;
    if (peer->rank == 0) {
        perf_report_head(report, perf_loop_aligned(loop));
    }
    uint64_t bytes = options->begin_bytes;
    do {
        struct perf_cell cells[2];
        memset(cells, 0, sizeof cells);
        for (int place = 0; place < 2; place++) {
            const unsigned wanted = (unsigned)options->places & (1u << place);
            if (wanted != 0 && perf_loop_measure(loop, bytes, place == 1, &cells[place]) != 0) {
                complain(peer->error);
                return EXIT_FAILED;
            }
            if (cells[place].measured && cells[place].wrong > 0) {
                result = EXIT_WRONG;
            }
        }
        if (peer->rank == 0) {
            if (options->places == PERF_IN_PLACE) {
                cells[0].bytes = cells[1].bytes;
                cells[0].count = cells[1].count;
            }
            perf_report_row(report, cells);
        }
        bytes = bytes < options->end_bytes ? perf_size_next(options, bytes) : 0;
    } while (bytes != 0);
    return result;
}

/* @param loop_out has the buffers of what may be in flight: to be destroyed after the peer is
 * closed */
static int run(const struct perf_options *options, struct perf_peer *peer,
               struct perf_loop **loop_out)
{
    char why[PERF_TEXT_BYTES] = "";
    struct perf_report report = {.options = options, .peer = peer, .json = NULL};
    if (peer->rank == 0 && perf_report_open(&report, options, peer, why) != 0) {
        goto failed;
    }
    if (perf_loop_create(options, peer, loop_out) != 0) {
        snprintf(why, sizeof why, "%.1000s", peer->error);
        goto failed;
    }
    /* Ranks that meet in memory share the cores, also as hosts of their own. */
    if (options->pin &&
        pin(perf_loop_aligned(*loop_out) ? peer->rank : peer->local_rank, why) != 0) {
        goto failed;
    }
    int result = measure(options, peer, &report, *loop_out);
    if (perf_report_close(&report, why) != 0) {
        complain(why);
        result = EXIT_FAILED;
    }
    if (result == EXIT_WRONG && peer->rank == 0) {
        complain("a result was wrong");
    }
    return result;
failed:
    complain(why);
    return EXIT_FAILED;
}

/* A table that could not be written is no result. */
static int output_end(int result)
{
    char why[PERF_TEXT_BYTES] = "";
    errno = 0;
    if (fflush(stdout) == 0 && ferror(stdout) == 0) {
        return result;
    }
    snprintf(why, sizeof why, "standard output cannot be written: %s",
             errno != 0 ? strerror(errno) : "a write failed");
    complain(why);
    return result == 0 ? EXIT_FAILED : result;
}

int main(int argc, char **argv)
{
    struct perf_options options;
    struct perf_peer *peer = NULL;
    char why[PERF_TEXT_BYTES] = "";
    switch (perf_options_parse(argc, argv, &options, why)) {
    case PERF_PARSE_HELP:
        perf_options_help(stdout);
        return output_end(0);
    case PERF_PARSE_WRONG:
        complain(why);
        return EXIT_USAGE;
    case PERF_PARSE_RUN:
        break;
    }
    const int opened = options.peer == PERF_PEER_MPI ? perf_peer_mpi_open(&options, &peer, why)
                                                     : perf_peer_horon_open(&options, &peer, why);
    if (opened != 0) {
        complain(why);
        return EXIT_FAILED;
    }
    struct perf_loop *loop = NULL;
    const int result = run(&options, peer, &loop);
    peer->ops->close(peer, result == EXIT_FAILED);
    perf_loop_destroy(loop);
    return output_end(result);
}
