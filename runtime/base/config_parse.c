/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The strict parser of the option table. A default is parsed as a user's text would be, so it is
 * checked like one. The variables of the rows are read here and nowhere else;
 * boot/identity/identity.c reads those of launchers.
 */
#include "config.h"

#include "nearest.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <xxhash.h>

#define KIB ((int64_t)1 << 10)
#define MIB ((int64_t)1 << 20)
#define GIB ((int64_t)1 << 30)
#define BLANKS " \t\n"

static bool is_row(const struct horon_config_row *row)
{
    size_t count;
    const struct horon_config_row *rows = horon_config_rows(&count);
    return row >= rows && row < rows + count;
}

/* The row whose name is nearest to one that is none. */
static struct horon_nearest nearest_row(const char *name, size_t name_bytes)
{
    struct horon_nearest nearest = horon_nearest_to(name, name_bytes);
    size_t count;
    const struct horon_config_row *rows = horon_config_rows(&count);
    for (size_t i = 0; i < count; i++)
        horon_nearest_consider(&nearest, rows[i].name, strlen(rows[i].name));
    return nearest;
}

/* Digits and one of the units; false if anything else stands there. What does not fit becomes the
 * largest or smallest number, which no row allows. */
static bool parse_number(const char *text, const char *const *units, const int64_t *factors,
                         int64_t *value_out)
{
    char *end;
    if (!isdigit((unsigned char)text[0]) && text[0] != '-')
        return false;
    long long number = strtoll(text, &end, 10);
    for (int i = 0; units[i]; i++) {
        if (strcasecmp(end, units[i]) != 0)
            continue;
        if (__builtin_mul_overflow((int64_t)number, factors[i], value_out))
            *value_out = number < 0 ? INT64_MIN : INT64_MAX;
        return true;
    }
    return false;
}

static bool parse_integer(enum horon_config_type type, const char *text, int64_t *value_out)
{
    static const char *const int_units[] = {"", NULL};
    static const char *const byte_units[] = {"", "b", "k", "kib", "m", "mib", "g", "gib", NULL};
    static const char *const time_units[] = {"", "ms", "s", "min", "h", NULL};
    static const int64_t int_factors[] = {1};
    static const int64_t byte_factors[] = {1, 1, KIB, KIB, MIB, MIB, GIB, GIB};
    static const int64_t time_factors[] = {1000, 1, 1000, 60000, 3600000};
    if (type == HORON_CONFIG_BYTES)
        return parse_number(text, byte_units, byte_factors, value_out);
    if (type == HORON_CONFIG_TIME)
        return parse_number(text, time_units, time_factors, value_out);
    return parse_number(text, int_units, int_factors, value_out);
}

/* @return the index of @p text in the space-separated @p choices, or -1 */
static int64_t find_choice(const char *choices, const char *text)
{
    int64_t index = 0;
    size_t bytes = strlen(text);
    for (const char *word = choices; bytes; index++) {
        size_t word_bytes = strcspn(word, " ");
        if (word_bytes == bytes && strncasecmp(word, text, bytes) == 0)
            return index;
        if (!word[word_bytes])
            break;
        word += word_bytes + 1;
    }
    return -1;
}

static int64_t parse_bool(const char *text)
{
    int64_t index = find_choice("0 1 no yes false true off on", text);
    return index < 0 ? -1 : index % 2;
}

static horon_status_t refuse_switch(const char *variable, const char *text,
                                    struct horon_error *error)
{
    return horon_error_set(error, HORON_ERR_CONFIG, "%s=%s is neither 0 nor 1", variable, text);
}

/* In the largest unit of which it is a whole number. */
static void write_number(enum horon_config_type type, int64_t value, char *text, size_t bytes)
{
    static const struct {
        enum horon_config_type type;
        int64_t factor;
        const char *unit;
    } units[] = {{HORON_CONFIG_TIME, 3600000, "h"}, {HORON_CONFIG_TIME, 60000, "min"},
                 {HORON_CONFIG_TIME, 1000, "s"},    {HORON_CONFIG_TIME, 1, "ms"},
                 {HORON_CONFIG_BYTES, GIB, "g"},    {HORON_CONFIG_BYTES, MIB, "m"},
                 {HORON_CONFIG_BYTES, KIB, "k"}};
    for (size_t i = 0; value && i < sizeof units / sizeof units[0]; i++) {
        if (units[i].type != type || value % units[i].factor)
            continue;
        snprintf(text, bytes, "%lld%s", (long long)(value / units[i].factor), units[i].unit);
        return;
    }
    snprintf(text, bytes, "%lld", (long long)value);
}

void horon_config_bounds(const struct horon_config_row *row, char *text, size_t text_bytes)
{
    char min[32], max[32];
    assert(row->min <= row->max);
    write_number(row->type, row->min, min, sizeof min);
    write_number(row->type, row->max, max, sizeof max);
    snprintf(text, text_bytes, "%s..%s", min, max);
}

static horon_status_t parse_numeric(int64_t *field, const struct horon_config_row *row,
                                    const char *variable, const char *text,
                                    struct horon_error *error)
{
    if (!parse_integer(row->type, text, field))
        return horon_error_set(error, HORON_ERR_CONFIG, "%s=%s is not %s", variable, text,
                               row->type == HORON_CONFIG_BYTES  ? "a size such as 4096, 64k or 8m"
                               : row->type == HORON_CONFIG_TIME ? "a time such as 500ms or 2s"
                                                                : "a whole number");
    if (*field >= row->min && *field <= row->max)
        return HORON_OK;
    char bounds[72];
    horon_config_bounds(row, bounds, sizeof bounds);
    return horon_error_set(error, HORON_ERR_CONFIG, "%s=%s is out of bounds: it must lie in %s",
                           variable, text, bounds);
}

static horon_status_t refuse_choice(const struct horon_config_row *row, const char *variable,
                                    const char *text, struct horon_error *error)
{
    if (row->lacking && strcasecmp(text, row->lacking) == 0)
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "%s=%s is %s, which is not supported; there are: %s", variable, text,
                               row->lacking_is, row->choices);
    return horon_error_set(error, HORON_ERR_CONFIG, "%s=%s is none of: %s", variable, text,
                           row->choices);
}

static bool says_nothing(const struct horon_config_row *row, const char *text)
{
    return row->names && !text[strspn(text, BLANKS)];
}

/* Without the blanks around its names. @param to has room for all of it */
static void copy_names(char *to, const char *text)
{
    for (const char *name = text; name; name = strchr(name, ',') ? strchr(name, ',') + 1 : NULL) {
        name += strspn(name, BLANKS);
        size_t bytes = strcspn(name, ",");
        while (bytes > 0 && strchr(BLANKS, name[bytes - 1]))
            bytes--;
        memcpy(to, name, bytes);
        to += bytes;
        *to++ = ',';
    }
    to[-1] = 0;
}

horon_status_t horon_config_parse(struct horon_config *config, const struct horon_config_row *row,
                                  const char *variable, const char *text, struct horon_error *error)
{
    void *field = (char *)config + row->offset;
    assert(is_row(row));
    switch (row->type) {
    case HORON_CONFIG_INT:
    case HORON_CONFIG_BYTES:
    case HORON_CONFIG_TIME:
        return parse_numeric(field, row, variable, text, error);
    case HORON_CONFIG_BOOL:
        *(int64_t *)field = parse_bool(text);
        if (*(int64_t *)field < 0)
            return refuse_switch(variable, text, error);
        return HORON_OK;
    case HORON_CONFIG_WORD:
        *(int64_t *)field = find_choice(row->choices, text);
        /* what Horovod calls them; it has a level above error, which we have not */
        if (*(int64_t *)field < 0 && strcasecmp(text, "warning") == 0)
            *(int64_t *)field = find_choice(row->choices, "warn");
        if (*(int64_t *)field < 0 && strcasecmp(text, "fatal") == 0)
            *(int64_t *)field = find_choice(row->choices, "error");
        if (*(int64_t *)field < 0)
            return refuse_choice(row, variable, text, error);
        return HORON_OK;
    case HORON_CONFIG_TEXT:
        if (strlen(text) >= HORON_CONFIG_TEXT_BYTES)
            return horon_error_set(error, HORON_ERR_CONFIG, "%s is longer than %d bytes", variable,
                                   HORON_CONFIG_TEXT_BYTES - 1);
        if (row->choices && find_choice(row->choices, text) < 0)
            return refuse_choice(row, variable, text, error);
        if (row->names)
            copy_names(field, text);
        else
            memcpy(field, text, strlen(text) + 1);
        for (char *c = field; (row->choices || row->names) && *c; c++)
            *c = (char)tolower((unsigned char)*c); /* the one spelling by which ranks compare it */
        return HORON_OK;
    }
    return HORON_ERR_CONFIG;
}

const struct horon_config_word *horon_config_alias_word(const struct horon_config_row *row,
                                                        const char *text)
{
    for (const struct horon_config_word *word = row->alias_words; word && word->theirs; word++)
        if (strcasecmp(word->theirs, text) == 0)
            return word;
    return NULL;
}

static horon_status_t refuse_word(const struct horon_config_row *row, const char *variable,
                                  const char *text, struct horon_error *error)
{
    char known[128] = "";
    for (const struct horon_config_word *word = row->alias_words; word->theirs; word++)
        horon_text_add(known, sizeof known, " ", "%s", word->theirs);
    return horon_error_set(error, HORON_ERR_CONFIG, "%s=%s is none of: %s", variable, text, known);
}

/* The alias may count in another unit than ours, which is then appended to its text: a bare number,
 * so that no text of the user's becomes another unit by it. */
static horon_status_t parse_alias(struct horon_config *config, const struct horon_config_row *row,
                                  const char *variable, const char *text, struct horon_error *error)
{
    char with_unit[HORON_CONFIG_TEXT_BYTES];
    if (row->alias_unit) {
        size_t bytes = strlen(text), digits = strspn(text, "0123456789");
        if (bytes == 0 || digits != bytes)
            return horon_error_set(error, HORON_ERR_CONFIG, "%s=%s is not a whole number of %s",
                                   variable, text, row->alias_unit);
        snprintf(with_unit, sizeof with_unit, "%s%s", text, row->alias_unit);
        text = with_unit;
    }
    if (row->alias_words) {
        const struct horon_config_word *word = horon_config_alias_word(row, text);
        if (!word)
            return refuse_word(row, variable, text, error);
        text = word->ours;
    }
    return horon_config_parse(config, row, variable, text, error);
}

/* One that is there and empty, as where a manifest names them all, says nothing. */
static const char *read_theirs(const char *variable)
{
    const char *text = variable ? getenv(variable) : NULL;
    return text && *text ? text : NULL;
}

/* @return what an alias says; NULL: nothing that there is here */
static const char *read_alias(const struct horon_config_row *row, const char *variable)
{
    const char *text = read_theirs(variable);
    const struct horon_config_word *word = text ? horon_config_alias_word(row, text) : NULL;
    return word && !word->ours ? NULL : text;
}

horon_status_t horon_config_load_row(struct horon_config *config,
                                     const struct horon_config_row *row,
                                     enum horon_config_origin *origin, struct horon_error *error)
{
    char variable[96];
    snprintf(variable, sizeof variable, "HORON_%s", row->name);
    assert(!row->alias_off || row->type == HORON_CONFIG_TIME); /* "0" is a value of it */
    const char *text = getenv(variable);
    if (text && !says_nothing(row, text)) {
        *origin = HORON_CONFIG_FROM_ENVIRONMENT;
        return horon_config_parse(config, row, variable, text, error);
    }
    text = read_theirs(row->alias_off);
    const int64_t off = text ? parse_bool(text) : 0;
    if (off != 0) {
        *origin = HORON_CONFIG_FROM_ALIAS_OFF;
        return off < 0 ? refuse_switch(row->alias_off, text, error)
                       : horon_config_parse(config, row, row->alias_off, "0", error);
    }
    text = read_alias(row, row->alias);
    if (text) {
        *origin = HORON_CONFIG_FROM_ALIAS;
        return parse_alias(config, row, row->alias, text, error);
    }
    text = read_alias(row, row->alias_too);
    if (text) {
        *origin = HORON_CONFIG_FROM_ALIAS_TOO;
        return parse_alias(config, row, row->alias_too, text, error);
    }
    *origin = HORON_CONFIG_FROM_DEFAULT;
    return horon_config_parse(config, row, variable, row->dflt, error);
}

static horon_status_t say_unknown(const char *name, size_t name_bytes, struct horon_error *error)
{
    const struct horon_nearest nearest = nearest_row(name, name_bytes);
    const bool close = horon_nearest_is_close(&nearest);
    return horon_error_set(
        error, HORON_ERR_CONFIG, "no setting is called %.*s; %s%s", (int)name_bytes, name,
        close ? "nearest is " : "horon-info --config lists all", close ? nearest.name : "");
}

static horon_status_t load_setting(struct horon_config *config, const char *setting,
                                   enum horon_config_origin *origins, struct horon_error *error)
{
    const char *equals = strchr(setting, '=');
    if (!equals) /* only what looks like a name: the rest may be a key */
        return horon_error_set(error, HORON_ERR_CONFIG, "a setting, %.*s..., is not NAME=value",
                               (int)strspn(setting, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_"), setting);
    size_t name_bytes = (size_t)(equals - setting), count;
    const char *name = setting;
    if (name_bytes > 6 && strncmp(name, "HORON_", 6) == 0) {
        name += 6;
        name_bytes -= 6;
    }
    const struct horon_config_row *row = horon_config_find(name, name_bytes);
    if (!row)
        return say_unknown(name, name_bytes, error);
    if (says_nothing(row, equals + 1))
        return HORON_OK;
    if (origins)
        origins[row - horon_config_rows(&count)] = HORON_CONFIG_FROM_CALLER;
    return horon_config_parse(config, row, row->name, equals + 1, error);
}

horon_status_t horon_config_load(struct horon_config *config, const char *const *settings,
                                 enum horon_config_origin *origins, struct horon_error *error)
{
    size_t count;
    const struct horon_config_row *rows = horon_config_rows(&count);
    memset(config, 0, sizeof *config);
    for (size_t i = 0; i < count; i++) {
        enum horon_config_origin origin;
        horon_status_t status = horon_config_load_row(config, &rows[i], &origin, error);
        if (status != HORON_OK)
            return status;
        if (origins)
            origins[i] = origin;
    }
    for (; settings && *settings; settings++) {
        horon_status_t status = load_setting(config, *settings, origins, error);
        if (status != HORON_OK)
            return status;
    }
    return HORON_OK;
}

void horon_config_format(const struct horon_config *config, const struct horon_config_row *row,
                         char *text, size_t text_bytes)
{
    const void *field = (const char *)config + row->offset;
    assert(is_row(row));
    if (row->type == HORON_CONFIG_TEXT) {
        const char *value = field;
        snprintf(text, text_bytes, "%s", row->secret && value[0] ? "(set)" : value);
        return;
    }
    long long value = (long long)*(const int64_t *)field;
    if (row->type == HORON_CONFIG_WORD) {
        const char *word = row->choices;
        assert(value >= 0); /* the index of a choice */
        for (long long i = 0; i < value; i++)
            word += strcspn(word, " ") + 1;
        snprintf(text, text_bytes, "%.*s", (int)strcspn(word, " "), word);
    } else if (row->type == HORON_CONFIG_TIME) {
        snprintf(text, text_bytes, "%lldms", value);
    } else {
        snprintf(text, text_bytes, "%lld", value);
    }
}

uint64_t horon_config_agreed_hash(const struct horon_config *config)
{
    uint64_t hash = 0;
    size_t count;
    const struct horon_config_row *rows = horon_config_rows(&count);
    for (size_t i = 0; i < count; i++) {
        if (!rows[i].agreed)
            continue;
        char text[HORON_CONFIG_TEXT_BYTES + 64];
        int used = snprintf(text, sizeof text, "%s=", rows[i].name);
        horon_config_format(config, &rows[i], text + used, sizeof text - (size_t)used);
        hash = XXH3_64bits_withSeed(text, strlen(text), hash);
    }
    return hash;
}
