/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks must agree on about a tensor. A description is kept in one canonical form: whatever
 * does not count for the verb is set to a fixed value, so that two descriptions agree exactly if
 * their bytes do, and a caller's left-over root on an allreduce is no mismatch.
 */
#include "internal.h"

#include <stdio.h>

static void make_canonical(struct coord_desc *desc)
{
    struct coord_key *key = &desc->key;
    key->zero = 0;
    key->zero_too = 0;
    desc->zero = 0;
    if (key->verb != HORON_ALLREDUCE) {
        key->redop = 0;
        key->prescale = 1;
        key->postscale = 1;
    }
    if (key->verb != HORON_BROADCAST)
        key->root = 0;
    if (key->verb == HORON_BARRIER) {
        key->dtype = 0;
        desc->ndim = 0;
    }
    if (key->verb == HORON_ALLGATHER && desc->ndim > 0)
        desc->shape[0] = 0; /* rows are each rank's own */
    for (uint32_t i = desc->ndim; i < HORON_NDIM_MAX; i++)
        desc->shape[i] = 0;
    if (desc->group_size == 0) {
        desc->group_hash = 0;
        desc->group_index = 0;
    }
}

static bool is_valid(const struct coord_desc *desc)
{
    return desc->key.verb < HORON_VERB_COUNT && desc->key.dtype < HORON_DTYPE_COUNT &&
           desc->key.redop < HORON_REDOP_COUNT && desc->ndim <= HORON_NDIM_MAX;
}

bool horon_coord_desc_from(const struct horon_tensor *tensor, struct coord_desc *desc)
{
    memset(desc, 0, sizeof *desc);
    desc->key = (struct coord_key){
        .verb = tensor->verb,
        .dtype = tensor->dtype,
        .redop = tensor->redop,
        .root = tensor->root,
        .process_set = tensor->process_set,
        .prescale = tensor->prescale,
        .postscale = tensor->postscale,
    };
    desc->ndim = tensor->ndim;
    memcpy(desc->shape, tensor->shape, sizeof desc->shape);
    desc->group_hash = tensor->group_hash;
    desc->group_size = tensor->group_size;
    desc->group_index = tensor->group_index;
    if (!is_valid(desc))
        return false;
    make_canonical(desc);
    return true;
}

uint64_t horon_coord_desc_bytes(const struct coord_desc *desc)
{
    if (desc->key.verb == HORON_BARRIER)
        return 0;
    uint64_t bytes = horon_dtype_bytes((horon_dtype_t)desc->key.dtype);
    for (uint32_t i = 0; i < desc->ndim; i++)
        if (__builtin_mul_overflow(bytes, desc->shape[i], &bytes))
            bytes = UINT64_MAX;
    return bytes;
}

/* ---- On the wire: what stands at its usual value is left out --------------------------------- */

#define WIRE_SCALED 1u
#define WIRE_GROUPED 2u
#define WIRE_SET 4u

static uint8_t wire_flags(const struct coord_desc *desc)
{
    const double one = 1;
    unsigned flags = 0;
    if (memcmp(&desc->key.prescale, &one, sizeof one) ||
        memcmp(&desc->key.postscale, &one, sizeof one))
        flags |= WIRE_SCALED;
    if (desc->group_size)
        flags |= WIRE_GROUPED;
    if (desc->key.process_set)
        flags |= WIRE_SET;
    return (uint8_t)flags;
}

void horon_coord_desc_write(struct horon_writer *out, const struct coord_desc *desc)
{
    uint8_t flags = wire_flags(desc);
    horon_write_u8(out, flags);
    horon_write_u8(out, desc->key.verb);
    horon_write_u8(out, desc->key.dtype);
    horon_write_u8(out, desc->key.redop);
    horon_write_varint(out, (uint32_t)desc->key.root);
    horon_write_u8(out, (uint8_t)desc->ndim);
    for (uint32_t i = 0; i < desc->ndim; i++)
        horon_write_varint(out, desc->shape[i]);
    if (flags & WIRE_SCALED) {
        horon_write_double(out, desc->key.prescale);
        horon_write_double(out, desc->key.postscale);
    }
    if (flags & WIRE_GROUPED) {
        horon_write_u64(out, desc->group_hash);
        horon_write_varint(out, desc->group_size);
        horon_write_varint(out, desc->group_index);
    }
    if (flags & WIRE_SET)
        horon_write_u32(out, (uint32_t)desc->key.process_set);
}

static uint32_t read_u32_varint(struct horon_reader *in)
{
    uint64_t value = horon_read_varint(in);
    if (value > UINT32_MAX)
        in->ok = false;
    return (uint32_t)value;
}

void horon_coord_desc_read(struct horon_reader *in, struct coord_desc *desc)
{
    memset(desc, 0, sizeof *desc);
    uint8_t flags = horon_read_u8(in);
    desc->key.verb = horon_read_u8(in);
    desc->key.dtype = horon_read_u8(in);
    desc->key.redop = horon_read_u8(in);
    desc->key.root = (int32_t)read_u32_varint(in);
    desc->ndim = horon_read_u8(in);
    desc->key.prescale = 1;
    desc->key.postscale = 1;
    if (!in->ok || !is_valid(desc) || flags > (WIRE_SCALED | WIRE_GROUPED | WIRE_SET)) {
        in->ok = false;
        memset(desc, 0, sizeof *desc);
        return;
    }
    for (uint32_t i = 0; i < desc->ndim; i++)
        desc->shape[i] = horon_read_varint(in);
    if (flags & WIRE_SCALED) {
        desc->key.prescale = horon_read_double(in);
        desc->key.postscale = horon_read_double(in);
    }
    if (flags & WIRE_GROUPED) {
        desc->group_hash = horon_read_u64(in);
        desc->group_size = read_u32_varint(in);
        desc->group_index = read_u32_varint(in);
    }
    if (flags & WIRE_SET)
        desc->key.process_set = (int32_t)horon_read_u32(in);
    make_canonical(desc);
}

/* ---- Two sides of a conflict in words -------------------------------------------------------- */

enum aspect { VERB, SET, DTYPE, SHAPE, REDOP, ROOT, PRESCALE, POSTSCALE, GROUP };

static const char *const aspect_words[] = {
    [VERB] = "verbs",         [SET] = "process sets",     [DTYPE] = "dtypes",
    [SHAPE] = "shapes",       [REDOP] = "reductions",     [ROOT] = "roots",
    [PRESCALE] = "prescales", [POSTSCALE] = "postscales", [GROUP] = "groups",
};

/* The first aspect that differs, the one that a reader should mend first. */
static enum aspect first_difference(const struct coord_desc *a, const struct coord_desc *b)
{
    const struct coord_key *x = &a->key, *y = &b->key;
    if (x->verb != y->verb)
        return VERB;
    if (x->process_set != y->process_set)
        return SET;
    if (x->dtype != y->dtype)
        return DTYPE;
    if (a->ndim != b->ndim || memcmp(a->shape, b->shape, sizeof a->shape))
        return SHAPE;
    if (x->redop != y->redop)
        return REDOP;
    if (x->root != y->root)
        return ROOT;
    if (memcmp(&x->prescale, &y->prescale, sizeof x->prescale))
        return PRESCALE;
    if (memcmp(&x->postscale, &y->postscale, sizeof x->postscale))
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

static void say_tensor(struct words *out, const struct coord_desc *desc)
{
    if (desc->key.verb == HORON_BARRIER)
        return;
    say(out, "%s [", horon_dtype_name((horon_dtype_t)desc->key.dtype));
    for (uint32_t i = 0; i < desc->ndim; i++)
        if (i == 0 && desc->key.verb == HORON_ALLGATHER)
            say(out, "*");
        else
            say(out, "%s%llu", i ? ", " : "", (unsigned long long)desc->shape[i]);
    say(out, "]");
}

static void say_side(struct words *out, const char *who, const struct coord_desc *desc,
                     enum aspect aspect)
{
    say(out, "%s has ", who);
    if (aspect == VERB || desc->key.verb == HORON_BARRIER)
        say(out, "%s ", horon_verb_name((horon_verb_t)desc->key.verb));
    say_tensor(out, desc);
    switch (aspect) {
    case SET:
        say(out, " on process set %d", desc->key.process_set);
        break;
    case REDOP:
        say(out, " %s", horon_redop_name((horon_redop_t)desc->key.redop));
        break;
    case ROOT:
        say(out, " from root %d", desc->key.root);
        break;
    case PRESCALE:
        say(out, " with prescale %.17g", desc->key.prescale);
        break;
    case POSTSCALE:
        say(out, " with postscale %.17g", desc->key.postscale);
        break;
    case GROUP:
        if (desc->group_size)
            say(out, " as tensor %u of a group of %u", desc->group_index + 1, desc->group_size);
        else
            say(out, " in no group");
        break;
    case VERB:
    case DTYPE:
    case SHAPE:
        break;
    }
}

void horon_coord_desc_conflict(char *text, size_t text_bytes, const char *name, const char *who_a,
                               const struct coord_desc *a, const char *who_b,
                               const struct coord_desc *b)
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
}
