# SPDX-License-Identifier: Apache-2.0
"""horon beside other libraries in one process: none of the names of the libraries that it uses
reaches the process, so a program links horon and an MPI in either order and both work."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import tap
import tree

ALONE = """#define _GNU_SOURCE
#include <dlfcn.h>
#include <horon/horon.h>
#include <stdio.h>
int main(void)
{
    char why[HORON_ERROR_TEXT_BYTES] = "";
    horon_options_t options = HORON_OPTIONS_INIT;
    horon_context_t *ctx;
    options.rank = 0, options.size = 1;
    if (horon_context_create(&options, &ctx, why, sizeof why) != HORON_OK)
        return printf("%s\\n", why), 1;
    if (dlsym(RTLD_DEFAULT, "event_add") || dlsym(RTLD_DEFAULT, "ev_run"))
        return printf("libev's names are in the process\\n"), 1;
    horon_context_destroy(ctx);
    return 0;
}
"""

BESIDE_MPI = """#include <horon/horon.h>
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    char why[HORON_ERROR_TEXT_BYTES] = "";
    horon_context_t *ctx;
    double one = 1, horons = 0, mpis = 0;
    horon_descriptor_t d = HORON_DESCRIPTOR_INIT;
    d.verb = HORON_ALLREDUCE, d.name = "x", d.dtype = HORON_FLOAT64, d.redop = HORON_SUM;
    d.src = &one, d.dst = &horons, d.count = 1;
    if (%(first)s || %(second)s)
        return printf("%%s\\n", why), 1;
    if (horon_run(ctx, &d, -1, why, sizeof why) != HORON_OK)
        return printf("%%s\\n", why), 1;
    MPI_Allreduce(&one, &mpis, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    horon_context_destroy(ctx);
    MPI_Finalize();
    return horons != 1 || mpis != 1;
}
"""
MPI_BEGINS = "MPI_Init(&argc, &argv)"
HORON_BEGINS = "horon_context_create(NULL, &ctx, why, sizeof why)"
MPI_COMPILERS = {"Open MPI": "mpicc.openmpi", "MPICH": "mpicc.mpich"}


def library_folder():
    shared = tree.built("libhoron.so")
    return tap.need(shared, "libhoron.so is not built here").parent


def run_program(compiler, text, libraries):
    """Compiles @p text with @p libraries in this order, runs it, and fails with what it says."""
    folder = library_folder()
    if any("sanitize" in word for entry in tree.compile_commands()[:1] for word in entry.values()):
        raise tap.Skip("a sanitizer's runtime must come first in a process")
    with tempfile.TemporaryDirectory() as scratch:
        source, program = Path(scratch, "guest.c"), Path(scratch, "guest")
        source.write_text(text, encoding="utf-8")
        command = [compiler, "-I", tree.ROOT / "include", source, "-o", program, "-L", folder]
        subprocess.run([*command, *libraries], check=True)
        done = subprocess.run(
            [program], capture_output=True, text=True, check=False, timeout=60, cwd=scratch,
            env={**os.environ, "LD_LIBRARY_PATH": str(folder), "TMPDIR": scratch},
        )  # fmt: skip
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}{done.stderr}"


def runs_beside(mpi, first, second, libraries):
    compiler = MPI_COMPILERS[mpi]
    tap.need(shutil.which(compiler), f"there is no {compiler}: {mpi}'s headers are not installed")
    run_program(compiler, BESIDE_MPI % {"first": first, "second": second}, libraries)


def test_guest_names_of_libev_stay_out_of_the_process():
    run_program("cc", ALONE, ["-lhoron"])


def test_guest_horon_begun_before_open_mpi():
    runs_beside("Open MPI", HORON_BEGINS, MPI_BEGINS, ["-lhoron", "-lmpi"])


def test_guest_open_mpi_begun_before_horon():
    runs_beside("Open MPI", MPI_BEGINS, HORON_BEGINS, ["-lmpi", "-lhoron"])


def test_guest_horon_begun_before_mpich():
    runs_beside("MPICH", HORON_BEGINS, MPI_BEGINS, ["-lhoron", "-lmpich"])


def test_guest_mpich_begun_before_horon():
    runs_beside("MPICH", MPI_BEGINS, HORON_BEGINS, ["-lmpich", "-lhoron"])


tap.run(globals())
