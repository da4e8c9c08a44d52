/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a Python object to an address, a dtype and a shape. Four ways, the cheapest first: DLPack's
 * exchange API (a description without a managed tensor), our own Array, the buffer protocol, and
 * __dlpack__ in its versioned and its old form. Only C-contiguous host memory passes; copying is
 * the business of the adapters in Python, which know how their framework does it.
 *
 * Whatever keeps the memory alive becomes one Python object, `keep`: the tensor itself, or a
 * capsule around a Py_buffer or a managed tensor.
 */
#include "_horon.h"

#include <stddef.h>
#include <string.h>

_Static_assert(sizeof(long) == 8, "numpy's int64 is C's long");

static const struct {
    const char *format;
    uint8_t code;
} dtype_rows[HORON_DTYPE_COUNT] = {
    [HORON_UINT8] = {"B", DLPACK_UINT},
    [HORON_INT8] = {"b", DLPACK_INT},
    [HORON_UINT16] = {"H", DLPACK_UINT},
    [HORON_INT16] = {"h", DLPACK_INT},
    [HORON_UINT32] = {"I", DLPACK_UINT},
    [HORON_INT32] = {"i", DLPACK_INT},
    [HORON_UINT64] = {"L", DLPACK_UINT},
    [HORON_INT64] = {"l", DLPACK_INT},
    [HORON_FLOAT16] = {"e", DLPACK_FLOAT},
    [HORON_BFLOAT16] = {"H", DLPACK_BFLOAT},
    [HORON_FLOAT32] = {"f", DLPACK_FLOAT},
    [HORON_FLOAT64] = {"d", DLPACK_FLOAT},
    [HORON_BOOL] = {"?", DLPACK_BOOL},
    [HORON_COMPLEX64] = {"Zf", DLPACK_COMPLEX},
    [HORON_COMPLEX128] = {"Zd", DLPACK_COMPLEX},
    [HORON_FLOAT8_E4M3] = {"B", DLPACK_FLOAT8_E4M3FN},
    [HORON_FLOAT8_E5M2] = {"B", DLPACK_FLOAT8_E5M2},
};

const char *horon_py_format(uint32_t dtype)
{
    return dtype_rows[dtype].format;
}

uint8_t horon_py_dlpack_code(uint32_t dtype)
{
    return dtype_rows[dtype].code;
}

/* @return the dtype of DLPack's (code, bits), or -1 */
static int dtype_of_dlpack(uint8_t code, uint8_t bits, uint16_t lanes)
{
    for (int dtype = 0; lanes == 1 && dtype < HORON_DTYPE_COUNT; dtype++)
        if (dtype_rows[dtype].code == code &&
            horon_dtype_bytes((horon_dtype_t)dtype) * 8 == (size_t)bits)
            return dtype;
    return -1;
}

/* The native C types of PEP 3118 differ in width between platforms, so an integer is known by its
 * kind and size. @return the dtype, or -1 */
static int dtype_of_format(const char *format, Py_ssize_t item_bytes)
{
    if (!format)
        format = "B";
    if (*format == '@' || *format == '=' || *format == '<')
        format++;
    uint8_t code;
    if (strlen(format) == 1 && strchr("bhilqn", *format))
        code = DLPACK_INT;
    else if (strlen(format) == 1 && strchr("BHILQNc", *format))
        code = DLPACK_UINT;
    else if (strlen(format) == 1 && strchr("efd", *format))
        code = DLPACK_FLOAT;
    else if (strcmp(format, "?") == 0)
        code = DLPACK_BOOL;
    else if (strcmp(format, "Zf") == 0 || strcmp(format, "Zd") == 0)
        code = DLPACK_COMPLEX;
    else
        return -1;
    return item_bytes > 16 ? -1 : dtype_of_dlpack(code, (uint8_t)(item_bytes * 8), 1);
}

void horon_py_tensor_init(struct horon_py_tensor *tensor)
{
    memset(tensor, 0, offsetof(struct horon_py_tensor, shape));
}

void horon_py_tensor_copy(struct horon_py_tensor *to, const struct horon_py_tensor *from)
{
    memcpy(to, from, offsetof(struct horon_py_tensor, shape));
    memcpy(to->shape, from->shape, (size_t)from->ndim * sizeof from->shape[0]);
}

void horon_py_tensor_fold(const struct horon_py_tensor *tensor, uint64_t folded[HORON_NDIM_MAX],
                          horon_descriptor_t *desc)
{
    desc->ndim = tensor->ndim;
    desc->shape = tensor->shape;
    if (tensor->ndim <= HORON_NDIM_MAX)
        return;
    memcpy(folded, tensor->shape, HORON_NDIM_MAX * sizeof folded[0]);
    for (int32_t i = HORON_NDIM_MAX; i < tensor->ndim; i++)
        folded[HORON_NDIM_MAX - 1] *= tensor->shape[i];
    desc->ndim = HORON_NDIM_MAX;
    desc->shape = folded;
}

/* Appends one dimension. */
static int push_dimension(struct horon_py_tensor *tensor, uint64_t rows)
{
    if (__builtin_mul_overflow(tensor->count, rows, &tensor->count)) {
        PyErr_SetString(PyExc_ValueError, "the shape has more than 2**64 elements");
        return -1;
    }
    if (tensor->ndim == HORON_PY_NDIM_MAX)
        tensor->shape[HORON_PY_NDIM_MAX - 1] *= rows;
    else
        tensor->shape[tensor->ndim++] = rows;
    return 0;
}

static int push_python_dimension(struct horon_py_tensor *tensor, PyObject *number)
{
    long long rows = PyLong_AsLongLong(number);
    if (rows < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "a dimension is negative");
        return -1;
    }
    return push_dimension(tensor, (uint64_t)rows);
}

int horon_py_tensor_set_shape(struct horon_py_tensor *tensor, PyObject *shape)
{
    tensor->count = 1;
    tensor->ndim = 0;
    if (PyLong_Check(shape))
        return push_python_dimension(tensor, shape);
    Py_ssize_t ndim = PySequence_Size(shape);
    for (Py_ssize_t i = 0; i < ndim; i++) {
        PyObject *number = PySequence_GetItem(shape, i);
        int bad = !number || push_python_dimension(tensor, number);
        Py_XDECREF(number);
        if (bad)
            return -1;
    }
    return ndim < 0 ? -1 : 0;
}

/* Sets dtype, shape, address. 1 done, 0 with @p why: horon cannot take it. */
static int from_dlpack(const struct dlpack_tensor *dl, struct horon_py_tensor *tensor,
                       const char **why)
{
    int dtype = dtype_of_dlpack(dl->dtype_code, dl->dtype_bits, dl->dtype_lanes);
    *why = "the tensor is not in host memory";
    if (dl->device_type != DLPACK_CPU && dl->device_type != DLPACK_CUDA_HOST &&
        dl->device_type != DLPACK_ROCM_HOST)
        return 0;
    *why = "the element type is none of horon's";
    if (dtype < 0)
        return 0;
    tensor->dtype = (uint32_t)dtype;
    tensor->count = 1;
    tensor->ndim = 0;
    bool contiguous = true;
    int64_t stride = 1;
    for (int32_t i = 0; i < dl->ndim; i++)
        if (push_dimension(tensor, (uint64_t)dl->shape[i]) < 0)
            return -1;
    for (int32_t i = dl->ndim - 1; dl->strides && i >= 0; i--) {
        contiguous = contiguous && (dl->shape[i] == 1 || dl->strides[i] == stride);
        stride *= dl->shape[i];
    }
    *why = "the tensor is not C-contiguous";
    if (!contiguous && tensor->count > 0)
        return 0;
    *why = "the tensor has no memory";
    if (!dl->data && tensor->count > 0)
        return 0;
    tensor->data = dl->data ? (char *)dl->data + dl->byte_offset : NULL;
    return 1;
}

static const struct dlpack_exchange *find_exchange(struct horon_py_state *state, PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    if (type == state->exchange_type)
        return state->exchange;
    PyObject *capsule = PyObject_GetAttrString((PyObject *)type, "__dlpack_c_exchange_api__");
    const struct dlpack_exchange *exchange = NULL;
    if (capsule && PyCapsule_IsValid(capsule, "dlpack_exchange_api"))
        exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    PyErr_Clear();
    Py_XDECREF(capsule);
    if (!exchange || exchange->major != 1 || !exchange->tensor_from_object)
        return NULL;
    PyObject *old = (PyObject *)state->exchange_type;
    state->exchange_type = (PyTypeObject *)Py_NewRef((PyObject *)type);
    Py_XDECREF(old);
    state->exchange = exchange;
    return exchange;
}

int horon_py_tensor_peek(struct horon_py_state *state, PyObject *object,
                         struct horon_py_tensor *tensor)
{
    const struct dlpack_exchange *exchange = find_exchange(state, object);
    if (!exchange)
        return 0;
    struct dlpack_tensor dl;
    if (exchange->tensor_from_object(object, &dl) != 0) {
        PyErr_Clear(); /* sparse, meta and the like: another way may know better */
        return 0;
    }
    const char *why;
    tensor->readonly = false;
    tensor->keep = NULL;
    return from_dlpack(&dl, tensor, &why);
}

static void free_buffer(PyObject *capsule)
{
    Py_buffer *buffer = PyCapsule_GetPointer(capsule, NULL);
    PyBuffer_Release(buffer);
    PyMem_Free(buffer);
}

/* 1 taken, 0 not a buffer, -1 exception. */
static int from_buffer(PyObject *object, bool writable, struct horon_py_tensor *tensor)
{
    if (!PyObject_CheckBuffer(object))
        return 0;
    Py_buffer *buffer = PyMem_Calloc(1, sizeof *buffer);
    if (!buffer) {
        PyErr_NoMemory();
        return -1;
    }
    int flags = PyBUF_ND | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object, buffer, flags) < 0) {
        PyMem_Free(buffer);
        return -1;
    }
    int dtype = dtype_of_format(buffer->format, buffer->itemsize);
    if (dtype < 0)
        PyErr_Format(PyExc_ValueError, "buffer format '%s' is none of horon's element types",
                     buffer->format ? buffer->format : "B");
    tensor->dtype = (uint32_t)dtype;
    tensor->data = buffer->buf;
    tensor->readonly = buffer->readonly;
    tensor->count = 1;
    tensor->ndim = 0;
    bool bad = dtype < 0;
    for (int i = 0; !bad && i < buffer->ndim; i++)
        bad = push_dimension(tensor, (uint64_t)buffer->shape[i]) < 0;
    tensor->keep = bad ? NULL : PyCapsule_New(buffer, NULL, free_buffer);
    if (!tensor->keep) {
        PyBuffer_Release(buffer);
        PyMem_Free(buffer);
        return -1;
    }
    return 1;
}

static void free_managed(PyObject *capsule)
{
    struct dlpack_managed *managed = PyCapsule_GetPointer(capsule, NULL);
    if (managed->deleter)
        managed->deleter(managed);
}

static void free_versioned(PyObject *capsule)
{
    struct dlpack_versioned *managed = PyCapsule_GetPointer(capsule, NULL);
    if (managed->deleter)
        managed->deleter(managed);
}

/* Calls object.__dlpack__, asking for version 1 first. */
static PyObject *call_dlpack(PyObject *object)
{
    PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
    PyObject *empty = PyTuple_New(0);
    PyObject *named = Py_BuildValue("{s(ii)}", "max_version", 1, 1);
    PyObject *capsule = NULL;
    if (method && empty && named) {
        capsule = PyObject_Call(method, empty, named);
        if (!capsule && PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Clear(); /* an older producer does not know the argument */
            capsule = PyObject_Call(method, empty, NULL);
        }
    }
    Py_XDECREF(method);
    Py_XDECREF(empty);
    Py_XDECREF(named);
    return capsule;
}

static PyObject *take_managed(PyObject *capsule, const struct dlpack_tensor **dl_out,
                              bool *readonly_out)
{
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        struct dlpack_versioned *managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        if (managed->major != 1) {
            PyErr_Format(PyExc_ValueError, "DLPack %u is newer than horon knows", managed->major);
            return NULL;
        }
        *dl_out = &managed->tensor;
        *readonly_out = (managed->flags & DLPACK_READ_ONLY) != 0;
        PyObject *keep = PyCapsule_New(managed, NULL, free_versioned);
        if (keep)
            PyCapsule_SetName(capsule, "used_dltensor_versioned");
        return keep;
    }
    struct dlpack_managed *managed = PyCapsule_GetPointer(capsule, "dltensor");
    if (!managed)
        return NULL;
    *dl_out = &managed->tensor;
    *readonly_out = false;
    PyObject *keep = PyCapsule_New(managed, NULL, free_managed);
    if (keep)
        PyCapsule_SetName(capsule, "used_dltensor");
    return keep;
}

static int from_managed(PyObject *object, bool writable, struct horon_py_tensor *tensor)
{
    PyObject *capsule = call_dlpack(object);
    if (!capsule)
        return -1;
    const struct dlpack_tensor *dl;
    PyObject *keep = take_managed(capsule, &dl, &tensor->readonly);
    Py_DECREF(capsule);
    if (!keep)
        return -1;
    const char *why;
    int taken = from_dlpack(dl, tensor, &why);
    if (taken == 1 && writable && tensor->readonly) {
        why = "the tensor is read-only";
        taken = 0;
    }
    if (taken == 0)
        PyErr_SetString(PyExc_ValueError, why);
    if (taken != 1) {
        Py_DECREF(keep);
        return -1;
    }
    tensor->keep = keep;
    return 1;
}

int horon_py_tensor_from_object(struct horon_py_state *state, PyObject *object, bool writable,
                                bool kept, struct horon_py_tensor *tensor)
{
    horon_py_tensor_init(tensor);
    if (Py_TYPE(object) == state->array_type) {
        Py_INCREF(object);
        tensor->keep = object;
        return horon_py_array_describe(object, tensor);
    }
    int taken = kept ? horon_py_tensor_peek(state, object, tensor) : 0;
    if (taken == 1) {
        Py_INCREF(object);
        tensor->keep = object;
    }
    if (taken == 0)
        taken = from_buffer(object, writable, tensor);
    if (taken == 0 && PyObject_HasAttrString(object, "__dlpack__"))
        taken = from_managed(object, writable, tensor);
    if (taken == 0)
        PyErr_Format(PyExc_TypeError, "%R offers neither a buffer nor __dlpack__",
                     (PyObject *)Py_TYPE(object));
    return taken == 1 ? 0 : -1;
}
