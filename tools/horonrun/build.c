/* SPDX-License-Identifier: Apache-2.0 */
/* --check-build, in horovodrun's layout, each absence with its reason. */
#include "build.h"

#include "found.h"

#include <horon/horon.h>
#include <string.h>

static void print_row(FILE *to, bool yes, const char *name, const char *why)
{
    fprintf(to, why[0] ? "    [%c] %-14s %s\n" : "    [%c] %s%s\n", yes ? 'X' : ' ', name, why);
}

/* A name on a line of its own. */
static bool has_line(const char *text, const char *name)
{
    size_t bytes = strlen(name);
    for (const char *at = text; (at = strstr(at, name)); at += bytes)
        if (at > text && at[-1] == '\n' && (!at[bytes] || at[bytes] == '\n'))
            return true;
    return false;
}

static void print_frameworks(FILE *to)
{
    struct horon_found python;
    char why[256];
    horon_found_python(&python);
    bool horon = python.yes && has_line(python.text, "horon");
    snprintf(why, sizeof why, "(%.*s)", (int)strcspn(python.text, "\n"), python.text);
    fprintf(to, "\nAvailable Frameworks:\n");
    print_row(to, true, "C", "");
    print_row(to, horon, "Python",
              horon        ? why
              : python.yes ? "the python3 in PATH has no module horon"
                           : why);
    bool torch = python.yes && has_line(python.text, "torch");
    print_row(to, horon && torch, "PyTorch",
              torch ? "" : "the python3 in PATH has no module torch");
}

static void print_backend(FILE *to, const char *backend, const char *name)
{
    struct horon_found found;
    char why[sizeof found.text + 2];
    horon_found_backend(&found, backend);
    snprintf(why, sizeof why, found.yes ? "(%s)" : "%s", found.text);
    print_row(to, found.yes, name, why);
}

/* No backend stands on it yet. */
static void print_cuda(FILE *to)
{
    struct horon_found found;
    char why[512];
    horon_found_cuda(&found);
    snprintf(why, sizeof why, "this horon does not use it (%s: %.*s)",
             found.yes ? "there is" : "nor is it here", (int)strcspn(found.text, "\n"), found.text);
    print_row(to, false, "CUDA", why);
}

void horonrun_build_print(FILE *to)
{
    fprintf(to, "horon v%s:\n", horon_version());
    print_frameworks(to);
    fprintf(to, "\nAvailable Controllers:\n");
    print_row(to, true, "horon", "(a tree over hosts, shared memory inside)");
    fprintf(to, "\nAvailable Tensor Operations:\n");
    print_row(to, horon_feature("shm"), "shared memory", "");
    print_row(to, horon_feature("tcp"), "TCP", "");
    print_cuda(to);
    print_backend(to, "nccl", "NCCL");
    print_backend(to, "mpi", "MPI");
    print_backend(to, "gloo", "Gloo");
}
