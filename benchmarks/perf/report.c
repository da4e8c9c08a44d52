/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The columns are those of nccl-tests, with the spread (smallest and largest of the timed calls)
 * and the back-to-back mean put beside the median. A JSON object is written and flushed with its
 * line, so that a run that is interrupted leaves whole lines.
 */
#include "report.h"

#include "names.h"
#include "sets.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

int perf_report_open(struct perf_report *report, const struct perf_options *options,
                     const struct perf_peer *peer, char *why)
{
    *report = (struct perf_report){.options = options, .peer = peer, .json = NULL};
    if (options->json_path == NULL) {
        return 0;
    }
    report->json = fopen(options->json_path, "we");
    if (report->json == NULL) {
        snprintf(why, PERF_TEXT_BYTES, "--json %.500s: %s", options->json_path, strerror(errno));
        return -1;
    }
    return 0;
}

static const char *path_word(const struct perf_options *options)
{
    if (options->peer == PERF_PEER_MPI) {
        return options->tensors > 1 || options->polled ? "nonblocking" : "blocking";
    }
    if (options->group) {
        return options->named ? "named, group" : "in order, group";
    }
    if (options->named) {
        return options->persistent ? "named, persistent" : "named";
    }
    return options->persistent ? "in order, persistent" : "in order";
}

/* What carries each size that is measured: a word, and those behind which another one does. */
static void carriers_print(const struct perf_report *report)
{
    const struct perf_options *const o = report->options;
    const char *before = NULL;
    for (uint64_t bytes = o->begin_bytes; bytes != 0 || before == NULL;) {
        const uint64_t count = o->verb == HORON_BARRIER ? 0 : bytes / perf_dtype_bytes(o->dtype);
        const char *const by = report->peer->ops->carrier(report->peer, count);
        if (by == NULL) {
            break;
        }
        if (before == NULL) {
            printf("# carried by %s", by);
        } else if (strcmp(before, by) != 0) {
            printf(", from %" PRIu64 " bytes by %s", bytes, by);
        }
        before = by;
        bytes = bytes < o->end_bytes ? perf_size_next(o, bytes) : 0;
    }
    if (before != NULL) {
        printf("\n");
    }
}

void perf_report_head(const struct perf_report *report, bool aligned)
{
    const struct perf_options *const o = report->options;
    printf("# horon-perf %s: %s, %d ranks (%d on this machine), %s\n", perf_verb_word(o->verb),
           report->peer->version, report->peer->size,
           aligned ? report->peer->size : report->peer->local_size, path_word(o));
    printf("# %" PRIu64 " calls after %" PRIu64 ", %" PRIu64 " checked; %" PRIu64
           " tensor(s) a call; %s; started together by %s\n",
           o->iterations, o->warmup, o->checks, o->tensors, o->pin ? "pinned" : "not pinned",
           aligned ? "shared memory" : "barriers only");
    carriers_print(report);
    if (o->sets > 0) {
        printf("# %" PRIu64
               " process sets of %d ranks at once; times are a call's divided by them\n",
               o->sets, perf_set_size(report->peer->size));
    }
    printf(
        "# time: median of the calls, each the slowest rank's, inputs rewritten before; b2b: mean "
        "back to back\n");
    printf("#%13s %13s %9s %6s %4s | %-67s | %s\n", "", "", "", "", "", "out-of-place", "in-place");
    printf("#%13s %13s %9s %6s %4s", "size", "count", "type", "redop", "root");
    for (int i = 0; i < 2; i++) {
        printf(" | %9s %9s %9s %9s %7s %7s %6s", "time", "min", "max", "b2b", "algbw", "busbw",
               "#wrong");
    }
    printf("\n#%13s %13s %9s %6s %4s", "(B)", "(elements)", "", "", "");
    for (int i = 0; i < 2; i++) {
        printf(" | %9s %9s %9s %9s %7s %7s %6s", "(us)", "(us)", "(us)", "(us)", "(GB/s)", "(GB/s)",
               "");
    }
    printf("\n");
    fflush(stdout);
}

static void cell_print(const struct perf_report *report, const struct perf_cell *cell)
{
    if (!cell->measured) {
        printf(" | %9s %9s %9s %9s %7s %7s %6s", "-", "-", "-", "-", "-", "-", "-");
        return;
    }
    const struct perf_stats *const t = &cell->times;
    printf(" | %9.2f %9.2f %9.2f %9.2f %7.2f %7.2f", t->median, t->min, t->max, cell->b2b_us,
           cell->algbw, cell->busbw);
    if (report->options->checks > 0) {
        printf(" %6" PRIu64, cell->wrong);
    } else {
        printf(" %6s", "N/A");
    }
}

static void text_write(FILE *to, const char *text)
{
    fputc('"', to);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\') {
            fputc('\\', to);
        }
        fputc((unsigned char)*text < ' ' ? ' ' : *text, to);
    }
    fputc('"', to);
}

static void cell_write(const struct perf_report *report, const struct perf_cell *cell)
{
    const struct perf_options *const o = report->options;
    FILE *const to = report->json;
    const struct perf_stats *const t = &cell->times;
    fprintf(to, "{\"peer\": \"%s\", \"version\": ", report->peer->ops->name);
    text_write(to, report->peer->version);
    fprintf(to, ", \"verb\": \"%s\", \"path\": \"%s\", \"pinned\": %s", perf_verb_word(o->verb),
            path_word(o), o->pin ? "true" : "false");
    fprintf(to,
            ", \"size\": %" PRIu64 ", \"count\": %" PRIu64 ", \"tensors\": %" PRIu64
            ", \"sets\": %" PRIu64
            ", \"type\": \"%s\", \"redop\": \"%s\", \"root\": %d, \"np\": %d, \"in_place\": %s",
            cell->bytes, cell->count, o->tensors, o->sets, perf_dtype_word(o->dtype),
            perf_verb_reduces(o->verb) ? perf_redop_word(o->redop) : "none",
            perf_verb_rooted(o->verb) ? o->root : -1, report->peer->size,
            cell->in_place ? "true" : "false");
    fprintf(to,
            ", \"time_us\": %.4f, \"min_us\": %.4f, \"max_us\": %.4f, \"p25_us\": %.4f, "
            "\"p75_us\": %.4f, \"b2b_us\": %.4f, \"algbw\": %.6f, \"busbw\": %.6f, \"iterations\": "
            "%" PRIu64,
            t->median, t->min, t->max, t->p25, t->p75, cell->b2b_us, cell->algbw, cell->busbw,
            o->iterations);
    if (o->checks > 0) {
        fprintf(to, ", \"wrong\": %" PRIu64 "}\n", cell->wrong);
    } else {
        fprintf(to, ", \"wrong\": null}\n");
    }
    fflush(to);
}

void perf_report_row(const struct perf_report *report, const struct perf_cell *cells)
{
    const struct perf_options *const o = report->options;
    printf(" %13" PRIu64 " %13" PRIu64 " %9s %6s %4d", cells[0].bytes, cells[0].count,
           perf_dtype_word(o->dtype),
           perf_verb_reduces(o->verb) ? perf_redop_word(o->redop) : "none",
           perf_verb_rooted(o->verb) ? o->root : -1);
    for (int i = 0; i < 2; i++) {
        cell_print(report, &cells[i]);
        if (report->json != NULL && cells[i].measured) {
            cell_write(report, &cells[i]);
        }
    }
    printf("\n");
    fflush(stdout);
}

int perf_report_close(struct perf_report *report, char *why)
{
    if (report->json == NULL) {
        return 0;
    }
    const int failed = ferror(report->json) != 0;
    if (fclose(report->json) != 0 || failed) {
        snprintf(why, PERF_TEXT_BYTES, "--json %.500s: not all of it could be written",
                 report->options->json_path);
        return -1;
    }
    return 0;
}
