/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The option table for people: on a terminal with the values that hold here, and as Markdown for
 * the documentation. Everything comes from the rows (config.h); there is no second list to keep.
 */
#include "options_table.h"

#include "config.h"

#include <string.h>

static const char *origin_name(enum horon_config_origin origin, const struct horon_config_row *row)
{
    switch (origin) {
    case HORON_CONFIG_FROM_DEFAULT:
        return "default";
    case HORON_CONFIG_FROM_ENVIRONMENT:
        return "environment";
    case HORON_CONFIG_FROM_ALIAS:
        return row->alias;
    case HORON_CONFIG_FROM_ALIAS_TOO:
        return row->alias_too;
    case HORON_CONFIG_FROM_ALIAS_OFF:
        return row->alias_off;
    case HORON_CONFIG_FROM_CALLER:
        return "caller";
    }
    return "";
}

/* "0..64m" and the like, in the row's own unit. */
static void write_allowed(const struct horon_config_row *row, char *text, size_t bytes)
{
    static const char *const type_names[] = {[HORON_CONFIG_INT] = "a number",
                                             [HORON_CONFIG_BYTES] = "bytes (64k, 8m, 1g)",
                                             [HORON_CONFIG_TIME] =
                                                 "a time (500ms, 2s; a bare number is seconds)",
                                             [HORON_CONFIG_BOOL] = "0 or 1",
                                             [HORON_CONFIG_WORD] = "",
                                             [HORON_CONFIG_TEXT] = "text"};
    char bounds[72];
    if (row->choices) {
        snprintf(text, bytes, "one of: %s", row->choices);
    } else if (row->type == HORON_CONFIG_BOOL || row->type == HORON_CONFIG_TEXT) {
        snprintf(text, bytes, "%s", type_names[row->type]);
    } else {
        horon_config_bounds(row, bounds, sizeof bounds);
        snprintf(text, bytes, "%s, %s", type_names[row->type], bounds);
    }
}

static void print_wrapped(FILE *to, const char *text)
{
    const size_t width = 86;
    while (*text) {
        size_t bytes = strlen(text);
        if (bytes > width)
            for (bytes = width; bytes && text[bytes] != ' '; bytes--)
                ;
        if (!bytes)
            bytes = strcspn(text, " ");
        fprintf(to, "      %.*s\n", (int)bytes, text);
        text += bytes;
        text += strspn(text, " ");
    }
}

/* @param before  the first, if there is one */
static void print_aliases(FILE *to, const struct horon_config_row *row, const char *before)
{
    if (row->alias)
        fprintf(to, "%s%s", before, row->alias);
    if (row->alias_too)
        fprintf(to, ", %s", row->alias_too);
    if (row->alias_off)
        fprintf(to, ", %s", row->alias_off);
}

/* @return false: its value is wrong */
static bool print_row(FILE *to, const struct horon_config_row *row)
{
    char value[HORON_CONFIG_TEXT_BYTES + 64], allowed[256];
    struct horon_config config = {0};
    enum horon_config_origin origin;
    struct horon_error error = {0};
    const bool good = horon_config_load_row(&config, row, &origin, &error) == HORON_OK;
    write_allowed(row, allowed, sizeof allowed);
    if (good) {
        horon_config_format(&config, row, value, sizeof value);
        fprintf(to, "  HORON_%s=%s  (%s)\n", row->name, value, origin_name(origin, row));
    } else {
        fprintf(to, "  HORON_%s  WRONG: %s\n", row->name, error.text);
        fprintf(stderr, "horon-info: %s\n", error.text);
    }
    print_wrapped(to, row->doc);
    fprintf(to, "      %s; default %s", allowed, row->dflt[0] ? row->dflt : "empty");
    print_aliases(to, row, "; else ");
    fputc('\n', to);
    return good;
}

static void print_unknown(FILE *to)
{
    struct horon_error error = {0};
    int unknown = horon_config_unknown(&error);
    if (unknown > 0)
        fprintf(to, "\n  warning: %s%s\n", error.text, unknown > 1 ? "; and there are others" : "");
}

int horon_info_print_options(FILE *to)
{
    size_t count;
    int code = 0;
    const struct horon_config_row *rows = horon_config_rows(&count);
    for (size_t i = 0; i < count; i++)
        if (!print_row(to, &rows[i]))
            code = 1;
    print_unknown(to);
    return code;
}

static void print_flag(FILE *to, const struct horon_config_row *row)
{
    fputs("`--", to);
    for (const char *c = row->name; *c; c++)
        fputc(*c == '_' ? '-' : *c >= 'A' && *c <= 'Z' ? *c - 'A' + 'a' : *c, to);
    fputc('`', to);
}

void horon_info_print_options_markdown(FILE *to)
{
    size_t count;
    const struct horon_config_row *rows = horon_config_rows(&count);
    fprintf(to, "| Variable | Flag of horonrun | Default | Allowed | Horovod | Meaning |\n"
                "| --- | --- | --- | --- | --- | --- |\n");
    for (size_t i = 0; i < count; i++) {
        char allowed[256];
        write_allowed(&rows[i], allowed, sizeof allowed);
        fprintf(to, "| `HORON_%s` | ", rows[i].name);
        if (rows[i].from_launcher)
            fputs("set by horonrun", to);
        else
            print_flag(to, &rows[i]);
        fprintf(to, " | %s | %s | ", rows[i].dflt[0] ? rows[i].dflt : "empty", allowed);
        print_aliases(to, &rows[i], "");
        fprintf(to, " | %s |\n", rows[i].doc);
    }
}
