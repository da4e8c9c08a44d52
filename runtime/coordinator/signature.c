/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signatures, as ranks tell each other of them and as a user reads of them. On the wire only what
 * is not at its usual value is written; whatever is read becomes canonical.
 */
#include "internal.h"

#include <stdio.h>

/* ---- On the wire: what stands at its usual value is left out --------------------------------- */

#define WIRE_SCALED 1u
#define WIRE_GROUPED 2u
#define WIRE_SET 4u
#define WIRE_MEMORY 8u

static uint8_t usual_memory(const struct horon_signature *signature)
{
    return horon_verb_moves(horon_verb_of(signature)) ? HORON_MEMORY_HOST : HORON_MEMORY_ASK;
}

static uint8_t wire_flags(const struct horon_signature *signature)
{
    const double one = 1;
    unsigned flags = 0;
    if (memcmp(&signature->prescale, &one, sizeof one) ||
        memcmp(&signature->postscale, &one, sizeof one))
        flags |= WIRE_SCALED;
    if (signature->group_size)
        flags |= WIRE_GROUPED;
    if (signature->team)
        flags |= WIRE_SET;
    if (signature->memory != usual_memory(signature))
        flags |= WIRE_MEMORY;
    return (uint8_t)flags;
}

void horon_coord_signature_write(struct horon_writer *out, const struct horon_signature *signature)
{
    assert(horon_signature_is_valid(signature));
    uint8_t flags = wire_flags(signature);
    horon_write_u8(out, flags);
    horon_write_u8(out, signature->verb);
    horon_write_u8(out, signature->dtype);
    horon_write_u8(out, signature->redop);
    horon_write_varint(out, (uint32_t)signature->root);
    horon_write_u8(out, (uint8_t)signature->ndim);
    for (uint32_t i = 0; i < signature->ndim; i++)
        horon_write_varint(out, signature->shape[i]);
    if (flags & WIRE_SCALED) {
        horon_write_double(out, signature->prescale);
        horon_write_double(out, signature->postscale);
    }
    if (flags & WIRE_GROUPED) {
        horon_write_u64(out, signature->group_hash);
        horon_write_varint(out, signature->group_size);
        horon_write_varint(out, signature->group_index);
    }
    if (flags & WIRE_SET)
        horon_write_u32(out, (uint32_t)signature->team);
    if (flags & WIRE_MEMORY)
        horon_write_u8(out, signature->memory);
}

static uint32_t read_u32_varint(struct horon_reader *in)
{
    uint64_t value = horon_read_varint(in);
    if (value > UINT32_MAX)
        in->ok = false;
    return (uint32_t)value;
}

/* Would a rank have accepted this of its caller? */
static bool makes_sense(const struct horon_signature *signature, int size)
{
    const struct horon_verb_row *row = horon_verb_of(signature);
    if (horon_verb_is_rooted(row) && (signature->root < 0 || signature->root >= size))
        return false;
    const bool shares_rows = horon_verb_splits(row) || row->ahead == HORON_AHEAD_SPLITS;
    return !row->paired && (signature->ndim > 0 || !shares_rows);
}

void horon_coord_signature_read(struct horon_reader *in, int size,
                                struct horon_signature *signature)
{
    memset(signature, 0, sizeof *signature);
    uint8_t flags = horon_read_u8(in);
    signature->verb = horon_read_u8(in);
    signature->dtype = horon_read_u8(in);
    signature->redop = horon_read_u8(in);
    signature->root = (int32_t)read_u32_varint(in);
    signature->ndim = horon_read_u8(in);
    signature->prescale = 1;
    signature->postscale = 1;
    if (!in->ok || !horon_signature_is_valid(signature) || !makes_sense(signature, size) ||
        flags > (WIRE_SCALED | WIRE_GROUPED | WIRE_SET | WIRE_MEMORY)) {
        in->ok = false;
        memset(signature, 0, sizeof *signature);
        return;
    }
    for (uint32_t i = 0; i < signature->ndim; i++)
        signature->shape[i] = horon_read_varint(in);
    if (flags & WIRE_SCALED) {
        signature->prescale = horon_read_double(in);
        signature->postscale = horon_read_double(in);
    }
    if (flags & WIRE_GROUPED) {
        signature->group_hash = horon_read_u64(in);
        signature->group_size = read_u32_varint(in);
        signature->group_index = read_u32_varint(in);
    }
    if (flags & WIRE_SET)
        signature->team = (int32_t)horon_read_u32(in);
    signature->memory = flags & WIRE_MEMORY ? horon_read_u8(in) : usual_memory(signature);
    if (horon_signature_is_valid(signature))
        horon_signature_make_canonical(signature);
    else
        in->ok = false;
    if (horon_signature_bytes(signature) == UINT64_MAX) /* no memory has so many */
        in->ok = false;
}

/* ---- Two sides of a conflict in words -------------------------------------------------------- */

enum aspect { VERB, SET, DTYPE, MEMORY, SHAPE, REDOP, ROOT, SPLITS, PRESCALE, POSTSCALE, GROUP };

static const char *const aspect_words[] = {
    [VERB] = "verbs",         [SET] = "process sets",
    [DTYPE] = "dtypes",       [MEMORY] = "kinds of memory",
    [SHAPE] = "shapes",       [REDOP] = "reductions",
    [ROOT] = "roots",         [SPLITS] = "splits",
    [PRESCALE] = "prescales", [POSTSCALE] = "postscales",
    [GROUP] = "groups",
};

static const char *const memory_words[HORON_MEMORY_COUNT] = {
    [HORON_MEMORY_ASK] = "unknown", [HORON_MEMORY_HOST] = "host", [HORON_MEMORY_CUDA] = "cuda"};

/* The first aspect that differs, the one that a reader should mend first. */
static enum aspect first_difference(const struct horon_signature *a,
                                    const struct horon_signature *b)
{
    if (a->verb != b->verb)
        return VERB;
    if (a->team != b->team)
        return SET;
    if (a->dtype != b->dtype)
        return DTYPE;
    if (a->memory != b->memory)
        return MEMORY;
    if (a->ndim != b->ndim || memcmp(a->shape, b->shape, sizeof a->shape))
        return SHAPE;
    if (a->redop != b->redop)
        return REDOP;
    if (a->root != b->root)
        return horon_verb_splits(horon_verb_of(a)) ? SPLITS : ROOT;
    if (memcmp(&a->prescale, &b->prescale, sizeof a->prescale))
        return PRESCALE;
    if (memcmp(&a->postscale, &b->postscale, sizeof a->postscale))
        return POSTSCALE;
    return GROUP;
}

struct words {
    char *text;
    size_t used, limit;
};

__attribute__((format(printf, 2, 3))) static void say(struct words *out, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int wrote = vsnprintf(out->text + out->used, out->limit - out->used, format, args);
    va_end(args);
    if (wrote > 0)
        out->used += (size_t)wrote;
    if (out->used >= out->limit)
        out->used = out->limit - 1; /* cut; limit is at least 1 */
}

static void say_tensor(struct words *out, const struct horon_signature *signature)
{
    const struct horon_verb_row *row = horon_verb_of(signature);
    if (!horon_verb_moves(row))
        return;
    say(out, "%s [", horon_dtype_name((horon_dtype_t)signature->dtype));
    for (uint32_t i = 0; i < signature->ndim; i++)
        if (i == 0 && horon_verb_rows_differ(row))
            say(out, "*");
        else
            say(out, "%s%llu", i ? ", " : "", (unsigned long long)signature->shape[i]);
    say(out, "]");
}

static void say_side(struct words *out, const char *rank_name,
                     const struct horon_signature *signature, enum aspect aspect)
{
    say(out, "%s has ", rank_name);
    const struct horon_verb_row *row = horon_verb_of(signature);
    if (aspect == VERB || !horon_verb_moves(row))
        say(out, "%s ", row->name);
    say_tensor(out, signature);
    switch (aspect) {
    case MEMORY:
        say(out, " in %s memory", memory_words[signature->memory]);
        break;
    case SET:
        say(out, " on process set %d", signature->team);
        break;
    case REDOP:
        say(out, " %s", horon_redop_name((horon_redop_t)signature->redop));
        break;
    case ROOT:
        say(out, " from root %d", signature->root);
        break;
    case SPLITS:
        say(out, signature->root ? " with splits of its own" : " split evenly");
        break;
    case PRESCALE:
        say(out, " with prescale %.17g", signature->prescale);
        break;
    case POSTSCALE:
        say(out, " with postscale %.17g", signature->postscale);
        break;
    case GROUP:
        if (signature->group_size)
            say(out, " as tensor %u of a group of %u", signature->group_index + 1,
                signature->group_size);
        else
            say(out, " in no group");
        break;
    case VERB:
    case DTYPE:
    case SHAPE:
        break;
    }
}

horon_cause_t horon_coord_conflict(char *text, size_t text_bytes, const char *name,
                                   const char *who_a, const struct horon_signature *a,
                                   const char *who_b, const struct horon_signature *b)
{
    enum aspect aspect = first_difference(a, b);
    struct words out = {.text = text, .limit = text_bytes};
    char shown[COORD_NAME_SHOWN + 1];
    say(&out, "tensor '%s': ", horon_name_show(name, shown, sizeof shown));
    say_side(&out, who_a, a, aspect);
    say(&out, ", ");
    say_side(&out, who_b, b, aspect);
    /* said of a member that stands at the same place on both sides */
    const bool others =
        aspect == GROUP && a->group_size == b->group_size && a->group_index == b->group_index;
    say(&out, ": %s%s differ", others ? "the other tensors of their " : "", aspect_words[aspect]);
    if (aspect == VERB)
        return HORON_CAUSE_VERB;
    return aspect == GROUP ? HORON_CAUSE_GROUP : HORON_CAUSE_DESCRIPTION;
}
