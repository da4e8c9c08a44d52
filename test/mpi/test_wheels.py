# SPDX-License-Identifier: Apache-2.0
"""The MPIs that PyPI has: MPICH, Open MPI and Intel's, with their own ABI and that of MPI 5. They
lie where tools/setup has put them, a folder each; HORON_TEST_MPI names another such folder."""

import functools
import os
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tools"), str(HERE.parent / "drift")]

import launchers  # noqa: E402
import tap  # noqa: E402
from results import MPI, check_results  # noqa: E402

BESIDE_MPI = os.environ.get("BESIDE_MPI")
SUM_ONCE = os.environ.get("SUM_ONCE")
STANDARD = "libmpi_abi.so.1"
# PMIx's own shared memory wants an address that a sanitizer may have taken.
PLAIN = {"PMIX_MCA_gds": "hash"}
FILES = {
    "libmpi.so.40": (launchers.mpirun, "mpirun"),
    "libmpi.so.12": (launchers.hydra, "mpiexec.hydra"),
    STANDARD: (launchers.hydra, "mpiexec.hydra"),
}


def wheels(name="*"):
    """-> (launch, file of the library) of each that is here"""
    found = [
        (
            functools.partial(launch, program=str(file.parents[1] / "bin" / program), **PLAIN),
            str(file),
        )
        for soname, (launch, program) in FILES.items()
        for file in sorted(launchers.WHEELS.glob(f"*/lib/{soname}"))
        if name in ("*", soname)
    ]
    return tap.need(found, f"no MPI of PyPI is in {launchers.WHEELS} (tools/setup puts it there)")


def test_results_are_right_with_each():
    for launch, file in wheels():
        for mode, size in ("in-order", 2), ("named", 3):
            err = check_results(launch, mode, size, HORON_MPI_LIBRARY=file)
            assert err.count(file) >= size, err


def test_ranks_of_one_host_have_a_key_of_their_own():
    """Open MPI's mpirun has a folder for it."""
    for launch, _ in wheels("libmpi.so.40"):
        script = 'echo "folder $PMIX_SERVER_TMPDIR"; exec "$@"'
        with launch(2, "sh", "-c", script, "-", SUM_ONCE, "1009", HORON_LOG_LEVEL="debug") as job:
            status, out, err = job.end()
            folders = set(re.findall(r"folder (.*)", out))
            assert len(folders) == 1 and not os.path.exists(folders.pop()), (out, err)
        assert status == 0, (out, err)
        assert err.count("the job key comes from the launcher's folder") == 2, (out, err)


def test_a_program_that_uses_one_of_them_itself():
    """t and e are MPI_Init_thread() for calls of all threads, and of one at a time; w joins by
    MPI_COMM_WORLD, and horon begins MPI in the last one."""
    for launch, file in wheels():
        for steps in "tjsbslf", "ejxbslf", "twsblf", "jsblbjsl":
            env = {**MPI, "HORON_MPI_SERIALIZED": "1"}
            env |= {} if "f" in steps else {"HORON_MPI_LIBRARY": file}
            with launch(3, BESIDE_MPI, file, steps, **env) as job:
                status, out, err = job.end()
            job.assert_nothing_left()
            assert status == 0, (file, steps, out, err)
            sums = 3 * (steps.count("s") + 2 * steps.count("x"))
            assert out.count("sum 3") == sums, (file, steps, out, err)
            assert err.count("backend mpi is connected, among 3 ranks") >= 3, (file, steps, err)


def test_a_launcher_of_another_mpi_with_the_same_abi_is_named():
    for _, file in wheels(STANDARD):
        with launchers.mpirun(2, SUM_ONCE, "1009", **MPI, HORON_MPI_LIBRARY=file) as job:
            status, out, err = job.end()
        assert status != 0, (out, err)
        assert "Open MPI started 2 ranks, but" in err and "is not its library" in err, err


tap.run(dict(vars()))
