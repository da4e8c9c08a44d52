/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Array: a piece of typed, C-contiguous host memory that any framework can look at without a copy,
 * by the buffer protocol or DLPack. It is either its own (Array(shape, dtype)) or lies over the
 * output of a request, which it then keeps. No arithmetic: arrays are what results come in.
 */
#include "_horon_request.h"

#include <stdlib.h>
#include <string.h>

/* What the buffer protocol counts in, and DLPack. */
_Static_assert(_Generic((int64_t)0, Py_ssize_t : 1, default : 0), "both read one shape");

struct array {
    PyObject_VAR_HEAD void *data;
    uint32_t dtype;
    int32_t ndim;
    Py_ssize_t count;
    struct horon_py_request *owner; /* of data; NULL: data is ours */
    Py_ssize_t *strides;            /* [ndim], bytes; it and the next lie behind shape */
    Py_ssize_t *steps;              /* [ndim], elements */
    Py_ssize_t shape[];             /* [ndim] */
};

/* Cache lines and SIMD loads; what frameworks align to. */
#define ARRAY_ALIGN_BYTES 64

static struct array *array_new(PyTypeObject *type, uint32_t dtype, int32_t ndim,
                               const uint64_t *shape)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct array *array = (struct array *)alloc(type, ndim);
    if (!array)
        return NULL;
    array->dtype = dtype;
    array->ndim = ndim;
    array->count = 1;
    array->strides = array->shape + ndim;
    array->steps = array->strides + ndim;
    Py_ssize_t item_bytes = (Py_ssize_t)horon_dtype_bytes((horon_dtype_t)dtype);
    for (int32_t i = ndim - 1; i >= 0; i--) {
        array->shape[i] = (Py_ssize_t)shape[i];
        array->strides[i] = array->count * item_bytes;
        array->steps[i] = array->count;
        if (__builtin_mul_overflow(array->count, (Py_ssize_t)shape[i], &array->count) ||
            array->count > PY_SSIZE_T_MAX / item_bytes) {
            PyErr_SetString(PyExc_ValueError, "the array is larger than the address space");
            Py_DECREF(array);
            return NULL;
        }
    }
    return array;
}

PyObject *horon_py_array_over(struct horon_py_state *state, void *data, uint32_t dtype,
                              int32_t ndim, const uint64_t *shape, struct horon_py_request *owner)
{
    struct array *array = array_new(state->array_type, dtype, ndim, shape);
    if (!array)
        return NULL;
    array->data = data;
    array->owner = (struct horon_py_request *)Py_NewRef((PyObject *)owner);
    owner->arrays++;
    return (PyObject *)array;
}

static Py_ssize_t array_bytes(const struct array *array)
{
    return array->count * (Py_ssize_t)horon_dtype_bytes((horon_dtype_t)array->dtype);
}

/* Array(shape, dtype): uninitialised memory. */
static PyObject *array_tp_new(PyTypeObject *type, PyObject *args, PyObject *kwds)
{
    static char *names[] = {"shape", "dtype", NULL};
    PyObject *shape;
    Py_ssize_t dtype;
    struct horon_py_tensor tensor;
    if (!PyArg_ParseTupleAndKeywords(args, kwds, "On", names, &shape, &dtype) ||
        horon_py_tensor_set_shape(&tensor, shape) < 0)
        return NULL;
    if (dtype < 0 || dtype >= HORON_DTYPE_COUNT)
        return PyErr_Format(PyExc_ValueError, "%zd is no dtype of horon's", dtype);
    struct array *array = array_new(type, (uint32_t)dtype, tensor.ndim, tensor.shape);
    if (!array)
        return NULL;
    size_t bytes = (size_t)array_bytes(array);
    bytes =
        (bytes / ARRAY_ALIGN_BYTES + 1) * ARRAY_ALIGN_BYTES; /* an empty one has an address too */
    array->data = aligned_alloc(ARRAY_ALIGN_BYTES, bytes);
    if (!array->data) {
        Py_DECREF(array);
        return PyErr_NoMemory();
    }
    return (PyObject *)array;
}

static void array_dealloc(PyObject *self)
{
    struct array *array = (struct array *)self;
    PyTypeObject *type = Py_TYPE(self);
    if (array->owner) {
        horon_py_request_return_output(array->owner);
        Py_DECREF((PyObject *)array->owner);
    } else {
        free(array->data);
    }
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

int horon_py_array_describe(PyObject *self, struct horon_py_tensor *tensor)
{
    struct array *array = (struct array *)self;
    tensor->data = array->data;
    tensor->dtype = array->dtype;
    tensor->ndim = array->ndim;
    tensor->count = (uint64_t)array->count;
    for (int32_t i = 0; i < array->ndim; i++)
        tensor->shape[i] = (uint64_t)array->shape[i];
    tensor->readonly = false;
    return 0;
}

/* Whether the elements lie in Fortran's order, too. */
static bool reads_either_way(const struct array *array)
{
    int32_t long_dimensions = 0;
    for (int32_t i = 0; i < array->ndim; i++)
        long_dimensions += array->shape[i] > 1;
    return long_dimensions <= 1 || array->count == 0;
}

static int array_getbuffer(PyObject *self, Py_buffer *buffer, int flags)
{
    struct array *array = (struct array *)self;
    static char nothing[1];
    buffer->obj = NULL;
    if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && !reads_either_way(array)) {
        PyErr_SetString(PyExc_BufferError, "a horon.Array lies in C's order, not in Fortran's");
        return -1;
    }
    buffer->obj = Py_NewRef(self);
    buffer->buf = array->data ? array->data : nothing;
    buffer->len = array_bytes(array);
    buffer->itemsize = (Py_ssize_t)horon_dtype_bytes((horon_dtype_t)array->dtype);
    buffer->readonly = 0;
    buffer->ndim = flags & PyBUF_ND ? array->ndim : 1;
    buffer->format = NULL;
    if (flags & PyBUF_FORMAT)
        buffer->format = (char *)(uintptr_t)horon_py_format(array->dtype);
    buffer->shape = flags & PyBUF_ND ? array->shape : NULL;
    buffer->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? array->strides : NULL;
    buffer->suboffsets = NULL;
    buffer->internal = NULL;
    return 0;
}

/* A consumer may drop its tensor on any thread, with or without the GIL. */
static void drop_owner(void *array)
{
    PyGILState_STATE gil = PyGILState_Ensure();
    Py_DECREF((PyObject *)array);
    PyGILState_Release(gil);
}

static void delete_managed(struct dlpack_managed *self)
{
    drop_owner(self->manager);
    free(self);
}

static void delete_versioned(struct dlpack_versioned *self)
{
    drop_owner(self->manager);
    free(self);
}

/* A capsule that nobody has renamed was not consumed. */
static void drop_capsule(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor_versioned"))
        delete_versioned(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    else if (PyCapsule_IsValid(capsule, "dltensor"))
        delete_managed(PyCapsule_GetPointer(capsule, "dltensor"));
}

static struct dlpack_tensor array_dlpack(struct array *array)
{
    return (struct dlpack_tensor){
        .data = array->count ? array->data : NULL,
        .device_type = DLPACK_CPU,
        .ndim = array->ndim,
        .dtype_code = horon_py_dlpack_code(array->dtype),
        .dtype_bits = (uint8_t)(horon_dtype_bytes((horon_dtype_t)array->dtype) * 8),
        .dtype_lanes = 1,
        .shape = array->shape,
        .strides = array->steps,
    };
}

static PyObject *export_versioned(struct array *array)
{
    struct dlpack_versioned *managed = calloc(1, sizeof *managed);
    if (!managed)
        return PyErr_NoMemory();
    managed->major = 1;
    managed->minor = 1;
    managed->manager = Py_NewRef((PyObject *)array);
    managed->deleter = delete_versioned;
    managed->tensor = array_dlpack(array);
    PyObject *capsule = PyCapsule_New(managed, "dltensor_versioned", drop_capsule);
    if (!capsule)
        delete_versioned(managed);
    return capsule;
}

static PyObject *export_managed(struct array *array)
{
    struct dlpack_managed *managed = calloc(1, sizeof *managed);
    if (!managed)
        return PyErr_NoMemory();
    managed->manager = Py_NewRef((PyObject *)array);
    managed->deleter = delete_managed;
    managed->tensor = array_dlpack(array);
    PyObject *capsule = PyCapsule_New(managed, "dltensor", drop_capsule);
    if (!capsule)
        delete_managed(managed);
    return capsule;
}

/* Whether @p device, the dl_device that a consumer asks for, is None or (1, 0): host memory.
 * @return false with an exception for another one */
static bool is_host(PyObject *device)
{
    PyObject *host = Py_BuildValue("(ii)", DLPACK_CPU, 0);
    int same = device == Py_None;
    if (host && !same)
        same = PyObject_RichCompareBool(device, host, Py_EQ);
    Py_XDECREF(host);
    if (host && same == 0)
        PyErr_SetString(PyExc_BufferError, "a horon.Array lies in host memory, the device (1, 0)");
    return host && same == 1;
}

static PyObject *array_dlpack_method(PyObject *self, PyObject *args, PyObject *kwds)
{
    static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
    PyObject *stream = Py_None, *version = Py_None, *device = Py_None, *copy = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwds, "|$OOOO", names, &stream, &version, &device,
                                     &copy))
        return NULL;
    if (copy == Py_True) {
        PyErr_SetString(PyExc_BufferError, "horon does not copy for DLPack");
        return NULL;
    }
    if (!is_host(device))
        return NULL;
    long major = 0;
    if (version != Py_None) {
        PyObject *number = PySequence_GetItem(version, 0);
        major = number ? PyLong_AsLong(number) : -1;
        Py_XDECREF(number);
        if (major == -1 && PyErr_Occurred())
            return NULL;
    }
    struct array *array = (struct array *)self;
    return major >= 1 ? export_versioned(array) : export_managed(array);
}

static PyObject *array_dlpack_device(PyObject *self, PyObject *ignored)
{
    (void)self;
    (void)ignored;
    return Py_BuildValue("(ii)", DLPACK_CPU, 0);
}

static PyObject *array_get_shape(PyObject *self, void *closure)
{
    (void)closure;
    struct array *array = (struct array *)self;
    PyObject *shape = PyTuple_New(array->ndim);
    for (int32_t i = 0; shape && i < array->ndim; i++) {
        PyObject *rows = PyLong_FromSsize_t(array->shape[i]);
        if (!rows || PyTuple_SetItem(shape, i, rows) < 0)
            Py_CLEAR(shape);
    }
    return shape;
}

static PyObject *array_get_dtype(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLong(((struct array *)self)->dtype);
}

static PyObject *array_get_nbytes(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromSsize_t(array_bytes((struct array *)self));
}

static PyObject *array_get_address(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromVoidPtr(((struct array *)self)->data);
}

static PyObject *array_repr(PyObject *self)
{
    PyObject *shape = array_get_shape(self, NULL);
    PyObject *text = NULL;
    if (shape)
        text = PyUnicode_FromFormat("<horon.Array %R %s>", shape,
                                    horon_dtype_name((horon_dtype_t)((struct array *)self)->dtype));
    Py_XDECREF(shape);
    return text;
}

static PyMethodDef methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))array_dlpack_method, METH_VARARGS | METH_KEYWORDS,
     "A DLPack capsule over this memory."},
    {"__dlpack_device__", array_dlpack_device, METH_NOARGS, "(1, 0): host memory."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef members[] = {
    {"shape", array_get_shape, NULL, "Dimensions.", NULL},
    {"dtype", array_get_dtype, NULL, "Code of the element type.", NULL},
    {"nbytes", array_get_nbytes, NULL, "Size in bytes.", NULL},
    {"address", array_get_address, NULL, "Address of the first element.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Array(shape, dtype): typed host memory, open to the buffer protocol and DLPack."},
    {Py_tp_new, array_tp_new},
    {Py_tp_dealloc, array_dealloc},
    {Py_tp_repr, array_repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, members},
    {Py_bf_getbuffer, array_getbuffer},
    {0, NULL},
};

PyType_Spec horon_py_array_spec = {
    .name = "horon.Array",
    .basicsize = sizeof(struct array),
    .itemsize = 3 * sizeof(Py_ssize_t), /* one a dimension */
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
