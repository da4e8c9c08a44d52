# SPDX-License-Identifier: Apache-2.0
"""What ranks must get of operations that MPI carries."""

import os
import pathlib
import subprocess
import tempfile

import jobs
import tap

VERIFY = os.environ.get("VERIFY")
MPI = {
    "HORON_BACKEND": "mpi",
    "HORON_LOG_LEVEL": "info",
    "HORON_STALL_WARN": "0",
    "VERIFY_WHOLE": "1",
    "ASAN_OPTIONS": f"{os.environ.get('ASAN_OPTIONS', '')}:detect_leaks=0",  # MPI loses memory
}
# Each rank's output is a file of its own.
APART = 'exec "$@" >"$0/out${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"'


def expected(size, what="expect"):
    """@return what each of @p size ranks of one host must print of all cases"""
    found = [[] for _ in range(size)]
    env = {**jobs.CLEAN, "VERIFY_WHOLE": "1"}
    words = [tap.need(VERIFY, "verify is not built"), what, ",".join("0" * size)]
    text = subprocess.run(words, check=True, capture_output=True, text=True, env=env).stdout
    for line in text.splitlines():
        rank, words = line.split(" ", 1)
        found[int(rank)].append(words)
    return found


def check_results(launch, mode, size, in_set=False, program=VERIFY, **env):
    """@param in_set  the job has a rank more, its first, which is outside"""
    if in_set:
        env["VERIFY_SET"] = "mpi"
    with tempfile.TemporaryDirectory() as folder:
        command = ("sh", "-c", APART, folder, program, mode, ",".join("0" * size), folder)
        with launch(size + in_set, *command, **{**MPI, **env}) as job:
            status, out, err = job.end()
        assert status == 0, (mode, size, out, err)
        joining = "expect-given" if env.get("HORON_JOIN_AVERAGE") == "given" else "expect-joining"
        what = joining if mode == "joining" else "expect"
        for rank, lines in enumerate(expected(size, what)):
            told = pathlib.Path(folder, f"out{rank + in_set}").read_text().splitlines()
            wrong = [pair for pair in zip(told, lines, strict=False) if pair[0] != pair[1]]
            assert told == lines, (mode, size, rank, len(told), len(lines), wrong[:5])
    job.assert_nothing_left()
    if size > 1:
        assert err.count(f"backend mpi is connected, among {size} ranks") >= size, err
    assert "does not carry" not in err, err
    return err
