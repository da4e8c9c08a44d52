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


def info(*words, **variables):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HORON_")}
    done = subprocess.run(
        [INFO, *words], env={**clean, **variables}, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout


def test_info_prints_all_parts():
    status, out = info()
    assert status == 0
    assert re.match(r"horon \d+\.\d+\.\d+\n", out)
    for word in ("allreduce", "machine\n", "networks\n", "libraries\n", "options\n"):
        assert word in out
    assert f"may use {len(os.sched_getaffinity(0))} hardware thread" in out
    for name in ("CUDA", "NCCL", "MPI", "Python"):
        assert re.search(rf"^  {name} +\S", out, re.M), name


def test_info_tells_where_a_value_comes_from():
    status, out = info(
        "--config", HORON_FUSION_BYTES="32m", HOROVOD_CACHE_CAPACITY="5", HORON_LOG_LEVEL="debug"
    )
    assert status == 0
    assert "HORON_FUSION_BYTES=33554432  (environment)" in out
    assert "HORON_CACHE_ENTRIES=5  (HOROVOD_CACHE_CAPACITY)" in out
    assert "HORON_LOG_LEVEL=debug  (environment)" in out
    assert "HORON_SHM=1  (default)" in out


def test_info_keeps_the_key_to_itself():
    status, out = info("--config", HORON_JOB_KEY="do-not-show")
    assert status == 0
    assert "do-not-show" not in out
    assert "HORON_JOB_KEY=(set)" in out


def test_info_names_what_is_wrong():
    status, out = info("--config", HORON_FUSION_BYTES="many")
    assert status == 1
    assert "HORON_FUSION_BYTES=many" in out
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
    assert info("--nonsense")[0] == 2
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
