/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One operation, from the positional arguments of submit(), prepare() and each tuple of
 * submit_group() to a descriptor of the C ABI and the objects that must outlive it.
 *
 * Nothing is written beyond an output: one that is as large as the input is compared with it here,
 * and one whose size the ranks decide together, or share, goes with its capacity. A verb that the
 * table below has no row for is refused, as nobody here knows how large its output is.
 *
 * Reductions have Horovod's numbers wherever Python names one; the table here makes them horon.h's.
 * Scale factors are what Horovod's CPU path makes of them.
 */
#include "_horon_request.h"
#include "_horon_set.h"

#include <string.h>

static const struct horon_py_verb verbs[HORON_VERB_COUNT] = {
    [HORON_ALLREDUCE] = {.constant = "ALLREDUCE", .output = HORON_PY_OUTPUT_LIKE_INPUT},
    [HORON_BROADCAST] = {.constant = "BROADCAST", .output = HORON_PY_OUTPUT_LIKE_INPUT},
    [HORON_ALLGATHER] = {.constant = "ALLGATHER", .output = HORON_PY_OUTPUT_ROWS},
    [HORON_BARRIER] = {.constant = "BARRIER", .output = HORON_PY_OUTPUT_NONE},
    [HORON_ALLTOALL] = {.constant = "ALLTOALL", .output = HORON_PY_OUTPUT_ROWS},
    [HORON_GATHER] = {.constant = "GATHER", .output = HORON_PY_OUTPUT_ROWS},
    [HORON_SCATTER] = {.constant = "SCATTER", .output = HORON_PY_OUTPUT_ROWS},
    [HORON_REDUCESCATTER] = {.constant = "REDUCESCATTER", .output = HORON_PY_OUTPUT_SHARE},
    [HORON_REDUCE] = {.constant = "REDUCE", .output = HORON_PY_OUTPUT_LIKE_INPUT},
    [HORON_SEND] = {.constant = "SEND", .output = HORON_PY_OUTPUT_LIKE_INPUT},
    [HORON_RECV] = {.constant = "RECV", .output = HORON_PY_OUTPUT_LIKE_INPUT},
};

const struct horon_py_verb *horon_py_verb_row(uint32_t verb)
{
    return verb < HORON_VERB_COUNT ? &verbs[verb] : NULL;
}

enum { NO_REDOP = -1 };

static const struct {
    const char *constant;
    int redop; /* horon_redop_t, or NO_REDOP */
} redops[] = {
    {"AVERAGE", HORON_AVERAGE}, {"SUM", HORON_SUM},       {"ADASUM", NO_REDOP},
    {"MIN", HORON_MIN},         {"MAX", HORON_MAX},       {"PRODUCT", HORON_PRODUCT},
    {"BIT_AND", HORON_BIT_AND}, {"BIT_OR", HORON_BIT_OR}, {"BIT_XOR", HORON_BIT_XOR},
};

enum { REDOPS = sizeof redops / sizeof redops[0] };

const char *horon_py_redop_constant(int number)
{
    return number < REDOPS ? redops[number].constant : NULL;
}

/* Fills @p tensor from an address (then dtype and shape must be given), None or an object. */
static int parse_tensor(struct horon_py_state *state, PyObject *value, bool writable, bool kept,
                        PyObject *dtype, PyObject *shape, struct horon_py_tensor *tensor)
{
    horon_py_tensor_init(tensor);
    bool bare = value == Py_None || PyLong_Check(value);
    if (!bare && horon_py_tensor_from_object(state, value, writable, kept, tensor) < 0)
        return -1;
    if (PyLong_Check(value)) {
        tensor->data = PyLong_AsVoidPtr(value);
        if (!tensor->data && PyErr_Occurred())
            return -1;
        if (dtype == Py_None || shape == Py_None) {
            PyErr_SetString(PyExc_ValueError, "an address needs dtype and shape");
            return -1;
        }
    }
    if (dtype != Py_None) {
        unsigned long code = PyLong_AsUnsignedLong(dtype);
        if (code >= HORON_DTYPE_COUNT) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "the dtype is none of horon's");
            return -1;
        }
        if (!bare && horon_dtype_bytes((horon_dtype_t)code) !=
                         horon_dtype_bytes((horon_dtype_t)tensor->dtype)) {
            PyErr_SetString(PyExc_ValueError, "dtype has another size than the elements");
            return -1;
        }
        tensor->dtype = (uint32_t)code;
    }
    if (shape == Py_None)
        return 0;
    uint64_t count = tensor->count;
    if (horon_py_tensor_set_shape(tensor, shape) < 0)
        return -1;
    if (!bare && tensor->count != count) {
        PyErr_SetString(PyExc_ValueError, "shape has another number of elements than the buffer");
        return -1;
    }
    return 0;
}

/* @return the name in UTF-8, which half a surrogate pair has not, or NULL with an exception; to C,
 * one that holds a NUL would be another name, perhaps another tensor's. */
static const char *parse_name(PyObject *name)
{
    Py_ssize_t bytes;
    const char *text = PyUnicode_AsUTF8AndSize(name, &bytes);
    if (!text && PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "the name %R holds a lone surrogate", name);
        return NULL;
    }
    if (text && strlen(text) != (size_t)bytes) {
        PyErr_Format(PyExc_ValueError, "the name %R holds a NUL character", name);
        return NULL;
    }
    return text;
}

/* Python's own text of a wrong type does not say which number it is of. @return -1 */
static int raise_no_number(PyObject *value, const char *what, const char *kind)
{
    if (PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "%s %R is no %s", what, value, kind);
    }
    return -1;
}

/* @return 0, or -1 with an exception: @p value is no whole number, or none of @p min..@p max */
static int parse_integer(PyObject *value, const char *what, int64_t min, int64_t max,
                         int64_t *number_out)
{
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (number == -1 && PyErr_Occurred())
        return raise_no_number(value, what, "whole number");
    if (overflow || number < min || number > max) {
        PyErr_Format(PyExc_ValueError, "%s %R is not in %lld..%lld", what, value, (long long)min,
                     (long long)max);
        return -1;
    }
    *number_out = number;
    return 0;
}

static int parse_redop(PyObject *value, uint32_t *redop_out)
{
    int64_t number;
    if (parse_integer(value, "reduction", 0, REDOPS - 1, &number) < 0)
        return -1;
    if (redops[number].redop == NO_REDOP) {
        PyErr_Format(PyExc_NotImplementedError,
                     "the library has no %s: horon.allreduce() and horon.torch do",
                     redops[number].constant);
        return -1;
    }
    *redop_out = (uint32_t)redops[number].redop;
    return 0;
}

static int parse_scale(PyObject *value, const char *what, double *scale_out)
{
    double scale = PyFloat_AsDouble(value);
    if (scale == -1.0 && PyErr_Occurred())
        return raise_no_number(value, what, "number");
    *scale_out = scale;
    return 0;
}

/* Rows for each rank, with zeros for ranks that the sequence does not reach: horon reads as many as
 * the process set has ranks. */
static int parse_splits(const struct horon_py_set *set, PyObject *value,
                        struct horon_py_operation *op)
{
    const Py_ssize_t n = PySequence_Size(value);
    if (n < 0)
        return -1;
    if (n > set->size) {
        PyErr_Format(PyExc_ValueError, "there are %zd splits and %d ranks", n, (int)set->size);
        return -1;
    }
    op->splits = PyMem_Calloc((size_t)set->size, sizeof *op->splits);
    if (!op->splits) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        int64_t rows = -1;
        PyObject *item = PySequence_GetItem(value, i);
        const int result = item ? parse_integer(item, "split", 0, INT64_MAX, &rows) : -1;
        Py_XDECREF(item);
        if (result < 0)
            return -1;
        op->splits[i] = (uint64_t)rows;
    }
    op->desc.splits = op->splits;
    return 0;
}

/* @return 0, or -1 with an exception: it is no number of 64 bits */
static int parse_tag(PyObject *value, uint64_t *tag_out)
{
    PyObject *number = PyNumber_Index(value);
    const unsigned long long tag = number ? PyLong_AsUnsignedLongLong(number) : 0;
    Py_XDECREF(number);
    if (!PyErr_Occurred()) {
        *tag_out = tag;
        return 0;
    }
    if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "tag %R is not in 0..2**64 - 1", value);
    }
    return raise_no_number(value, "tag", "whole number");
}

int horon_py_operation_parse_numbers(PyObject *const *args, Py_ssize_t nargs,
                                     horon_descriptor_t *desc)
{
    int64_t verb, root = 0, flags = 0;
    if (parse_integer(args[ARG_VERB], "verb", 0, HORON_VERB_COUNT - 1, &verb) < 0)
        return -1;
    desc->verb = (uint32_t)verb;
    if (args[ARG_NAME] != Py_None && !(desc->name = parse_name(args[ARG_NAME])))
        return -1;
    if (nargs > ARG_REDOP && parse_redop(args[ARG_REDOP], &desc->redop) < 0)
        return -1;
    const char *other = verb == HORON_SEND || verb == HORON_RECV ? "rank" : "root";
    if (nargs > ARG_ROOT && parse_integer(args[ARG_ROOT], other, INT32_MIN, INT32_MAX, &root) < 0)
        return -1;
    if (nargs > ARG_PRESCALE &&
        parse_scale(args[ARG_PRESCALE], "prescale factor", &desc->prescale) < 0)
        return -1;
    if (nargs > ARG_POSTSCALE &&
        parse_scale(args[ARG_POSTSCALE], "postscale factor", &desc->postscale) < 0)
        return -1;
    if (nargs > ARG_FLAGS && parse_integer(args[ARG_FLAGS], "flags", 0, UINT32_MAX, &flags) < 0)
        return -1;
    desc->root = (int32_t)root;
    desc->flags = (uint32_t)flags;
    return 0;
}

/* Has its output another shape than the input, so that only its capacity bounds it? */
static bool is_bounded(const struct horon_py_verb *verb)
{
    return verb->output == HORON_PY_OUTPUT_ROWS || verb->output == HORON_PY_OUTPUT_SHARE;
}

/* Refuses an output that the result may not fit into. One that is given as an address is taken at
 * its word where the input says its size, and refused where the ranks do. */
static int check_output(const struct horon_py_operation *op, bool has_src, bool has_dst)
{
    const char *why = NULL;
    if (op->verb->output == HORON_PY_OUTPUT_NONE) {
        if (has_src || has_dst)
            why = "a barrier moves nothing: src and dst must be None";
    } else if (is_bounded(op->verb)) {
        if (has_dst && !has_src)
            why = "every rank gives an input, if of no rows: it says the dtype and a row's shape";
        else if (has_dst && op->dst.dtype != op->src.dtype)
            why = "output and input differ in dtype";
        else if (has_dst && op->dst.count == 0 && op->verb->output == HORON_PY_OUTPUT_ROWS)
            why = "an output whose size the ranks decide must be a tensor with room, or None";
    } else if (op->dst.keep && (op->dst.count != op->src.count || op->dst.dtype != op->src.dtype)) {
        why = "output and input differ in size or dtype";
    }
    if (why)
        PyErr_SetString(PyExc_ValueError, why);
    return why ? -1 : 0;
}

/* Everything that must outlive the operation, as one object. */
static PyObject *keep_all(const struct horon_py_operation *op, PyObject *extra)
{
    PyObject *src = op->src.keep ? op->src.keep : Py_None;
    PyObject *dst = op->dst.keep ? op->dst.keep : Py_None;
    if (dst == Py_None && extra == Py_None)
        return Py_NewRef(src);
    if (src == Py_None && dst == Py_None)
        return Py_NewRef(extra);
    return PyTuple_Pack(3, src, dst, extra);
}

/* @return 0, or -1 with an exception */
static int describe_buffers(struct horon_py_state *state, PyObject *const *args, Py_ssize_t nargs,
                            struct horon_py_operation *op)
{
    PyObject *dtype = nargs > ARG_DTYPE ? args[ARG_DTYPE] : Py_None;
    PyObject *shape = nargs > ARG_SHAPE ? args[ARG_SHAPE] : Py_None;
    bool in_place = args[ARG_SRC] == args[ARG_DST] && args[ARG_SRC] != Py_None;
    bool bounded = is_bounded(op->verb);
    bool kept = nargs > ARG_KEEP && args[ARG_KEEP] != Py_None;
    if (parse_tensor(state, args[ARG_SRC], in_place, kept, dtype, shape, &op->src) < 0)
        return -1;
    if (in_place) {
        horon_py_tensor_copy(&op->dst, &op->src);
        op->dst.keep = NULL; /* src keeps it */
    } else if (bounded && PyLong_Check(args[ARG_DST])) {
        PyErr_SetString(PyExc_ValueError,
                        "an output of another size than the input cannot be an address: nothing "
                        "would bound it");
        return -1;
    } else if (parse_tensor(state, args[ARG_DST], true, kept, dtype, bounded ? Py_None : shape,
                            &op->dst) < 0) {
        return -1;
    }
    return 0;
}

static int parse_buffers(struct horon_py_state *state, PyObject *const *args, Py_ssize_t nargs,
                         struct horon_py_operation *op)
{
    PyObject *extra = nargs > ARG_KEEP ? args[ARG_KEEP] : Py_None;
    if (describe_buffers(state, args, nargs, op) < 0 ||
        check_output(op, args[ARG_SRC] != Py_None, args[ARG_DST] != Py_None) < 0)
        return -1;
    op->keep = keep_all(op, extra);
    return op->keep ? 0 : -1;
}

/* gcc 12 takes the two conversions away when it does them for two factors at once. */
static double rounded_to_float(double factor)
{
    volatile float rounded = (float)factor;
    return (double)rounded;
}

void horon_py_operation_set_input(horon_descriptor_t *desc, const struct horon_py_tensor *src,
                                  uint64_t folded[HORON_NDIM_MAX])
{
    desc->dtype = src->dtype;
    desc->src = src->data;
    desc->count = src->count;
    horon_py_tensor_fold(src, folded, desc);
    if (desc->dtype == HORON_FLOAT32) {
        desc->prescale = rounded_to_float(desc->prescale);
        desc->postscale = rounded_to_float(desc->postscale);
    }
}

void horon_py_operation_deinit(struct horon_py_operation *op)
{
    Py_CLEAR(op->src.keep);
    Py_CLEAR(op->dst.keep);
    Py_CLEAR(op->keep);
    PyMem_Free(op->splits);
    op->splits = NULL;
}

/* Adds to a TypeError or ValueError which operation was refused, as the library does. */
static void say_which(const horon_descriptor_t *desc)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (desc->verb == HORON_VERB_COUNT || (type != PyExc_TypeError && type != PyExc_ValueError)) {
        PyErr_Restore(type, value, trace);
        return;
    }
    const char *verb = horon_verb_name((horon_verb_t)desc->verb);
    if (desc->name)
        PyErr_Format(type, "%s '%s' was refused: %S", verb, desc->name, value);
    else
        PyErr_Format(type, "%s was refused: %S", verb, value);
    Py_DECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
}

static int parse(struct horon_py_operation *op, const struct horon_py_set *set,
                 PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *splits = nargs > ARG_SPLITS ? args[ARG_SPLITS] : Py_None;
    if (horon_py_operation_parse_numbers(args, nargs, &op->desc) < 0)
        return -1;
    op->verb = horon_py_verb_row(op->desc.verb);
    if (parse_buffers(set->context->state, args, nargs, op) < 0 ||
        (splits != Py_None && parse_splits(set, splits, op) < 0))
        return -1;
    return nargs > ARG_TAG ? parse_tag(args[ARG_TAG], &op->desc.tag) : 0;
}

int horon_py_operation_init(struct horon_py_operation *op, const struct horon_py_set *set,
                            PyObject *const *args, Py_ssize_t nargs)
{
    op->desc = (horon_descriptor_t)HORON_DESCRIPTOR_INIT;
    op->desc.verb = HORON_VERB_COUNT; /* until it is known */
    op->keep = NULL;
    op->splits = NULL;
    op->into = nargs > ARG_INTO && args[ARG_INTO] != Py_None ? args[ARG_INTO] : NULL;
    horon_py_tensor_init(&op->src);
    horon_py_tensor_init(&op->dst);
    if (nargs <= ARG_DST || nargs > ARG_COUNT) {
        PyErr_Format(PyExc_TypeError, "an operation has %d to %d arguments", ARG_DST + 1,
                     ARG_COUNT);
        return -1;
    }
    if (!horon_py_request_may_go_into(op->into))
        return -1;
    if (parse(op, set, args, nargs) < 0) {
        say_which(&op->desc);
        horon_py_operation_deinit(op);
        return -1;
    }
    horon_py_operation_set_input(&op->desc, &op->src, op->folded);
    op->desc.dst = op->dst.data;
    op->desc.dst_count = is_bounded(op->verb) ? op->dst.count : 0;
    if (args[ARG_SRC] == Py_None) { /* a barrier */
        op->desc.shape = NULL;
        op->desc.count = 0;
    }
    return 0;
}
