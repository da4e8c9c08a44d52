# SPDX-License-Identifier: Apache-2.0
"""horon-perf as users run it: right results on every verb and way in, whole JSON lines, the MPI
library found at run time, and nothing left behind when it is interrupted. No time is asserted."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "drift"), str(HERE.parent / "tools")]

import jobs  # noqa: E402
import launchers  # noqa: E402
import tap  # noqa: E402

PERF = os.environ.get("HORON_TEST_PERF", "horon-perf")
QUICK = ["-n", "3", "-w", "1", "-c", "1"]
FIELDS = ["size", "count", "type", "redop", "np", "in_place", "time_us", "algbw", "busbw", "wrong"]


def measure(np, *words):
    """Runs a job. @return the objects of its JSON file, all of them checked for their fields"""
    with tempfile.TemporaryDirectory() as folder:
        path = str(pathlib.Path(folder) / "out.json")
        job = ["-np", str(np), PERF, *words, *QUICK, "--json", path]
        status, out, err = jobs.run(*job)
        assert status == 0, f"{words}: status {status}\n{out}{err}"
        cells = [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]
    for cell in cells:
        assert set(FIELDS) <= set(cell), cell
        assert cell["wrong"] == 0, cell
        assert cell["np"] == np
        assert cell["min_us"] <= cell["time_us"] <= cell["max_us"]
    return cells


def test_perf_example_of_the_readme_gives_both_places():
    cells = measure(2, "allreduce", "-b", "8", "-e", "1M", "-f", "8", "-d", "float", "-o", "sum")
    assert [cell["size"] for cell in cells[::2]] == [8 * 8**i for i in range(6)]
    assert [cell["in_place"] for cell in cells] == [False, True] * 6
    assert {cell["type"] for cell in cells} == {"float"}


def test_perf_head_says_what_carries_it():
    for words in ("allreduce", "--named", "-e", "1M"), ("sendrecv",), ("barrier",), ("scatter",):
        status, out, err = jobs.run("-np", "3", PERF, *words, *QUICK)
        assert status == 0, (words, out, err)
        assert out.count("# carried by native\n") == 1, out


def test_perf_help_says_how_the_wire_of_gloo_is_measured():
    done = subprocess.run([PERF, "--help"], capture_output=True, text=True, timeout=60, check=True)
    assert "Gloo's wire is measured by HORON_GLOO_STORE" in done.stdout, done.stdout
    with tempfile.TemporaryDirectory() as folder:
        job = ["-np", "2", "--gloo-store", f"file:{folder}", PERF, "allreduce", *QUICK]
        status, out, err = jobs.run(*job)
    assert status == 0, out + err
    assert "# carried by gloo\n" in out, out


def test_perf_parts_lie_among_those_of_all_ranks_in_place():
    for np in (1, 3):
        for words in ([], ["--tensors", "3"], ["--named", "--persistent", "--tensors", "2"]):
            for verb in ("allgather", "reducescatter", "gather", "scatter"):
                root = ["-r", str(np // 2)] if verb in ("gather", "scatter") else []
                cells = measure(np, verb, "-b", "24", "-e", "2M", "-f", "64", *root, *words)
                assert [cell["in_place"] for cell in cells] == [False, True] * 3
    (cell,) = measure(2, "alltoall", "-b", "64")
    assert not cell["in_place"]


def test_perf_ranks_that_share_no_memory_have_a_core_each():
    words = ["allreduce", "-b", "8", "--pin", *QUICK]
    status, out, err = jobs.run("-np", "3", "--shm", "0", PERF, *words)
    assert status == 0, f"{out}{err}"
    assert "3 ranks (3 on this machine)" in out, out  # so that --pin goes by the rank


def test_perf_every_verb_is_right():
    for np in (1, 3):
        assert measure(np, "broadcast", "-b", "4099", "-r", str(np - 1), "-d", "complex64")
        assert measure(np, "allgather", "-b", "40000", "-d", "bfloat16")
        assert measure(np, "alltoall", "-b", "40000", "-d", "int8")
        assert measure(np, "gather", "-b", "40000", "-r", str(np - 1))
        assert measure(np, "scatter", "-b", "40000", "-r", str(np - 1), "-d", "double")
        assert measure(np, "reducescatter", "-b", "40000", "-d", "half", "-o", "max")
        assert measure(np, "reduce", "-b", "40000", "-r", str(np - 1), "-d", "int16")
        if np > 1:
            assert measure(np, "sendrecv", "-b", "40000", "--tensors", "3")
        (cell,) = measure(np, "barrier")
        assert (cell["size"], cell["count"]) == (0, 0)
    (cell,) = measure(2, "barrier", "-b", "8", "-e", "1M", "-f", "64")  # as to all other verbs
    assert (cell["size"], cell["count"]) == (0, 0)


def test_perf_every_way_in_is_right():
    for words in (["--named"], ["--persistent"], ["--named", "--persistent", "--tensors", "17"]):
        assert measure(2, "allreduce", "-b", "4K", "-d", "half", *words)
        assert measure(2, "sendrecv", "-b", "4K", "-d", "half", *words)
    assert measure(3, "allreduce", "-b", "0", "-e", "4", "-i", "4", "--tensors", "5", "--named")


def test_perf_groups_are_right():
    for words in ([], ["--named"]):
        for verb in ("allreduce", "broadcast", "allgather", "alltoall", "reducescatter"):
            cells = measure(2, verb, "-b", "4K", "--tensors", "5", "--group", *words)
            assert all(cell["path"].endswith(", group") for cell in cells)
        assert measure(3, "allreduce", "-b", "0", "-e", "4", "-i", "4", "--group", *words)
    assert measure(4, "allreduce", "-b", "4K", "--sets", "6", "--tensors", "3", "--group")


def test_perf_sets_at_once_are_right():
    for words in ([], ["--named"], ["--persistent"], ["--named", "--tensors", "3"]):
        (cell, _) = measure(5, "allreduce", "-b", "4K", "--sets", "10", *words)
        assert cell["sets"] == 10
        # Of 3 ranks. Both are told to six digits, of which few are left where the machine is busy.
        assert abs(cell["busbw"] - cell["algbw"] * 4 / 3) < 2e-6, cell
    for words in (
        ["broadcast", "-r", "1"],
        ["allgather"],
        ["alltoall"],
        ["gather", "-r", "1"],
        ["scatter", "-r", "1"],
        ["reducescatter"],
        ["reduce", "-r", "1"],
        ["sendrecv"],
        ["barrier"],
    ):
        assert measure(4, *words, "-b", "4K", "--sets", "6")
    assert measure(4, "allreduce", "--sets", "1", "-b", "1M")  # two ranks have nothing to do


def test_perf_more_sets_than_there_are_are_refused():
    for np, sets, most in ((3, 1, 0), (4, 7, 6)):
        status, out, err = jobs.run("-np", str(np), PERF, "allreduce", "--sets", str(sets), *QUICK)
        assert status == 3, out + err
        assert f"{np} ranks have {most} different sets" in err, err


def test_perf_every_reducible_type_is_right():
    for word in ["uint8", "int16", "uint64", "half", "bfloat16", "double", "bool"]:
        for op in ["sum", "min", "max", "prod"]:
            assert measure(2, "allreduce", "-b", "4099", "-d", word, "-o", op)
    for word, op in (("int32", "band"), ("uint8", "bor"), ("int64", "bxor"), ("bool", "bxor")):
        assert measure(2, "allreduce", "-b", "4096", "-d", word, "-o", op)


def test_perf_slip_is_told_and_no_job_begun():
    done = subprocess.run(
        [PERF, "allreduce", "-b", "8x"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "8x" in done.stderr


def test_perf_part_of_an_allgather_is_an_element_at_least():
    status, out, err = jobs.run("-np", "3", PERF, "allgather", "-b", "8", *QUICK)
    assert status == 3, out + err
    assert "the smallest size, 8 bytes, is below one element of each of 3 ranks" in err
    assert "begin with --minbytes 12" in err
    assert "in-place" not in out


def test_perf_more_tensors_than_may_be_in_flight_are_refused():
    for words in ([], ["--named"], ["--persistent"]):
        job = ["-np", "2", "--inflight-max", "7", PERF, "allreduce", "--tensors", "8", *words]
        status, out, err = jobs.run(*job, *QUICK)
        assert status == 3, out + err
        assert "--tensors" in err and "INFLIGHT_MAX is 7" in err, err
        assert "in-place" not in out
    assert measure(2, "allreduce", "--tensors", "7", "--named", "-b", "64")


def test_perf_table_that_cannot_be_written_is_no_result():
    for words in (["--help"], ["barrier", *QUICK]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [PERF, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
            )
        assert done.returncode == 3, (words, done)
        assert "standard output cannot be written: " in done.stderr, done


def under_mpirun(*words):
    """-> what two ranks of Open MPI's print"""
    mpirun = tap.need(shutil.which("mpirun"), "mpirun is not installed")
    options = ["--bind-to", "none", "--oversubscribe"]
    options += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    leaks = {"ASAN_OPTIONS": "detect_leaks=0"}  # what Open MPI keeps is none of ours
    command = [mpirun, "-np", "2", *options, PERF, *words, *QUICK]
    with tempfile.TemporaryDirectory(prefix="mpi") as own:  # see test_starting.py
        env = {**jobs.CLEAN, **leaks, "TMPDIR": own}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
    if "Open MPI" not in done.stdout and done.returncode == 3:
        raise tap.Skip(f"no usable MPI library: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_perf_mpi_peer_runs_under_mpirun():
    for verb, places in (
        (["allreduce"], 2),
        (["allreduce", "--polled"], 2),
        (["barrier", "--polled", "--mpi-multiple"], 1),
        (["sendrecv"], 1),
        (["sendrecv", "--polled"], 1),
        (["sendrecv", "--tensors", "3"], 1),
        (["allgather"], 2),
        (["allgather", "--tensors", "3"], 2),
        (["reducescatter"], 1),
        (["gather", "-r", "1"], 2),
        (["gather", "-r", "1", "--tensors", "3"], 2),
        (["scatter", "-r", "1"], 2),
        (["scatter", "-r", "1", "--tensors", "3"], 2),
    ):
        sizes = [] if verb[0] == "barrier" else ["-b", "8", "-e", "64K", "-f", "64"]
        out = under_mpirun(*verb, "--peer", "mpi", *sizes)
        rows = re.findall(r"^ +\d+ +\d+ +float +.*", out, re.M)
        assert len(rows) == (3 if sizes else 1), out
        assert {2 - row.count("| " + " " * 8 + "-") for row in rows} == {places}, out


def test_perf_backend_is_told():
    alone = subprocess.run([PERF, "allreduce", *QUICK], capture_output=True, text=True, timeout=60)
    assert ", HORON_BACKEND=native, 1 ranks" in alone.stdout, alone
    both = under_mpirun("allreduce", "--backend", "mpi,native")
    assert ", HORON_BACKEND=mpi,native, 2 ranks" in both, both
    for words, told in (
        (("--backend", "mpi", "--peer", "mpi"), "--backend"),
        (("--polled",), "--polled"),
        (("--mpi-multiple",), "--mpi-multiple"),
    ):
        done = subprocess.run([PERF, "allreduce", *words], capture_output=True, text=True)
        assert done.returncode == 2 and told in done.stderr, done.stderr


def test_perf_mpi_peer_under_horonrun_is_refused():
    tap.need(shutil.which("mpirun"), "mpirun is not installed")
    leaks = {"ASAN_OPTIONS": "detect_leaks=0"}
    status, out, err = jobs.run("-np", "2", PERF, "allreduce", "--peer", "mpi", *QUICK, env=leaks)
    if "MPI sees" not in err and "no MPI library" in err:
        raise tap.Skip("no usable MPI library")
    assert status == 3, out + err
    assert "MPI sees one rank, horonrun started 2: start it with mpirun" in err
    assert "in-place" not in out


def test_perf_mpi_peer_under_another_mpis_launcher_is_refused():
    others = (
        (launchers.mpirun, "libmpich.so.12", "Open MPI"),
        (launchers.hydra, "libmpi.so.40", "MPICH's mpiexec or the like (PMI)"),
    )
    for launch, library, started_by in others:
        words = [PERF, "allreduce", "--peer", "mpi", "--mpi-library", library, *QUICK]
        with launch(2, *words, ASAN_OPTIONS="detect_leaks=0") as job:
            status, out, err = job.end()
        if "no MPI library" in err:
            raise tap.Skip(f"{library} is not installed")
        assert status != 0, (out, err)
        told = rf"MPI sees one rank, {re.escape(started_by)} started 2: name .* with --mpi-library"
        assert re.search(told, err), err
        assert "in-place" not in out, out


def test_perf_missing_mpi_library_is_named():
    words = [PERF, "allreduce", "--peer", "mpi", "--mpi-library", "libno-such-mpi.so"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert "libno-such-mpi.so" in done.stderr


def memory_of(pid):
    """(name, mode) of the memory that a process has as files."""
    for path in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it is closed meanwhile
            name = os.readlink(path)
            if name.startswith("/memfd:"):
                yield name, path.stat().st_mode


def test_perf_job_has_no_memory_that_could_be_executed():
    """Linux 6.3 to 6.5 refuse, where vm.memfd_noexec is 2, what was not asked for as such."""
    try:
        os.close(os.memfd_create("probe", 8))  # MFD_NOEXEC_SEAL
    except OSError:
        raise tap.Skip("this kernel does not tell such memory apart") from None
    with jobs.Job("-np", "2", PERF, "allreduce", "-b", "64K", "-n", "1000000") as job:
        job.wait_for_output(rb"horon-perf allreduce")
        found = {entry for pid in job.pids() for entry in memory_of(pid)}
        job.process.send_signal(signal.SIGINT)
        job.end()
    names = {name.partition(":")[2].partition(" ")[0] for name, _ in found}
    assert {"horon-perf", "horon-job-key"} <= names, names
    assert not [entry for entry in found if entry[1] & 0o111], found


def test_perf_interrupt_leaves_nothing():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "out.json"
        words = ["allreduce", "-b", "64K", "-n", "1000000", "--json", str(path)]
        with jobs.Job("-np", "2", PERF, *words) as job:
            job.wait_for_output(rb"horon-perf allreduce")
            job.process.send_signal(signal.SIGINT)
            status, _, _ = job.end()
            job.assert_nothing_left()
        assert status != 0
        assert os.listdir(folder) in ([], ["out.json"])
    # Other programs come and go there meanwhile.
    assert not [name for name in os.listdir("/dev/shm") if "horon" in name]


if __name__ == "__main__":
    tap.run(vars())
