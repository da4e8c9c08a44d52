/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One operation, from the positional arguments of submit(), prepare() and each tuple of
 * submit_group() to a descriptor of the C ABI and the objects that must outlive it.
 */
#include "_horon.h"

#include <string.h>

/* Fills @p tensor from an address (then dtype and shape must be given), None or an object. */
static int parse_tensor(struct horon_py_state *state, PyObject *value, bool writable,
                        PyObject *dtype, PyObject *shape, struct horon_py_tensor *tensor)
{
    horon_py_tensor_init(tensor);
    bool bare = value == Py_None || PyLong_Check(value);
    if (!bare && horon_py_tensor_from_object(state, value, writable, tensor) < 0)
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

static int parse_numbers(PyObject *const *args, Py_ssize_t nargs, horon_descriptor_t *desc)
{
    desc->verb = (uint32_t)PyLong_AsUnsignedLong(args[ARG_VERB]);
    if (nargs > ARG_REDOP)
        desc->redop = (uint32_t)PyLong_AsUnsignedLong(args[ARG_REDOP]);
    if (nargs > ARG_ROOT)
        desc->root = (int32_t)PyLong_AsLong(args[ARG_ROOT]);
    if (nargs > ARG_PRESCALE)
        desc->prescale = PyFloat_AsDouble(args[ARG_PRESCALE]);
    if (nargs > ARG_POSTSCALE)
        desc->postscale = PyFloat_AsDouble(args[ARG_POSTSCALE]);
    if (nargs > ARG_FLAGS)
        desc->flags = (uint32_t)PyLong_AsUnsignedLong(args[ARG_FLAGS]);
    if (args[ARG_NAME] != Py_None)
        desc->name = parse_name(args[ARG_NAME]);
    return PyErr_Occurred() ? -1 : 0;
}

/* The result of an allreduce or a broadcast is as large as its input; dst given as an address is
 * taken at its word. */
static int check_output(const struct horon_py_operation *op)
{
    if (!op->dst.keep || op->desc.verb == HORON_ALLGATHER)
        return 0;
    if (op->dst.count != op->src.count || op->dst.dtype != op->src.dtype) {
        PyErr_SetString(PyExc_ValueError, "output and input differ in size or dtype");
        return -1;
    }
    return 0;
}

/* Everything that must outlive the operation, as one object. */
static PyObject *keep_all(const struct horon_py_operation *op, PyObject *extra)
{
    PyObject *src = op->src.keep ? op->src.keep : Py_None;
    PyObject *dst = op->dst.keep ? op->dst.keep : Py_None;
    if (dst == Py_None && extra == Py_None)
        return Py_NewRef(src);
    return PyTuple_Pack(3, src, dst, extra);
}

static int parse_buffers(struct horon_py_state *state, PyObject *const *args, Py_ssize_t nargs,
                         struct horon_py_operation *op)
{
    PyObject *dtype = nargs > ARG_DTYPE ? args[ARG_DTYPE] : Py_None;
    PyObject *shape = nargs > ARG_SHAPE ? args[ARG_SHAPE] : Py_None;
    PyObject *extra = nargs > ARG_KEEP ? args[ARG_KEEP] : Py_None;
    bool in_place = args[ARG_SRC] == args[ARG_DST] && args[ARG_SRC] != Py_None;
    if (parse_tensor(state, args[ARG_SRC], in_place, dtype, shape, &op->src) < 0)
        return -1;
    if (in_place)
        op->dst.data = op->src.data;
    else if (parse_tensor(state, args[ARG_DST], true, dtype, shape, &op->dst) < 0 ||
             check_output(op) < 0)
        return -1;
    op->keep = keep_all(op, extra);
    return op->keep ? 0 : -1;
}

void horon_py_operation_deinit(struct horon_py_operation *op)
{
    Py_CLEAR(op->src.keep);
    Py_CLEAR(op->dst.keep);
    Py_CLEAR(op->keep);
}

int horon_py_operation_init(struct horon_py_operation *op, struct horon_py_state *state,
                            PyObject *const *args, Py_ssize_t nargs)
{
    op->desc = (horon_descriptor_t)HORON_DESCRIPTOR_INIT;
    op->keep = NULL;
    horon_py_tensor_init(&op->src);
    horon_py_tensor_init(&op->dst);
    if (nargs <= ARG_DST || nargs > ARG_COUNT) {
        PyErr_Format(PyExc_TypeError, "an operation has %d to %d arguments", ARG_DST + 1,
                     ARG_COUNT);
        return -1;
    }
    if (parse_numbers(args, nargs, &op->desc) < 0 || parse_buffers(state, args, nargs, op) < 0) {
        horon_py_operation_deinit(op);
        return -1;
    }
    op->desc.dtype = op->src.dtype;
    op->desc.src = op->src.data;
    op->desc.dst = op->dst.data;
    op->desc.count = op->src.count;
    horon_py_tensor_fold(&op->src, op->folded, &op->desc);
    if (args[ARG_SRC] == Py_None) { /* a barrier */
        op->desc.shape = NULL;
        op->desc.count = 0;
    }
    return 0;
}
