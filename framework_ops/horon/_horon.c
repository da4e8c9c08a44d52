/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The extension module horon._horon: the C ABI of horon for Python, in the limited API of 3.11, so
 * one build serves every later Python. It knows addresses, buffers and DLPack, and no framework;
 * the adapters above it are Python.
 */
#include "_horon_request.h"
#include "_horon_set.h"

#include <string.h>

/* ---- Errors ---- */

static PyObject *decode(const char *text)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

static const char *cause_name(int32_t cause)
{
    switch ((horon_cause_t)cause) {
#define NAME_CASE(name, value, text)                                                               \
    case HORON_CAUSE_##name:                                                                       \
        return #name;
        HORON_CAUSE_MAP(NAME_CASE)
#undef NAME_CASE
    }
    return "NONE"; /* of a newer library */
}

/* Steals @p value, which may be NULL with an exception. */
static bool set_attribute(PyObject *error, const char *name, PyObject *value)
{
    const bool set = value && PyObject_SetAttrString(error, name, value) == 0;
    Py_XDECREF(value);
    return set;
}

static PyObject *rank_or_none(int32_t rank)
{
    return rank < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(rank);
}

/* An exception of @p type that says what exceptions.py tells of HoronInternalError. */
static PyObject *raise_as(PyObject *type, const horon_failure_t *failure)
{
    const char *text =
        *failure->text ? failure->text : horon_status_text((horon_status_t)failure->status);
    PyObject *message = decode(text);
    PyObject *error = message ? PyObject_CallFunctionObjArgs(type, message, NULL) : NULL;
    if (error && set_attribute(error, "status", PyLong_FromLong(failure->status)) &&
        set_attribute(error, "cause", decode(cause_name(failure->cause))) &&
        set_attribute(error, "rank", rank_or_none(failure->rank)) &&
        set_attribute(error, "other_rank", rank_or_none(failure->other_rank)) &&
        set_attribute(error, "host", decode(failure->host)) &&
        set_attribute(error, "input_lost", PyBool_FromLong(failure->input_lost)) &&
        set_attribute(error, "name", decode(failure->name)))
        PyErr_SetObject(type, error);
    Py_XDECREF(message);
    Py_XDECREF(error);
    return NULL;
}

PyObject *horon_py_raise_failed(struct horon_py_state *state, const horon_failure_t *failure)
{
    return raise_as(state->internal_error, failure);
}

PyObject *horon_py_raise_closed(struct horon_py_state *state, const char *text)
{
    horon_failure_t failure = HORON_FAILURE_INIT;
    failure.status = HORON_ERR_CLOSED;
    failure.cause = HORON_CAUSE_CLOSED;
    failure.text = text;
    return raise_as(state->internal_error, &failure);
}

PyObject *horon_py_raise_late(const char *text)
{
    horon_failure_t failure = HORON_FAILURE_INIT;
    failure.status = HORON_ERR_TIMEOUT;
    failure.cause = HORON_CAUSE_TIME_LIMIT;
    failure.text = text;
    return raise_as(PyExc_TimeoutError, &failure);
}

PyObject *horon_py_raise_refused(struct horon_py_state *state, horon_status_t status,
                                 const horon_context_t *handle)
{
    PyObject *type = state->internal_error;
    horon_failure_t failure = HORON_FAILURE_INIT;
    horon_last_failure(handle, &failure);
    failure.status = status;
    if (status == HORON_ERR_INVALID || status == HORON_ERR_DUPLICATE ||
        status == HORON_ERR_UNSUPPORTED || status == HORON_ERR_CONFIG)
        type = PyExc_ValueError;
    /* with a context, a time limit is that of an operation before, which failed the process set */
    if (status == HORON_ERR_TIMEOUT && !(handle && failure.cause == HORON_CAUSE_TIME_LIMIT))
        type = PyExc_TimeoutError;
    return raise_as(type, &failure);
}

/* ---- Functions ---- */

static PyObject *module_version(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return PyUnicode_FromString(horon_version());
}

static PyObject *module_feature(PyObject *module, PyObject *name)
{
    (void)module;
    const char *text = PyUnicode_AsUTF8AndSize(name, NULL);
    return text ? PyBool_FromLong(horon_feature(text)) : NULL;
}

static PyObject *module_status_text(PyObject *module, PyObject *status)
{
    (void)module;
    long code = PyLong_AsLong(status);
    if (code == -1 && PyErr_Occurred())
        return NULL;
    return PyUnicode_FromString(horon_status_text((horon_status_t)code));
}

/* describe(tensor) -> (dtype, shape, readonly) of anything that submit() takes. */
static PyObject *module_describe(PyObject *module, PyObject *object)
{
    struct horon_py_tensor tensor;
    if (horon_py_tensor_from_object(PyModule_GetState(module), object, false, true, &tensor) < 0) {
        Py_XDECREF(tensor.keep);
        return NULL;
    }
    PyObject *shape = PyTuple_New(tensor.ndim);
    for (int32_t i = 0; shape && i < tensor.ndim; i++) {
        PyObject *rows = PyLong_FromUnsignedLongLong(tensor.shape[i]);
        if (!rows || PyTuple_SetItem(shape, i, rows) < 0)
            Py_CLEAR(shape);
    }
    Py_XDECREF(tensor.keep);
    if (!shape)
        return NULL;
    return Py_BuildValue("(INO)", (unsigned int)tensor.dtype, shape,
                         tensor.readonly ? Py_True : Py_False);
}

static PyMethodDef functions[] = {
    {"version", module_version, METH_NOARGS, "Version of the library in use."},
    {"feature", module_feature, METH_O, "feature(name) -> whether the library has it."},
    {"status_text", module_status_text, METH_O, "Text of a status code."},
    {"describe", module_describe, METH_O, "describe(tensor) -> (dtype, shape, readonly)."},
    {"start_all", horon_py_start_all, METH_O, "Begins prepared requests with one wake-up."},
    {"wait_all", (PyCFunction)(void (*)(void))horon_py_wait_all, METH_FASTCALL,
     "wait_all(requests, timeout=None): until all have ended; raises the first failure."},
    {NULL, NULL, 0, NULL},
};

/* ---- The module ---- */

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject *base,
                    PyTypeObject **type_out)
{
    *type_out = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, (PyObject *)base);
    return *type_out ? PyModule_AddType(module, *type_out) : -1;
}

static int add_dtypes(PyObject *module)
{
    PyObject *dtypes = PyDict_New();
    for (int i = 0; dtypes && i < HORON_DTYPE_COUNT; i++) {
        PyObject *code = PyLong_FromLong(i);
        if (!code || PyDict_SetItemString(dtypes, horon_dtype_name((horon_dtype_t)i), code) < 0)
            Py_CLEAR(dtypes);
        Py_XDECREF(code);
    }
    int failed = PyModule_AddObjectRef(module, "DTYPES", dtypes);
    Py_XDECREF(dtypes);
    return failed;
}

static int add_statuses(PyObject *module)
{
    PyObject *statuses = PyDict_New();
#define ADD_STATUS(name, value, text)                                                              \
    {                                                                                              \
        PyObject *code = PyLong_FromLong(value);                                                   \
        if (statuses && (!code || PyDict_SetItemString(statuses, #name, code) < 0))                \
            Py_CLEAR(statuses);                                                                    \
        Py_XDECREF(code);                                                                          \
    }
    HORON_STATUS_MAP(ADD_STATUS)
#undef ADD_STATUS
    int failed = PyModule_AddObjectRef(module, "STATUSES", statuses);
    Py_XDECREF(statuses);
    return failed;
}

static int add_constants(PyObject *module)
{
    static const struct {
        const char *name;
        int value;
    } constants[] = {
        {"IN_ORDER", HORON_IN_ORDER},
        {"NDIM_MAX", HORON_NDIM_MAX},
        {"NAME_BYTES_MAX", HORON_NAME_BYTES_MAX},
    };
    for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++)
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0)
            return -1;
    for (int i = 0; horon_py_redop_constant(i); i++)
        if (PyModule_AddIntConstant(module, horon_py_redop_constant(i), i) < 0)
            return -1;
    for (int i = 0; i < HORON_VERB_COUNT; i++)
        if (PyModule_AddIntConstant(module, horon_py_verb_row((uint32_t)i)->constant, i) < 0)
            return -1;
    return add_dtypes(module) || add_statuses(module) ? -1 : 0;
}

static int module_exec(PyObject *module)
{
    struct horon_py_state *state = PyModule_GetState(module);
    if (add_type(module, &horon_py_context_spec, NULL, &state->context_type) < 0 ||
        add_type(module, &horon_py_request_spec, NULL, &state->request_type) < 0 ||
        add_type(module, &horon_py_plain_spec, state->request_type, &state->plain_type) < 0 ||
        add_type(module, &horon_py_plain_tensors_spec, NULL, &state->plain_tensors_type) < 0 ||
        add_type(module, &horon_py_array_spec, NULL, &state->array_type) < 0 ||
        add_type(module, &horon_py_team_spec, NULL, &state->team_type) < 0 ||
        add_constants(module) < 0)
        return -1;
    PyObject *exceptions = PyImport_ImportModule("horon.exceptions");
    if (!exceptions)
        return -1;
    state->internal_error = PyObject_GetAttrString(exceptions, "HoronInternalError");
    Py_DECREF(exceptions);
    return state->internal_error ? 0 : -1;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    struct horon_py_state *state = PyModule_GetState(module);
    Py_VISIT(state->context_type);
    Py_VISIT(state->request_type);
    Py_VISIT(state->plain_type);
    Py_VISIT(state->plain_tensors_type);
    Py_VISIT(state->array_type);
    Py_VISIT(state->team_type);
    Py_VISIT(state->internal_error);
    Py_VISIT(state->exchange_type);
    return 0;
}

static int module_clear(PyObject *module)
{
    struct horon_py_state *state = PyModule_GetState(module);
    Py_CLEAR(state->context_type);
    Py_CLEAR(state->request_type);
    Py_CLEAR(state->plain_type);
    Py_CLEAR(state->plain_tensors_type);
    Py_CLEAR(state->array_type);
    Py_CLEAR(state->team_type);
    Py_CLEAR(state->internal_error);
    Py_CLEAR(state->exchange_type);
    return 0;
}

static void module_free(void *module)
{
    module_clear(module);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,          .m_name = "horon._horon",
    .m_doc = "The C ABI of horon.", .m_size = sizeof(struct horon_py_state),
    .m_methods = functions,         .m_slots = module_slots,
    .m_traverse = module_traverse,  .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__horon(void);
PyMODINIT_FUNC PyInit__horon(void)
{
    return PyModuleDef_Init(&definition);
}
