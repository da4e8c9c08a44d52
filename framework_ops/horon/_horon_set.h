/* SPDX-License-Identifier: Apache-2.0 */
/* What Context, which is the job, and Team, a process set, have in common. */
#ifndef HORON_PY_SET_H
#define HORON_PY_SET_H

#include "_horon.h"

/* What an operation goes to: the job (0) or a process set. */
struct horon_py_set {
    struct horon_py_context *context;
    int32_t id;
    int32_t size; /* its ranks */
};

/* @return the job of a Context */
struct horon_py_set horon_py_job_of(PyObject *context);
/* @return whether @p team is a Context or a Team: what it stands for; else with an exception */
bool horon_py_set_of(struct horon_py_state *state, PyObject *team, struct horon_py_set *set_out);

/* Has it a handle? Else an exception is set. */
bool horon_py_is_open(struct horon_py_context *context);

/* The methods of Context and Team that begin operations; _horon_context.c says what each does. */
PyObject *horon_py_submit(const struct horon_py_set *set, PyObject *const *args, Py_ssize_t nargs);
PyObject *horon_py_prepare(const struct horon_py_set *set, PyObject *const *args, Py_ssize_t nargs);
PyObject *horon_py_submit_group(const struct horon_py_set *set, PyObject *group);
PyObject *horon_py_operation_of(const struct horon_py_set *set, PyObject *args);
PyObject *horon_py_join(const struct horon_py_set *set, PyObject *into);
PyObject *horon_py_setting(struct horon_py_context *context, PyObject *name);

/* _horon_team.c: methods of Context on process sets. */
PyObject *horon_py_add_process_set(PyObject *context, PyObject *arguments);
PyObject *horon_py_remove_process_set(PyObject *context, PyObject *id);
PyObject *horon_py_process_sets(PyObject *context, PyObject *ignored);
PyObject *horon_py_team(PyObject *context, PyObject *id);

extern PyType_Spec horon_py_team_spec;

#endif
