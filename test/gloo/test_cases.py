# SPDX-License-Identifier: Apache-2.0
"""Ranks of horon over Gloo's wire get what ranks of horon get anywhere: all cases of
test/hosts/cases.c, of small whole numbers, which no order of a sum rounds; as horons speak with
each other there, and as they speak with Gloo's own."""

import os
import pathlib
import re
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "mpi")]

from ranks import jobs, tap  # noqa: E402
from results import VERIFY, expected  # noqa: E402

IN_PLACE = os.environ.get("IN_PLACE")
SIZES = 2, 3, 5
REDOPS = "sum", "min", "max", "product", "bit_and", "bit_or", "bit_xor"
# A bool is a byte to Gloo, which adds, compares and multiplies it as it is; the cases' have 2 and
# 3, too. To horon whatever is not 0 is true, and what comes out 0 or 1. So it is in a
# reduce-scatter among Gloo's ranks as well, as torch has it.
DIFFERS = {f"allreduce.bool.8191.{op}" for op in REDOPS} | {"reduce.bool.8191"}
MAY_DIFFER = DIFFERS | {f"allreduce.bool.1.{op}" for op in REDOPS}  # one element, which is drawn


def case_of(line):
    """@return the name of a case, without its root"""
    return re.sub(r"\.root\d+$", "", line.split()[0])


def check(size, native):
    layout = ",".join(map(str, range(size)))  # among Gloo's each rank is on a host of its own
    with tempfile.TemporaryDirectory(prefix="gloo") as folder:
        store = pathlib.Path(folder, "store")
        store.mkdir()
        env = {
            "HORON_GLOO_STORE": f"file:{store}",
            "HORON_GLOO_NATIVE": native,
            "HORON_STALL_WARN": "0",
            "VERIFY_WHOLE": "1",
        }
        apart = 'exec "$@" >"$0/out$HORON_RANK"'
        command = ("sh", "-c", apart, folder, tap.need(VERIFY, "verify is not built"))
        words = ("-np", str(size), *command, "in-order", layout, folder)
        status, out, err = jobs.run(*words, env=env)
        assert status == 0, (size, native, out, err)
        assert err.count("is linked with ranks of Gloo at ") == 1, err
        told = [pathlib.Path(folder, f"out{rank}").read_text() for rank in range(size)]
    differ = set()
    for rank, lines in enumerate(expected(size)):
        own = told[rank].splitlines()
        assert len(own) == len(lines), (size, native, rank, len(own), len(lines))
        differ |= {case_of(line) for line, one in zip(lines, own, strict=True) if line != one}
    assert DIFFERS <= differ <= MAY_DIFFER, (size, native, sorted(differ ^ DIFFERS))


def test_rows_in_place_come_right():
    """They are where they come to be, or at the end of the output, and all know those of all."""
    program = tap.need(IN_PLACE, "in_place is not built")
    for size in SIZES:
        for native in "1", "0":
            with tempfile.TemporaryDirectory(prefix="gloo") as folder:
                env = {"HORON_GLOO_STORE": f"file:{folder}", "HORON_GLOO_NATIVE": native}
                status, out, err = jobs.run("-np", str(size), program, "alone", env=env)
            assert status == 0 and out.count(" is through") == size, (size, native, out, err)


def test_all_cases_by_frames_of_horon():
    for size in SIZES:
        check(size, "1")


def test_all_cases_by_frames_of_gloo_alone():
    for size in SIZES:
        check(size, "0")


tap.run(dict(vars()))
