# SPDX-License-Identifier: Apache-2.0
"""Timelines: what Horovod's tests look for in the file, that it is JSON however a rank ends, and
which rank writes it."""

import json
import subprocess
import sys

import horon
import pytest
from conftest import LIMIT_SECONDS, clean_environment


def rank_writes(directory):
    horon.init()
    x = 1.0
    path = directory / "first.json"
    for round_ in range(2):  # begun again, it is another
        horon.start_timeline(path, mark_cycles=round_ == 0)
        if round_:
            horon.start_timeline(path)  # it goes on
        for name in ("tensor", 'quo"ted', "tensor"):
            horon.allreduce(x, name=f"{name}{round_}")
        horon.grouped_allreduce([x, x, x], name=f"group{round_}")
        horon.allgather(x, name="rows")
        horon.broadcast(x, 0, name="weights")
        horon.barrier()
        horon.join()
        horon.stop_timeline()
        path = str(directory / "second.json")
    horon.stop_timeline()  # does nothing
    horon.allreduce(x, name="late")


def rows_of(path, killed=False):
    """-> the events of the file, and for each name the rows that were drawn; of a process that was
    killed the last may be open"""
    events = json.loads(path.read_text())
    names = {
        event["pid"]: event["args"]["name"]
        for event in events
        if event.get("name") == "process_name"
    }
    rows = {name: [] for name in names.values()}
    open_rows, last = {}, {}
    for event in events:
        pid = event["pid"]
        if event["ph"] in "BE":
            assert event["ts"] >= last.get(pid, 0)
            last[pid] = event["ts"]
        if event["ph"] == "B":
            assert pid not in open_rows, event
            open_rows[pid] = event["name"]
        elif event["ph"] == "E":
            rows[names[pid]].append(open_rows.pop(pid))
    assert killed or not open_rows
    return events, rows


def test_timeline_has_horovods_rows_per_name(run_ranks, tmp_path):
    run_ranks(2, rank_writes, tmp_path)
    for round_, name in enumerate(("first.json", "second.json")):
        events, rows = rows_of(tmp_path / name)
        assert events[0]["args"]["start_time_since_epoch_in_micros"] > 1.7e15
        twice = ["NEGOTIATE_ALLREDUCE", "ALLREDUCE"] * 2
        assert rows[f"allreduce.tensor{round_}"] == twice
        assert rows[f'allreduce.quo"ted{round_}'] == twice[:2]
        for member in range(3):
            assert rows[f"allreduce.group{round_}[{member}]"] == twice[:2]
        assert rows["allgather.rows"] == ["NEGOTIATE_ALLGATHER", "ALLGATHER"]
        assert rows["broadcast.weights"] == ["NEGOTIATE_BROADCAST", "BROADCAST"]
        assert rows["barrier"] == ["NEGOTIATE_BARRIER", "BARRIER"]
        assert rows["join"] == ["JOIN"]
        assert not any("late" in of for of in rows)
        cycles = [event for event in events if event.get("name") == "CYCLE_START"]
        assert bool(cycles) == (round_ == 0)


def rank_refused(directory):
    with pytest.raises(ValueError, match="initialized"):
        horon.start_timeline(directory / "t")
    with pytest.raises(ValueError, match="initialized"):
        horon.stop_timeline()
    horon.init()
    path = directory / "none" / "t%r"
    with pytest.raises(horon.HoronInternalError, match=r"none/t\d cannot be written: No such file"):
        horon.start_timeline(path)
    for wrong in ("", "x" * 5000):
        with pytest.raises(ValueError, match="the path of a timeline"):
            horon.start_timeline(wrong)
    with pytest.raises(ValueError, match="null byte"):
        horon.start_timeline("a\0b")
    with pytest.raises(TypeError):
        horon.start_timeline(3.5)
    return horon.allreduce(1.0, op=horon.Sum)


def test_timeline_that_cannot_be_written_is_refused(run_ranks, tmp_path):
    assert run_ranks(2, rank_refused, tmp_path) == [2.0, 2.0]


ENDS = {
    "end": "",
    "raise": "raise SystemError('so it ends')",
    "exit": "import sys; sys.exit(3)",
    "kill": """
import os, signal
while "TENSOR" not in open(PATH).read().upper():
    pass
os.kill(os.getpid(), signal.SIGKILL)
""",
}


@pytest.mark.parametrize("end", ENDS)
def test_timeline_is_whole_however_the_process_ends(tmp_path, end):
    path = tmp_path / "t.json"
    script = f"PATH = {str(path)!r}\nimport horon\nhoron.init()\n"
    script += "horon.allreduce(1.0, name='tensor')\n" + ENDS[end]
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**clean_environment(), "HOROVOD_TIMELINE": str(path)},
        timeout=LIMIT_SECONDS,
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode == 0) == (end == "end"), done.stderr
    _, rows = rows_of(path, killed=end == "kill")
    if end != "kill":
        assert rows["allreduce.tensor"] == ["NEGOTIATE_ALLREDUCE", "ALLREDUCE"]


def test_timeline_of_horovods_launcher_options(horonrun, tmp_path):
    path = tmp_path / "t.%r"
    script = "import horon; horon.init(); horon.allreduce(1.0, name='tensor')"
    options = ["--timeline-filename", str(path), "--timeline-mark-cycles"]
    subprocess.run(
        [horonrun, "-np", "2", *options, sys.executable, "-c", script],
        env=clean_environment(),
        timeout=LIMIT_SECONDS,
        check=True,
    )
    for rank in range(2):
        events, rows = rows_of(tmp_path / f"t.{rank}")
        assert rows["allreduce.tensor"] == ["NEGOTIATE_ALLREDUCE", "ALLREDUCE"]
        assert any(event.get("name") == "CYCLE_START" for event in events)
