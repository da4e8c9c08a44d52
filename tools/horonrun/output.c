/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks print becomes lines (lines.c), gets a prefix, and goes to a sink. Invariant: a sink is
 * only ever given whole lines, and if stdout and stderr are the same file there is only one sink,
 * so nothing tears. The newest lines of each rank's stderr stay in a ring, for the report on the
 * one that fails.
 */
#include "output.h"

#include "alloc.h"
#include "sink.h"
#include "status.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SINK_FULL_BYTES ((size_t)1 << 20)
#define FIRST_COLOR 31 /* red; six of them that show on dark and bright */
#define COLORS 6

struct last_lines {
    char texts[HORONRUN_LAST_LINES][HORONRUN_LAST_LINE_BYTES + 1];
    unsigned next;
};

struct rank_output {
    struct horonrun_output *output;
    int rank, stream; /* 1 stdout, 2 stderr */
    struct horonrun_lines lines;
    int file_fd; /* -1: none */
};

struct horonrun_output {
    struct horonrun_output_style style;
    struct horonrun_sink sinks[2];
    struct horonrun_sink *sink_of[2]; /* both the first if they are the same file */
    struct rank_output *streams;      /* [2 * ranks] */
    struct last_lines *last;          /* [ranks] */
    int ranks;
    bool full, file_lost;
    void (*on_full)(void *arg, bool full);
    void (*on_broken)(void *arg, int stream, int why);
    bool told_broken[2];
    void *arg;
};

static void report_fullness(struct horonrun_output *output)
{
    size_t pending = horonrun_output_pending(output);
    bool full = pending > (output->full ? SINK_FULL_BYTES / 4 : SINK_FULL_BYTES);
    if (full == output->full)
        return;
    output->full = full;
    output->on_full(output->arg, full);
}

static void on_moved(void *arg)
{
    struct horonrun_output *output = arg;
    for (int i = 0; i < 2; i++) {
        const int why = output->sinks[i].broken;
        if (!why || output->told_broken[i])
            continue;
        output->told_broken[i] = true;
        output->on_broken(output->arg, i + 1, why);
    }
    report_fullness(output);
}

static void put_timestamp(struct horonrun_sink *sink)
{
    char text[64];
    time_t now = time(NULL);
    struct tm local;
    size_t bytes = strftime(text, sizeof text, "%a %b %e %H:%M:%S %Y", localtime_r(&now, &local));
    horonrun_sink_put(sink, text, bytes);
}

static void remember(struct last_lines *last, const char *text, size_t bytes)
{
    size_t kept = bytes < HORONRUN_LAST_LINE_BYTES ? bytes : HORONRUN_LAST_LINE_BYTES;
    char *place = last->texts[last->next++ % HORONRUN_LAST_LINES];
    if (kept)
        memcpy(place, text, kept);
    place[kept] = 0;
}

static void put_prefix(const struct rank_output *stream, struct horonrun_sink *sink)
{
    const struct horonrun_output_style *style = &stream->output->style;
    const bool color = style->color[stream->stream - 1];
    char color_on[16] = "", text[80];
    if (style->no_prefix)
        return;
    if (color)
        snprintf(color_on, sizeof color_on, "\033[%dm", FIRST_COLOR + stream->rank % COLORS);
    int bytes = snprintf(text, sizeof text, "%s[%d]<%s>:%s", color_on, stream->rank,
                         stream->stream == 1 ? "stdout" : "stderr", color ? "\033[0m" : "");
    horonrun_sink_put(sink, text, (size_t)bytes);
}

static void put_line(void *arg, const char *text, size_t bytes)
{
    struct rank_output *stream = arg;
    struct horonrun_output *output = stream->output;
    struct horonrun_sink *sink = output->sink_of[stream->stream - 1];
    if (output->style.timestamps)
        put_timestamp(sink);
    put_prefix(stream, sink);
    horonrun_sink_put(sink, text, bytes);
    horonrun_sink_put(sink, "\n", 1);
    if (stream->stream == 2)
        remember(&output->last[stream->rank], text, bytes);
}

static bool same_file(int a, int b)
{
    struct stat first, second;
    return fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

horon_status_t horonrun_output_create(struct horonrun_output **output_out, struct ev_loop *loop,
                                      int ranks, const struct horonrun_output_style *style,
                                      void (*on_full)(void *arg, bool full),
                                      void (*on_broken)(void *arg, int stream, int why), void *arg,
                                      struct horon_error *error)
{
    struct horonrun_output *output = horon_zalloc(1, sizeof *output);
    if (output) {
        *output = (struct horonrun_output){.style = *style,
                                           .ranks = ranks,
                                           .on_full = on_full,
                                           .on_broken = on_broken,
                                           .arg = arg};
        output->streams = horon_zalloc(2 * (size_t)ranks, sizeof *output->streams);
        output->last = horon_zalloc((size_t)ranks, sizeof *output->last);
        for (int i = 0; i < 2; i++)
            horonrun_sink_init(&output->sinks[i], loop, STDOUT_FILENO + i, on_moved, output);
        bool same = same_file(STDOUT_FILENO, STDERR_FILENO);
        output->sink_of[0] = &output->sinks[0];
        output->sink_of[1] = &output->sinks[same ? 0 : 1];
    }
    if (!output || !output->streams || !output->last) {
        horonrun_output_destroy(output);
        return horon_error_set(error, HORON_ERR_MEMORY, "out of memory");
    }
    for (int i = 0; i < 2 * ranks; i++)
        output->streams[i] = (struct rank_output){
            .output = output, .rank = i / 2, .stream = 1 + i % 2, .file_fd = -1};
    *output_out = output;
    return HORON_OK;
}

static bool make_directories(char *path)
{
    for (char *slash = strchr(path + 1, '/');; slash = strchr(slash + 1, '/')) {
        if (slash)
            *slash = 0;
        bool made = mkdir(path, 0777) == 0 || errno == EEXIST;
        if (slash)
            *slash = '/';
        if (!made || !slash)
            return made;
    }
}

static int decimal_width(int value)
{
    int width = 1;
    for (; value >= 10; value /= 10)
        width++;
    return width;
}

/* DIR/rank.N. @return its length, or 0: it is too long, with the file's name behind */
static size_t name_directory(const struct rank_output *stream, char path[PATH_MAX])
{
    const int width = decimal_width(stream->output->ranks - 1);
    int used = snprintf(path, PATH_MAX, "%s/rank.%0*d", stream->output->style.directory, width,
                        stream->rank);
    return used < 0 || used > PATH_MAX - 16 ? 0 : (size_t)used;
}

static void add_file_name(const struct rank_output *stream, char path[PATH_MAX], size_t used)
{
    snprintf(path + used, PATH_MAX - used, "/%s", stream->stream == 1 ? "stdout" : "stderr");
}

/* What stands there may be somebody else's trap: a link, or a pipe that nobody reads. Those that
 * lead to DIR are the user's. @param made  is it there? Else errno says why not */
static int open_folder(bool made, int parent, const char *name)
{
    return made ? openat(parent, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
}

/* @param path DIR/rank.N, then with the file's name behind. @return -1 with errno */
static int open_file(const struct rank_output *stream, char path[PATH_MAX], size_t used)
{
    char top_name[PATH_MAX];
    size_t bytes = strlen(stream->output->style.directory);
    const char *own_name = path + bytes + 1;
    memcpy(top_name, path, bytes);
    while (bytes > 1 && top_name[bytes - 1] == '/') /* before a slash a link would be followed */
        bytes--;
    top_name[bytes] = 0;
    const int top = open_folder(make_directories(top_name), AT_FDCWD, top_name);
    const bool made = top >= 0 && (mkdirat(top, own_name, 0777) == 0 || errno == EEXIST);
    const int own = open_folder(made, top, own_name);
    add_file_name(stream, path, used);
    const int fd =
        own < 0 ? -1
                : openat(own, path + used + 1,
                         O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    const int why = errno;
    if (top >= 0)
        close(top);
    if (own >= 0)
        close(own);
    errno = why;
    return fd;
}

horon_status_t horonrun_output_open_files(struct horonrun_output *output, struct horon_error *error)
{
    for (int i = 0; output->style.directory && i < 2 * output->ranks; i++) {
        struct rank_output *stream = &output->streams[i];
        char path[PATH_MAX];
        const size_t used = name_directory(stream, path);
        if (!used)
            return horon_error_set(error, HORON_ERR_CONFIG, "--output-filename is too long");
        stream->file_fd = open_file(stream, path, used);
        const bool is_link = errno == ELOOP || errno == ENOTDIR;
        if (stream->file_fd < 0)
            return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "cannot write %s%s", path,
                                         is_link ? " (links are not followed)" : "");
    }
    return HORON_OK;
}

static void give_up_file(struct rank_output *stream, int why)
{
    char path[PATH_MAX];
    add_file_name(stream, path, name_directory(stream, path));
    horonrun_output_say(stream->output, "%s cannot be written, its rest is lost: %s", path,
                        strerror(why));
    close(stream->file_fd);
    stream->file_fd = -1;
    stream->output->file_lost = true;
}

static void put_in_file(struct rank_output *stream, const char *bytes, size_t count)
{
    while (stream->file_fd >= 0 && count) {
        ssize_t put = write(stream->file_fd, bytes, count);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0) {
            give_up_file(stream, errno);
            return;
        }
        bytes += put;
        count -= (size_t)put;
    }
}

void horonrun_output_feed(struct horonrun_output *output, int rank, int stream, const char *bytes,
                          size_t count)
{
    struct rank_output *one = &output->streams[2 * rank + stream - 1];
    put_in_file(one, bytes, count);
    horonrun_lines_feed(&one->lines, bytes, count, put_line, one);
    report_fullness(output);
}

void horonrun_output_flush(struct horonrun_output *output, int rank)
{
    for (int i = 2 * rank; i < 2 * rank + 2; i++)
        horonrun_lines_flush(&output->streams[i].lines, put_line, &output->streams[i]);
}

/* C1 controls are two bytes in UTF-8. */
void horonrun_output_say(struct horonrun_output *output, const char *format, ...)
{
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    int used = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (used < 0)
        text[0] = 0;
    horon_text_clean(text, "\t"); /* it may repeat what ranks wrote */
    const size_t bytes = strlen(text);
    horonrun_sink_put(output->sink_of[1], "horonrun: ", 10);
    horonrun_sink_put(output->sink_of[1], text, bytes);
    horonrun_sink_put(output->sink_of[1], "\n", 1);
}

void horonrun_output_repeat_last(struct horonrun_output *output, int rank)
{
    const struct last_lines *last = &output->last[rank];
    unsigned count = last->next < HORONRUN_LAST_LINES ? last->next : HORONRUN_LAST_LINES;
    for (unsigned i = last->next - count; i != last->next; i++)
        horonrun_output_say(output, "  | %s", last->texts[i % HORONRUN_LAST_LINES]);
}

/* "horon rank 0 (HOST) warn: " or "horon warn: ", as a rank's horon writes lines (log.c); info and
 * what is below likewise. */
static bool is_told_in_passing(const char *line)
{
    static const char *const levels[] = {"warn: ", "info: ", "debug: ", "trace: "};
    if (strncmp(line, "horon ", 6) != 0)
        return false;
    line += 6;
    if (strncmp(line, "rank ", 5) == 0) {
        const char *host_end = strstr(line, ") ");
        if (!host_end)
            return false;
        line = host_end + 2;
    }
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++)
        if (strncmp(line, levels[i], strlen(levels[i])) == 0)
            return true;
    return false;
}

const char *horonrun_output_last_line(const struct horonrun_output *output, int rank)
{
    const struct last_lines *last = &output->last[rank];
    const unsigned count = last->next < HORONRUN_LAST_LINES ? last->next : HORONRUN_LAST_LINES;
    for (unsigned i = 1; i <= count; i++) {
        const char *line = last->texts[(last->next - i) % HORONRUN_LAST_LINES];
        if (!is_told_in_passing(line))
            return line;
    }
    return NULL;
}

bool horonrun_output_lost_file(const struct horonrun_output *output)
{
    return output->file_lost;
}

size_t horonrun_output_pending(const struct horonrun_output *output)
{
    return output->sinks[0].queue.used + output->sinks[1].queue.used;
}

void horonrun_output_destroy(struct horonrun_output *output)
{
    if (!output)
        return;
    for (int i = 0; output->streams && i < 2 * output->ranks; i++) {
        horonrun_lines_deinit(&output->streams[i].lines);
        if (output->streams[i].file_fd >= 0)
            close(output->streams[i].file_fd);
    }
    for (int i = 0; i < 2; i++)
        horonrun_sink_deinit(&output->sinks[i]);
    horon_free(output->streams);
    horon_free(output->last);
    horon_free(output);
}
