/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors become requests here: every rule of the ABI about a descriptor is checked in one
 * place. */
#include "engine/request.h"

#include "alloc.h"
#include "engine/team.h"
#include "engine/unagreed.h"
#include "versions.h"

#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Nearly all callers have the library's own version, which is read where it is; others become that
 * in @p room.
 * @param bounds_out can the caller say how much dst has room for? The first version could not */
static horon_status_t take_descriptor(const horon_descriptor_t *given, horon_descriptor_t *room,
                                      const horon_descriptor_t **desc_out, bool *bounds_out,
                                      struct horon_error *error)
{
    if (!given)
        return horon_error_set(error, HORON_ERR_INVALID, "the descriptor is NULL");
    *desc_out = given;
    *bounds_out = given->struct_bytes > offsetof(horon_descriptor_t, dst_count);
    if (given->struct_bytes == sizeof *given)
        return HORON_OK;
    *room = (horon_descriptor_t)HORON_DESCRIPTOR_INIT;
    *desc_out = room;
    return horon_struct_take("descriptor", given, offsetof(horon_descriptor_t, dst_count), room,
                             sizeof *room, error);
}

static horon_status_t check_memory(const horon_descriptor_t *desc, struct horon_error *error)
{
    if (desc->memory >= HORON_MEMORY_COUNT)
        return horon_error_set(error, HORON_ERR_INVALID, "memory %u does not exist", desc->memory);
    if (desc->memory == HORON_MEMORY_CUDA)
        return horon_error_set(error, HORON_ERR_UNSUPPORTED,
                               "this build moves host memory only, and memory is that of a CUDA "
                               "device");
    if (desc->stream)
        return horon_error_set(error, HORON_ERR_UNSUPPORTED,
                               "this build moves host memory only: stream must be NULL");
    if (desc->device)
        return horon_error_set(error, HORON_ERR_INVALID,
                               "device is %d, and host memory lies on none: it must be 0",
                               (int)desc->device);
    return HORON_OK;
}

static horon_status_t check_enums(const horon_descriptor_t *desc,
                                  const struct horon_engine_team *team, struct horon_error *error)
{
    if (desc->verb >= HORON_VERB_COUNT)
        return horon_error_set(error, HORON_ERR_INVALID, "verb %u does not exist", desc->verb);
    if (desc->dtype >= HORON_DTYPE_COUNT)
        return horon_error_set(error, HORON_ERR_INVALID, "dtype %u does not exist", desc->dtype);
    if (desc->flags & ~HORON_IN_ORDER)
        return horon_error_set(error, HORON_ERR_INVALID, "flags 0x%x are unknown", desc->flags);
    if (desc->reserved)
        return horon_error_set(error, HORON_ERR_INVALID, "reserved must be 0");
    const struct horon_verb_row *row = &horon_verb_rows[desc->verb];
    if (horon_verb_is_rooted(row) && (desc->root < 0 || desc->root >= team->view.size))
        return horon_error_set(error, HORON_ERR_INVALID, "%s %d is no rank of 0..%d",
                               row->paired ? "rank" : "root", (int)desc->root, team->view.size - 1);
    if (row->paired && desc->root == team->view.rank)
        return horon_error_set(error, HORON_ERR_INVALID,
                               "rank %d is this rank itself, and a message has another one at its "
                               "other end",
                               (int)desc->root);
    if (row->paired && (desc->flags & HORON_IN_ORDER))
        return horon_error_set(error, HORON_ERR_INVALID,
                               "a %s goes by its tag, and is in no order with other operations: "
                               "HORON_IN_ORDER must not be set",
                               row->name);
    if (horon_verb_reduces(row) && desc->redop >= HORON_REDOP_COUNT)
        return horon_error_set(error, HORON_ERR_INVALID, "reduction %u does not exist",
                               desc->redop);
    return HORON_OK;
}

/* Only reductions are not for all types. */
static horon_status_t check_backends(const struct horon_backends *backends,
                                     const struct horon_signature *agreed,
                                     struct horon_error *error)
{
    if (!horon_verb_reduces(horon_verb_of(agreed)) || horon_backends_have(backends, agreed))
        return HORON_OK;
    return horon_error_set(error, HORON_ERR_UNSUPPORTED, "%s has no %s",
                           horon_dtype_name((horon_dtype_t)agreed->dtype),
                           horon_redop_name((horon_redop_t)agreed->redop));
}

/* Elements and shape, from count or shape; the bytes must fit 63 bits. */
static horon_status_t take_shape(const horon_descriptor_t *desc, struct horon_operation *op,
                                 uint64_t element, struct horon_error *error)
{
    uint64_t *shape = op->agreed.shape;
    uint64_t count = 1, bytes;
    op->row_elements = 1;
    if (!desc->shape) {
        shape[0] = count = desc->count;
        op->agreed.ndim = 1;
    } else {
        if (desc->ndim < 0 || desc->ndim > HORON_NDIM_MAX)
            return horon_error_set(error, HORON_ERR_INVALID, "ndim %d is not in 0..%d",
                                   (int)desc->ndim, HORON_NDIM_MAX);
        for (int i = 0; i < desc->ndim; i++) {
            shape[i] = desc->shape[i];
            if (__builtin_mul_overflow(count, shape[i], &count))
                return horon_error_set(error, HORON_ERR_INVALID, "the shape has too many elements");
            op->row_elements *= i ? shape[i] : 1;
        }
        op->agreed.ndim = (uint32_t)desc->ndim;
    }
    if (__builtin_mul_overflow(count, element, &bytes) || bytes > INT64_MAX)
        return horon_error_set(error, HORON_ERR_INVALID, "the tensor has too many bytes");
    op->count = count;
    return HORON_OK;
}

/* Splits as equal as can be are none: ranks that give them agree with those that give nothing. */
static horon_status_t take_splits(const horon_descriptor_t *desc, struct horon_operation *op,
                                  int size, struct horon_error *error)
{
    uint64_t sum = 0;
    bool even = true;
    if (!horon_verb_splits(&horon_verb_rows[desc->verb]))
        return HORON_OK;
    if (op->agreed.ndim == 0)
        return horon_error_set(error, HORON_ERR_INVALID,
                               "a scalar has no rows that ranks could share");
    for (int rank = 0; desc->splits && rank < size; rank++) {
        even = even && desc->splits[rank] == horon_operation_rows(op, rank, size);
        if (__builtin_add_overflow(sum, desc->splits[rank], &sum))
            sum = UINT64_MAX;
    }
    if (desc->splits && sum != op->agreed.shape[0])
        return horon_error_set(error, HORON_ERR_INVALID,
                               "the splits add up to %llu rows, and src has %llu",
                               (unsigned long long)sum, (unsigned long long)op->agreed.shape[0]);
    op->splits = even ? NULL : desc->splits; /* the caller's, until keep_splits() */
    return HORON_OK;
}

/* Some bytes, but not all, are of both. */
static bool overlap(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes)
{
    const uintptr_t at = (uintptr_t)a, other = (uintptr_t)b;
    return at < other ? other - at < a_bytes : at > other && at - other < b_bytes;
}

/* Is dst where this rank's rows lie in src? Splits that do not add up are found elsewhere, and
 * whether there are any, if they are as equal as can be, makes no difference. */
static bool is_at_own_rows(const horon_descriptor_t *desc, const struct horon_operation *op,
                           uint64_t element, int rank, int size)
{
    const uint64_t rows = op->count / op->row_elements;
    uint64_t before = 0;
    for (int other = 0; other < rank; other++)
        before += desc->splits ? desc->splits[other] : horon_rows_even(rows, other, size);
    return (uintptr_t)desc->dst == (uintptr_t)desc->src + before * op->row_elements * element;
}

/* Of a rank that gets its share of the rows. */
static horon_status_t check_share(const horon_descriptor_t *desc, const struct horon_operation *op,
                                  uint64_t element, int rank, int size, struct horon_error *error)
{
    const uint64_t share = horon_operation_rows(op, rank, size) * op->row_elements;
    if (share == 0)
        return HORON_OK;
    if (!desc->dst)
        return horon_error_set(error, HORON_ERR_INVALID, "dst is NULL");
    if (desc->dst_count < share)
        return horon_error_set(error, HORON_ERR_INVALID,
                               "dst has room for %llu elements, and this rank's rows have %llu",
                               (unsigned long long)desc->dst_count, (unsigned long long)share);
    if (!is_at_own_rows(desc, op, element, rank, size) &&
        overlap(desc->src, op->count * element, desc->dst, share * element))
        return horon_error_set(error, HORON_ERR_INVALID,
                               "src and dst overlap; they must be equal or disjoint, or dst where "
                               "this rank's rows lie in src");
    return HORON_OK;
}

/* Where that is a form in place: does src lie in dst, or dst at its place in src? */
static bool is_in_place(const horon_descriptor_t *desc, const struct horon_operation *op,
                        uint64_t element, uint64_t dst_bytes, int rank, int size)
{
    const struct horon_verb_row *row = &horon_verb_rows[desc->verb];
    const uintptr_t src = (uintptr_t)desc->src, dst = (uintptr_t)desc->dst;
    const uint64_t bytes = op->count * element;
    if (row->ahead == HORON_AHEAD_ROWS) /* it is moved once all have told how many they give */
        return src >= dst && dst_bytes >= bytes && src - dst <= dst_bytes - bytes;
    return row->ahead == HORON_AHEAD_SPLITS && !row->apart &&
           is_at_own_rows(desc, op, element, rank, size);
}

static const char *forms_of(const struct horon_verb_row *row)
{
    if (row->apart)
        return "disjoint";
    if (row->ahead == HORON_AHEAD_ROWS)
        return "equal or disjoint, or src within the dst_count elements of dst";
    return row->ahead == HORON_AHEAD_SPLITS
               ? "equal or disjoint, or dst where this rank's rows lie in src"
               : "equal or disjoint";
}

static horon_status_t check_buffers(const horon_descriptor_t *desc,
                                    const struct horon_operation *op, uint64_t element, int rank,
                                    int size, struct horon_error *error)
{
    const struct horon_verb_row *row = &horon_verb_rows[desc->verb];
    const bool reads = horon_ranks_include(row->reads, desc->root, rank);
    const bool writes = horon_ranks_include(row->writes, desc->root, rank);
    const bool asks = row->ahead != HORON_AHEAD_NOTHING; /* for memory, if dst is NULL */
    const bool has_it = row->reads == HORON_RANKS_ROOT && reads;
    if (!horon_verb_moves(row) || op->count == 0)
        return HORON_OK;
    if (reads && !desc->src)
        return horon_error_set(error, HORON_ERR_INVALID, "src is NULL");
    if (horon_verb_splits(row))
        return check_share(desc, op, element, rank, size, error);
    if (writes && !desc->dst && !asks && !has_it)
        return horon_error_set(error, HORON_ERR_INVALID, "dst is NULL");
    const uint64_t bytes = op->count * element;
    uint64_t dst_bytes = bytes; /* at least, where what a rank gives comes back to it */
    if ((row->ahead == HORON_AHEAD_SPLITS || (asks && desc->dst_count > op->count)) &&
        __builtin_mul_overflow(desc->dst_count, element, &dst_bytes))
        dst_bytes = row->ahead == HORON_AHEAD_SPLITS ? bytes : UINT64_MAX;
    if (!reads || !writes || !desc->dst)
        return HORON_OK;
    if (row->apart && desc->src == desc->dst)
        return horon_error_set(error, HORON_ERR_INVALID,
                               "src and dst are equal, and %s has no form in place", row->name);
    if (overlap(desc->src, bytes, desc->dst, dst_bytes) &&
        !is_in_place(desc, op, element, dst_bytes, rank, size))
        return horon_error_set(error, HORON_ERR_INVALID, "src and dst overlap; they must be %s",
                               forms_of(row));
    return HORON_OK;
}

/* Where other ranks decide how much comes, a dst without room would fail once all have met, and
 * here only. No row of no elements needs room. */
static horon_status_t check_room(const horon_descriptor_t *desc, const struct horon_operation *op,
                                 int rank, struct horon_error *error)
{
    const struct horon_verb_row *row = &horon_verb_rows[desc->verb];
    if (row->ahead == HORON_AHEAD_NOTHING || !horon_ranks_include(row->writes, desc->root, rank))
        return HORON_OK;
    if (!desc->dst || desc->dst_count > 0 || op->row_elements == 0)
        return HORON_OK;
    return horon_error_set(error, HORON_ERR_INVALID,
                           "dst is given and dst_count is 0: the ranks decide together how much "
                           "%s gives, so that dst_count must say what dst has room for; or dst is "
                           "NULL",
                           row->name);
}

static horon_status_t check_name(const horon_descriptor_t *desc, struct horon_error *error)
{
    const struct horon_verb_row *row = &horon_verb_rows[desc->verb];
    if (desc->name && row->paired)
        return horon_error_set(error, HORON_ERR_INVALID, "a %s goes by its tag: name must be NULL",
                               row->name);
    if (!desc->name) {
        if ((desc->flags & HORON_IN_ORDER) || row->unnamed || row->paired)
            return HORON_OK;
        return horon_error_set(error, HORON_ERR_INVALID,
                               "name is NULL; only an operation in order needs none");
    }
    size_t bytes = strnlen(desc->name, HORON_NAME_BYTES_MAX + 1);
    if (bytes == 0 || bytes > HORON_NAME_BYTES_MAX)
        return horon_error_set(error, HORON_ERR_INVALID, "the name must have 1..%d bytes",
                               HORON_NAME_BYTES_MAX);
    const struct horon_verb_row *reserver = horon_verb_reserves(desc->name);
    if (reserver)
        return horon_error_set(error, HORON_ERR_INVALID,
                               "names that begin with %s are those of %ss without a name",
                               reserver->unnamed, reserver->name);
    return HORON_OK;
}

/* All but the shape, which is there. */
static void sign(struct horon_operation *op, const horon_descriptor_t *desc, int size)
{
    struct horon_signature *agreed = &op->agreed;
    agreed->prescale = desc->prescale;
    agreed->postscale = desc->postscale;
    agreed->verb = (uint8_t)desc->verb;
    agreed->dtype = (uint8_t)desc->dtype;
    agreed->redop = (uint8_t)desc->redop;
    agreed->memory = HORON_MEMORY_HOST; /* as check_memory() found */
    agreed->root = desc->root;
    agreed->team = desc->process_set;
    if (horon_verb_splits(horon_verb_of(agreed)))
        agreed->root = op->splits ? horon_splits_hash(op->splits, size) : 0;
    horon_signature_make_canonical(agreed);
}

/* The room of a request: for what is learned, and behind it for splits. */
static horon_status_t make_rows(struct horon_request *request)
{
    const size_t size = (size_t)request->size;
    assert(request->size >= 1);
    if (request->rows_limit < request->size) {
        horon_free(request->rows_room);
        request->rows_room = horon_zalloc(2 * size, sizeof *request->rows_room);
        request->rows_limit = request->rows_room ? request->size : 0;
    }
    return request->rows_room ? HORON_OK : HORON_ERR_MEMORY;
}

/* @param splits_out [size] what the caller says, or as many rows for each rank */
static horon_status_t fill_splits(const horon_descriptor_t *desc, uint64_t rows, int size,
                                  uint64_t *splits_out, struct horon_error *error)
{
    const struct horon_verb_row *row = &horon_verb_rows[desc->verb];
    uint64_t given = 0;
    if (!desc->splits && rows % (uint64_t)size && !row->uneven)
        return horon_error_set(error, HORON_ERR_INVALID,
                               "%llu rows cannot be split evenly among %d ranks: give splits",
                               (unsigned long long)rows, size);
    for (int rank = 0; rank < size; rank++) {
        splits_out[rank] = desc->splits ? desc->splits[rank] : horon_rows_even(rows, rank, size);
        if (__builtin_add_overflow(given, splits_out[rank], &given))
            return horon_error_set(error, HORON_ERR_INVALID,
                                   "the splits add up to more rows than 64 bits count");
    }
    if (given != rows)
        return horon_error_set(error, HORON_ERR_INVALID,
                               "the splits add up to %llu rows, and src has %llu",
                               (unsigned long long)given, (unsigned long long)rows);
    return HORON_OK;
}

/* What ranks tell each other: rows, or those for each rank. One that reads no src has none. */
static horon_status_t fill_ahead(struct horon_request *request, const horon_descriptor_t *desc,
                                 int rank, struct horon_error *error)
{
    const struct horon_verb_row *row = &horon_verb_rows[desc->verb];
    struct horon_operation *op = &request->op;
    if (make_rows(request) != HORON_OK)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for a request");
    request->output_rows = request->rows_room;
    op->output = horon_request_take_output;
    op->output_arg = request;
    request->rows = op->agreed.ndim ? op->agreed.shape[0] : 1;
    op->ahead = &request->rows;
    if (!horon_ranks_include(row->reads, desc->root, rank))
        request->rows = op->count = 0;
    if (row->ahead != HORON_AHEAD_SPLITS)
        return HORON_OK;
    if (op->agreed.ndim == 0)
        return horon_error_set(error, HORON_ERR_INVALID,
                               "a scalar has no rows that ranks could share");
    uint64_t *splits = request->rows_room + request->rows_limit;
    op->ahead = splits;
    if (horon_ranks_include(row->reads, desc->root, rank))
        return fill_splits(desc, request->rows, request->size, splits, error);
    memset(splits, 0, (size_t)request->size * sizeof *splits);
    return HORON_OK;
}

static void fill_operation(struct horon_request *request, const horon_descriptor_t *desc, int rank)
{
    struct horon_operation *op = &request->op;
    const struct horon_verb_row *row = &horon_verb_rows[desc->verb];
    if (!horon_verb_moves(row))
        op->count = 0;
    sign(op, desc, request->size);
    const bool writes = horon_ranks_include(row->writes, desc->root, rank);
    request->part =
        (struct horon_part){.src = desc->src, .dst = writes ? desc->dst : NULL, .count = op->count};
    op->parts = &request->part;
    op->part_count = 1;
    op->device = desc->device;
    op->stream = desc->stream;
    request->self = request;
    request->work.op = op;
    request->work.requests = &request->self;
    request->work.count = 1;
    request->set = (uint32_t)desc->process_set;
    request->verb = (uint8_t)desc->verb;
    request->is_plain = !op->output && !horon_verb_splits(row) && row->writes == HORON_RANKS_ALL;
    request->in_order = desc->flags & HORON_IN_ORDER;
    request->paired = row->paired;
    request->message.tag = desc->tag;
    request->dst_count = desc->dst_count;
    request->alloc = desc->alloc;
    request->alloc_arg = desc->alloc_arg;
    request->callback = desc->callback;
    request->callback_arg = desc->callback_arg;
}

/* In order a name is only compared, and not kept. */
static horon_status_t take_name(struct horon_request *request, const char *name,
                                struct horon_names *names)
{
    struct horon_operation *op = &request->op;
    if (name && request->in_order) {
        op->name_hash = horon_name_hash(name, strlen(name));
    } else if (name) {
        request->name = horon_names_get(names, (uint32_t)op->agreed.team, name);
        if (!request->name)
            return HORON_ERR_MEMORY;
        op->name = request->name->text;
        op->name_bytes = request->name->bytes;
        op->name_hash = request->name->hash;
    } else if (request->paired) {
        return HORON_OK; /* its two ends compare it field by field */
    }
    op->hash = op->check = horon_signature_hash(&op->agreed, op->name_hash);
    request->subject = op->name_hash;
    return HORON_OK;
}

void horon_request_number_unnamed(struct horon_request *request, uint64_t number)
{
    struct horon_operation *op = &request->op;
    assert(!request->name && !request->in_order);
    op->name_bytes =
        (uint32_t)snprintf(request->number_name, sizeof request->number_name, "%s%llu",
                           horon_verb_of(&op->agreed)->unnamed, (unsigned long long)number);
    assert(op->name_bytes < sizeof request->number_name);
    op->name = request->number_name;
    op->name_hash = request->subject = horon_name_hash(op->name, op->name_bytes);
}

void horon_request_hold_unnamed(struct horon_request *request)
{
    assert(!request->name && !request->in_order);
    snprintf(request->number_name, sizeof request->number_name, "%s(not numbered yet)",
             horon_verb_of(&request->op.agreed)->unnamed);
    request->op.name = request->number_name;
}

/* What the ranks agree on is copied. */
static horon_status_t keep_splits(struct horon_request *request)
{
    if (!request->op.splits)
        return HORON_OK;
    if (make_rows(request) != HORON_OK)
        return HORON_ERR_MEMORY;
    request->op.splits = memcpy(request->rows_room + request->rows_limit, request->op.splits,
                                (size_t)request->size * sizeof *request->op.splits);
    return HORON_OK;
}

void horon_request_belong(struct horon_request *request, struct horon_engine_team *team)
{
    request->team = team;
    request->message.peer = team->id == 0 ? request->op.agreed.root : -1; /* it looks later */
    horon_team_ref(team);
    atomic_store_explicit(&request->refs, 1, memory_order_relaxed);
}

horon_status_t horon_request_init(struct horon_request *request, const horon_descriptor_t *given,
                                  struct horon_engine_team *team, struct horon_names *names,
                                  struct horon_error *error)
{
    horon_descriptor_t room;
    const horon_descriptor_t *desc;
    const int rank = team->view.rank, size = team->view.size;
    uint64_t element = 0;
    bool bounds = false;
    horon_status_t status = take_descriptor(given, &room, &desc, &bounds, error);
    if (status == HORON_OK)
        status = check_enums(desc, team, error);
    if (status == HORON_OK)
        status = check_memory(desc, error);
    if (status == HORON_OK)
        status = check_name(desc, error);
    if (status == HORON_OK) {
        element = horon_dtype_bytes((horon_dtype_t)desc->dtype);
        status = take_shape(desc, &request->op, element, error);
    }
    if (status == HORON_OK)
        status = take_splits(desc, &request->op, size, error);
    if (status == HORON_OK && horon_backends_in_order_only(team->backends))
        status = horon_unagreed_take(desc, &request->op, rank, error);
    if (status == HORON_OK)
        status = check_buffers(desc, &request->op, element, rank, size, error);
    if (status == HORON_OK && bounds)
        status = check_room(desc, &request->op, rank, error);
    if (status != HORON_OK)
        return status;
    assert(!request->team && !request->name && !request->owned_output && !request->error_text);
    request->rank = rank;
    request->size = size;
    if (horon_verb_rows[desc->verb].ahead != HORON_AHEAD_NOTHING)
        status = fill_ahead(request, desc, rank, error);
    fill_operation(request, desc, rank);
    if (status == HORON_OK)
        status = check_backends(team->backends, &request->op.agreed, error);
    if (status != HORON_OK) {
        horon_request_deinit(request, names);
        return status;
    }
    horon_request_belong(request, team);
    request->start.request = request->cancel.request = request->drop.request = request;
    static_assert(HORON_POST_START == 0, "as the memory is");
    request->cancel.kind = HORON_POST_CANCEL;
    request->drop.kind = HORON_POST_DROP;
    status = keep_splits(request);
    if (status == HORON_OK)
        status = take_name(request, desc->name, names);
    if (status != HORON_OK) {
        horon_request_deinit(request, names);
        return horon_error_set(error, status, "no memory for a request");
    }
    if (desc == given && !desc->name && !desc->shape && !desc->splits)
        request->said = *desc;
    return HORON_OK;
}

horon_status_t horon_request_move(struct horon_request *request, const horon_descriptor_t *desc,
                                  struct horon_error *error)
{
    const struct horon_operation *op = &request->op;
    const struct horon_verb_row *row = &horon_verb_rows[desc->verb];
    const int rank = request->rank, size = request->size;
    const uint64_t element = horon_dtype_bytes((horon_dtype_t)desc->dtype);
    assert(desc->verb == op->agreed.verb && !desc->shape && !op->splits);
    if (request->said.src == desc->src && request->said.dst == desc->dst)
        return HORON_OK;
    horon_status_t status = check_buffers(desc, op, element, rank, size, error);
    if (status == HORON_OK)
        status = check_room(desc, op, rank, error);
    if (status != HORON_OK)
        return status;
    request->part.src = desc->src;
    request->part.dst = horon_ranks_include(row->writes, desc->root, rank) ? desc->dst : NULL;
    request->said.src = desc->src;
    request->said.dst = desc->dst;
    return HORON_OK;
}

void horon_request_deinit(struct horon_request *request, struct horon_names *names)
{
    if (request->name)
        horon_names_put(names, request->name);
    if (request->team)
        horon_team_unref(request->team);
    horon_free(request->error_text);
    horon_free(request->owned_output);
    request->team = NULL;
    request->name = NULL;
    request->error_text = NULL;
    request->owned_output = NULL;
    request->output_rows = NULL;
    request->op.splits = NULL;
}

/* Of a name in a text, so that the cause behind it has room. */
#define NAME_SHOWN 160

void horon_request_describe(const struct horon_request *request, char *text, size_t text_bytes)
{
    const struct horon_operation *op = &request->op;
    const char *verb = horon_verb_of(&op->agreed)->name;
    char shown[NAME_SHOWN + 1];
    const bool sends = horon_verb_of(&op->agreed)->reads != HORON_RANKS_NONE;
    const int peer = request->message.peer;
    if (request->joins)
        snprintf(text, text_bytes, "join");
    else if (request->paired)
        snprintf(text, text_bytes, "%s of %llu %s %s rank %d%s, tag %llu", verb,
                 (unsigned long long)op->count, horon_dtype_name((horon_dtype_t)op->agreed.dtype),
                 sends ? "to" : "from", peer < 0 ? (int)op->agreed.root : peer,
                 peer < 0 ? " of its process set" : "", (unsigned long long)request->message.tag);
    else if (request->in_order)
        snprintf(text, text_bytes, "%s of %llu %s (in order)", verb, (unsigned long long)op->count,
                 horon_dtype_name((horon_dtype_t)op->agreed.dtype));
    else
        snprintf(text, text_bytes, "%s '%s'", verb,
                 op->name ? horon_name_show(op->name, shown, sizeof shown) : "");
}
