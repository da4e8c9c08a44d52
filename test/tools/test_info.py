# SPDX-License-Identifier: Apache-2.0
"""horon-info: what it prints comes from the machine and the option table, secrets excepted."""

import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "drift")]

import tap  # noqa: E402

INFO = os.environ.get("HORON_TEST_INFO", "horon-info")


def info_with_errors(*words, **variables):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HORON_")}
    done = subprocess.run(
        [INFO, *words], env={**clean, **variables}, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def info(*words, **variables):
    return info_with_errors(*words, **variables)[:2]


def test_info_prints_all_parts():
    status, out = info()
    assert status == 0
    assert re.match(r"horon \d+\.\d+\.\d+\n", out)
    for word in (
        "allreduce",
        "machine\n",
        "networks\n",
        "libraries\n",
        "backends\n",
        "operations\n",
        "options\n",
    ):
        assert word in out
    assert f"may use {len(os.sched_getaffinity(0))} hardware thread" in out
    assert re.search(r"long messages are copied (once|twice): ", out)
    for name in ("CUDA", "Python", "native", "mpi", "gloo", "nccl"):
        assert re.search(rf"^  {name} +\S", out, re.M), name


def test_info_asks_for_all_features_of_the_header():
    header = (HERE.parent.parent / "include" / "horon" / "horon.h").read_text(encoding="utf-8")
    told = header.partition("has a feature:")[2].partition("@return")[0]
    out = info()[1]
    asked = re.findall(r"\w+", " ".join(re.findall(r"^  has(?: not)? +(\S.*)$", out, re.M)))
    assert sorted(asked) == sorted(re.findall(r'"(\w+)"', told))


def backends(**variables):
    status, out = info("--check-build", **variables)
    assert status == 0, out
    return dict(line.split(maxsplit=1) for line in out.splitlines())


def carried(**variables):
    """@return verbs in host memory, by what carries them"""
    status, out = info("--machine", **variables)
    assert status == 0, out
    told = out.partition("\noperations\n")[2].partition("CUDA memory")[0]
    found = {}
    for by, verbs in re.findall(r"(\w+): (.*)", told):
        found.setdefault(by, []).extend(verbs.split())
    return found


def test_info_tells_of_each_backend_in_one_line_what_was_found():
    found = backends()
    assert list(found) == ["native", "mpi", "gloo", "nccl"], found
    assert re.match(r"shared memory inside a host, TCP .* of horon \d", found["native"]), found
    assert re.match(r"horon .* speaks its wire", found["gloo"]), found
    assert re.match(r"no: ", found["nccl"]), found
    one = r"(Open MPI v|MPICH Version: )[\d.]+ from /\S+"
    several = "; a rank uses its program's own, else lib.*"
    assert re.fullmatch(rf"{one}((; {one})+{several})?|no: none of lib\S+ .*", found["mpi"]), found
    found = backends(HORON_MPI_LIBRARY="/nowhere/libmpi.so")
    assert re.match(r"no: /nowhere/libmpi.so: cannot open", found["mpi"]), found
    found = backends(HORON_MPI_LIBRARY=os.environ["MPI_STUB"])
    assert re.match(r"no: \S+ has no MPI_\w+$", found["mpi"]), found


def test_info_tells_which_of_several_mpis_a_rank_uses():
    found = backends()["mpi"]
    names = {"Open MPI": "libmpi.so.40", "MPICH": "libmpich.so.12"}
    tap.need(all(name in found for name in names), "Open MPI and MPICH are not both installed")
    chosen = "; a rank uses its program's own, else libmpi.so.40, or libmpich.so.12 below MPICH's "
    assert found.endswith(f"{chosen}mpiexec"), found
    assert "a rank uses" not in backends(HORON_MPI_LIBRARY=names["MPICH"])["mpi"]


def test_info_tells_which_backend_carries_what():
    native = carried()
    assert list(native) == ["native", "links"] and native["links"] == ["send", "recv"], native
    lost = carried(HORON_BACKEND="mpi", HORON_MPI_LIBRARY="/nowhere/libmpi.so")
    assert lost == native
    assert carried(HORON_BACKEND="native,mpi") == native
    for words in {}, {"HORON_BACKEND": "gloo"}:
        gloo = carried(HORON_GLOO_STORE="file:/nowhere", **words)
        assert gloo.keys() == {"gloo"} and {"allreduce", "send"} <= set(gloo["gloo"]), gloo
    if not backends()["mpi"].startswith("no: "):
        assert carried(HORON_BACKEND="mpi") == {"mpi": native["native"], "links": ["send", "recv"]}
        split = carried(HORON_BACKEND="mpi", HORON_DETERMINISTIC="1")
        assert "allreduce" in split["native"] and "broadcast" in split["mpi"], split
    out = info("--machine", HORON_BACKEND="mpy")[1]
    assert 'host memory       HORON_BACKEND names "mpy", which is no backend' in out, out


def test_info_tells_where_a_value_comes_from():
    status, out = info(
        "--config", HORON_FUSION_BYTES="32m", HOROVOD_CACHE_CAPACITY="5", HORON_LOG_LEVEL="debug"
    )
    assert status == 0
    assert "HORON_FUSION_BYTES=33554432  (environment)" in out
    assert "HORON_CACHE_ENTRIES=5  (HOROVOD_CACHE_CAPACITY)" in out
    assert "HORON_LOG_LEVEL=debug  (environment)" in out
    assert "HORON_SHM=1  (default)" in out


def test_info_tells_that_a_switch_of_horovods_comes_before_its_time():
    switch = "HOROVOD_STALL_CHECK_DISABLE"
    times = {
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "7",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "9",
    }
    out = info("--config", **times, **{switch: "1"})[1]
    assert f"HORON_STALL_WARN=0ms  ({switch})" in out
    assert f"HORON_STALL_SHUTDOWN_TIME=0ms  ({switch})" in out
    out = info("--config", **times, **{switch: "0"})[1]
    assert "HORON_STALL_WARN=7000ms  (HOROVOD_STALL_CHECK_TIME_SECONDS)" in out
    out = info("--config", HORON_STALL_WARN="2s", **{switch: "1"})[1]
    assert "HORON_STALL_WARN=2000ms  (environment)" in out
    status, _, err = info_with_errors("--config", **{switch: "x"})
    assert (status, f"{switch}=x is neither 0 nor 1" in err) == (1, True), err


def test_info_keeps_the_key_to_itself():
    status, out = info("--config", HORON_JOB_KEY="do-not-show")
    assert status == 0
    assert "do-not-show" not in out
    assert "HORON_JOB_KEY=(set)" in out


def test_info_names_what_is_wrong():
    wrong = "HORON_FUSION_BYTES=many is not a size"
    status, out, err = info_with_errors("--config", HORON_FUSION_BYTES="many", HORON_SPIN_US="7")
    assert status == 1
    assert f"\n  HORON_FUSION_BYTES  WRONG: {wrong}" in out
    assert "HORON_SPIN_US=7  (environment)" in out  # all others are there
    assert err.startswith(f"horon-info: {wrong}") and err.count("\n") == 1, err
    status, _, err = info_with_errors(HOROVOD_STALL_CHECK_TIME_SECONDS="x", HORON_SPIN_US="y")
    assert (status, err.count("\n")) == (1, 2), err
    assert "HOROVOD_STALL_CHECK_TIME_SECONDS=x is not" in err, err
    status, out = info("--config", HORON_FUSION_BYTE="1m")
    assert status == 0
    assert "the nearest is HORON_FUSION_BYTES" in out


def test_info_markdown_has_a_line_for_each_row():
    _, table = info("--config")
    names = re.findall(r"^  HORON_(\w+)=", table, re.M)
    status, out = info("--config", "--markdown")
    assert status == 0
    assert re.findall(r"^\| `HORON_(\w+)` \|", out, re.M) == names
    assert {line.count(" | ") for line in out.splitlines()[2:]} == {5}


def test_info_wrong_word_is_refused():
    for words in (["--nonsense"], ["foo"], ["--config", "foo"]):
        status, out, err = info_with_errors(*words)
        assert (status, out) == (2, "")
        assert err.startswith(f"horon-info: {words[-1]} is not one of its options\n"), err
        assert "usage: horon-info" in err
    assert info("--help")[0] == 0


def test_info_that_cannot_be_written_is_no_success():
    for words in ([], ["--config"], ["--version"], ["--help"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [INFO, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
            )
        assert done.returncode == 1, (words, done)
        assert "horon-info: standard output cannot be written: No space" in done.stderr, done


tap.run(dict(vars()))
