# SPDX-License-Identifier: Apache-2.0
"""The scripts' common ground: sizes, intervals, verdicts, jobs under a deadline, limits, plots."""

import contextlib
import importlib.machinery
import importlib.util
import io
import itertools
import json
import pathlib
import random
import re
import sys
import tempfile
import time
import types
import xml.etree.ElementTree

HERE = pathlib.Path(__file__).resolve().parent
BENCHMARKS = HERE.parent.parent / "benchmarks"
sys.path[:0] = [str(HERE.parent / "drift"), str(BENCHMARKS), str(BENCHMARKS / "peers")]

import copying  # noqa: E402
import harness  # noqa: E402
import page  # noqa: E402
import plot  # noqa: E402
import tap  # noqa: E402


def script(name):
    """A script of benchmarks/ that has no .py, as a module."""
    loader = importlib.machinery.SourceFileLoader(name, str(BENCHMARKS / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


def refused(function, *arguments):
    try:
        function(*arguments)
    except harness.HarnessError as error:
        return str(error)
    raise AssertionError(f"{function.__name__}{arguments} was not refused")


def test_harness_sizes_are_powers_of_1024():
    assert harness.parse_sizes("8,64K,1m,2G") == [8, 65536, 1 << 20, 2 << 30]
    for wrong in ("", "K", "1.5M", "-8", "8 KiB"):
        assert wrong in refused(harness.parse_size, wrong)
    assert harness.parse_counts("1,16") == [1, 16]
    for wrong in ("", "0", "-1", "two", "1.5"):
        assert f'"{wrong}" is no count' in refused(harness.parse_count, wrong)
    assert harness.format_size(65536) == "64 KiB"
    assert harness.format_size(1000) == "1000 B"


def test_figures_that_take_root_say_so():
    figures = script("figures")
    figures.os = types.SimpleNamespace(geteuid=lambda: 1000)
    assert refused(figures.figure_unused, None, None).endswith("it needs root")


def test_harness_ratios_have_the_digits_that_count():
    shown = [harness.format_ratio(ratio) for ratio in (0.0123, 0.1, 1.0, 99.5, 1234.5)]
    assert shown == ["0.012", "0.100", "1.000", "99.500", "1234"]


def test_harness_ratio_of_equal_rounds_is_exact():
    assert harness.ratio_of([2.0] * 5, [4.0] * 5) == (0.5, 0.5, 0.5)


def test_harness_interval_holds_the_ratio_and_widens_with_the_spread():
    ratio, low, high = harness.ratio_of([1, 2, 3, 4, 5], [2, 2, 2, 2, 2])
    assert low < ratio < high
    _, narrow_low, narrow_high = harness.ratio_of([2.9, 3, 3.1, 3, 3], [2, 2, 2, 2, 2])
    assert narrow_high - narrow_low < high - low


def test_harness_figure_falls_short_only_as_a_whole():
    assert harness.verdict(1.1, 1.2, 1.0) == "SHORT"
    assert harness.verdict(0.9, 1.2, 1.0) == "holds, not surely"
    assert harness.verdict(0.8, 1.0, 1.0) == "holds"


def test_harness_job_that_hangs_is_ended_with_its_children():
    start = time.monotonic()
    text = refused(harness.run, ["sh", "-c", "echo begun; sleep 600 & wait"], 0.2)
    assert "did not end in time" in text
    assert "begun" in text
    assert time.monotonic() - start < 60


def test_harness_first_failure_ends_the_other_ranks():
    commands = [["sh", "-c", "exit 3"], ["sleep", "600"]]
    assert "status 3" in refused(harness.run_all, commands, 60)


def test_harness_missing_program_is_named():
    assert "no-such-program" in refused(harness.run, ["no-such-program"], 5)
    assert "horon-nothing" in refused(harness.find_program, "horon-nothing", str(HERE))
    assert "test_nothing" in refused(harness.find_test, "test_nothing", str(HERE))


def test_harness_what_has_no_program_is_left_out_and_named():
    names, told = ["a", "b"], io.StringIO()
    launchers = {"a": ("no-such-program", "nothing"), "b": ("sh", "dash"), "c": ("none", "none")}
    with contextlib.redirect_stdout(told):
        harness.leave_out(names, launchers)
    assert names == ["b"]
    assert told.getvalue() == "without a: no-such-program is not installed (Debian: nothing)\n"


def test_harness_json_is_found_behind_a_launchers_prefix():
    text = '[0]<stdout>:{"a": 1}\nnoise { not json\n{"a": 2}\n'
    assert harness.json_lines(text) == [{"a": 1}, {"a": 2}]


def test_compare_limits_cover_what_they_should():
    limit_of = script("compare").limit_of
    kib, mib = 1 << 10, 1 << 20
    assert limit_of(2, "mpi", 8) == limit_of(2, "mpich", 8) == 1.0
    assert limit_of(2, "mpi", 16 * kib) == 1.0
    assert limit_of(2, "mpi", 16 * mib) == 0.6
    assert limit_of(2, "mpi", 32 * mib) == 1.0
    assert limit_of(2, "mpi", 256 * mib) == 0.5
    assert limit_of(4, "mpi", 8) == 1.0
    assert limit_of(4, "mpi", 64 * mib) == 0.6
    assert limit_of(4, "mpi", 256 * mib) == 1.0
    assert limit_of(2, "gloo", 64 * kib) == 1 / 20
    assert limit_of(2, "gloo", 1 * mib) is None
    assert limit_of(4, "gloo", 64 * mib) == 1 / 4
    assert limit_of(8, "mpi", 8) is None
    for np in (2, 4):  # other verbs, back to back, over TCP
        assert limit_of(np, "mpich", 8, plain=False) == limit_of(np, "mpi", 64 * mib, False) == 1.0
        assert limit_of(np, "mpi", 4, False) is limit_of(np, "mpi", 256 * mib, False) is None
        assert limit_of(np, "gloo", 8, False) is None


def test_compare_judges_calls_back_to_back_by_themselves():
    compare = script("compare")

    class Arguments:
        path, tcp, net = "raw", False, None

    def cell(time_us, b2b_us):
        return {"time_us": time_us, "b2b_us": b2b_us}

    rounds = [{("horon", 8): cell(1.0, 8.0), ("mpi", 8): cell(2.0, 0.5)}] * 5
    aligned = compare.judge("broadcast", 2, 8, "mpi", rounds, Arguments, "time_us")
    behind = compare.judge("broadcast", 2, 8, "mpi", rounds, Arguments, "b2b_us")
    assert (aligned["ratio"], aligned["verdict"]) == (0.5, "holds")
    assert (behind["ratio"], behind["limit"], behind["verdict"]) == (16.0, 1.0, "SHORT")
    Arguments.path = "named"
    assert compare.judge("broadcast", 2, 8, "mpi", rounds, Arguments, "b2b_us")["limit"] is None


def test_copying_shares_what_comes_into_outputs_among_the_cores():
    share = copying.share_bytes
    assert share("allreduce", 2, 600, 2) == 600  # each rank's own
    assert share("allreduce", 4, 600, 2) == 1200
    assert share("broadcast", 2, 600, 2) == 300  # root, in place, has it
    assert share("broadcast", 4, 600, 8) == 450
    assert share("allgather", 3, 600, 2) == share("alltoall", 3, 600, 2) == 900
    assert share("sendrecv", 4, 600, 1) == 2400
    for verb in ("gather", "scatter", "reducescatter", "reduce"):
        assert share(verb, 4, 600, 2) == 300, verb
    assert set(copying.OUTPUTS) == set(script("compare").VERBS) - {"barrier"}


def test_compare_copies_beside_each_large_cell_of_one_host_without_a_bound():
    compare, mib, real, asked = script("compare"), 1 << 20, copying.copy_us, []
    real(1, 1), real(10007, 3)  # it looks itself whether they were copied

    class Arguments:
        path, tcp, net, bound, peers, rounds, markdown = "raw", False, None, None, ["mpi"], 2, False

    def copy_us(n_bytes, times):
        asked.append(n_bytes)
        return 10.0

    compare.RUNS.update(dict.fromkeys(compare.RUNS, lambda *_: {"time_us": 90.0, "b2b_us": 1.0}))
    copying.copy_us, printed = copy_us, io.StringIO()
    compare.harness.cores, cores = lambda: 2, compare.harness.cores
    try:
        rounds, _ = compare.run_rounds("allreduce", 6, [8, mib], Arguments, random.Random(1))
        with contextlib.redirect_stdout(printed):
            ratios = compare.report("allreduce", 6, [8, mib], Arguments, rounds)
    finally:
        copying.copy_us, compare.harness.cores = real, cores
    assert asked == [mib] * 2 and "copy us" in printed.getvalue()
    (over,) = (ratio for ratio in ratios if ratio["peer"] == "copy")
    assert (over["size"], over["ratio"]) == (mib, 3.0)  # 3 MiB a core, of which one was copied
    assert over["limit"] is None and over["verdict"] == ""
    for name, value in (("bound", 1.0), ("net", object())):
        own = type("Own", (Arguments,), {name: value})
        assert not compare.is_bound_by_copying("allreduce", 2, mib, own)
    assert not compare.is_bound_by_copying("allreduce", 1, mib, Arguments)
    assert not compare.is_bound_by_copying("barrier", 2, mib, Arguments)


def test_compare_tick_is_looked_for_in_single_calls():
    """A round's median far below a tick says nothing of its longest call."""
    compare = script("compare")

    def rounds(*cells):
        return [{("horon", 8): {"time_us": time_us, "max_us": max_us}} for time_us, max_us in cells]

    class Raw:
        path, tcp, net = "raw", False, None

    class Named(Raw):
        path = "named"

    for short, cells in (
        (False, ((20.0, 90.0), (30.0, 1500.0))),
        (False, ((20.0, 90.0), (30.0, 4100.0))),  # once: the machine's
        (True, ((20.0, 4000.0), (30.0, 2100.0))),
        (True, ((20.0, 90.0), (1200.0, 1300.0))),
    ):
        assert compare.report_tick(4, [8, 1 << 20], Raw, rounds(*cells)) == short, cells
    assert not compare.report_tick(2, [8], Raw, rounds((5000.0, 5000.0)))
    assert not compare.report_tick(4, [8], Named, rounds((5000.0, 5000.0)))
    assert not compare.report_tick(4, [1 << 20], Raw, [])


def test_compare_limits_do_not_overlap():
    rows = script("compare").LIMITS
    for i, (np, peer, first, last, _) in enumerate(rows):
        assert first <= last
        for other_np, other_peer, other_first, other_last, _ in rows[:i]:
            same = (np, peer) == (other_np, other_peer)
            assert not same or last < other_first or other_last < first


def test_gradients_sets_are_whole():
    resolve = script("gradients").resolve
    wanted = {
        "resnet50": (161, 25557032),
        "vgg16": (32, 138357544),
        "bert_base": (199, 109482240),
    }
    for name, (tensors, elements) in wanted.items():
        lines = pathlib.Path(resolve(name)[1]).read_text().splitlines()[1:]
        total = 0
        for line in lines:
            count = 1
            for length in line.split()[1].split("x"):
                count *= int(length)
            total += count
        assert (len(lines), total) == (tensors, elements), name
        assert len({line.split()[0] for line in lines}) == tensors
    assert resolve("1000x4096") == ("1000x4096", "1000x4096")
    assert "no-such-set" in refused(resolve, "no-such-set")


def test_plot_is_well_formed_and_shows_every_library():
    lines = {
        "horon": [(8, [0.4, 0.5, 0.6]), (1 << 28, [9e4, 1e5, 2e5])],
        "a<b": [(8, [1.0, 1.0, 1.0]), (1 << 28, [2e5, 2e5, 2e5])],
    }
    root = xml.etree.ElementTree.fromstring(plot.times_by_size("title", lines))
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    for text in ("horon", "a<b", "8 B", "256 MiB", "title"):
        assert text in texts, text
    assert len([e for e in root.iter() if e.tag.endswith("circle")]) == 4


def texts_of(svg):
    root = xml.etree.ElementTree.fromstring(svg)
    return [element.text for element in root.iter() if element.tag.endswith("text")]


def test_plot_of_ratios_has_steps_around_them_and_one():
    def shown(*ratios):
        lines = {"allreduce": [(8 << i, [r, r, r]) for i, r in enumerate(ratios)]}
        texts = texts_of(plot.ratios_by_size("title", lines, "time / theirs", "all"))
        return [text for text in texts if text[0].isdigit() and "B" not in text]

    assert shown(0.3, 0.6) == ["0.2", "0.5", "1"]
    assert shown(1.0, 1.4) == ["1", "2"]
    assert shown(0.07, 30.0) == ["0.05", "0.1", "0.2", "0.5", "1", "2", "5", "10", "20", "50"]
    assert len(shown(1.0)) == 2  # a picture has a height


def test_plot_names_of_lines_that_end_together_do_not_overlap():
    lines = {name: [(8, [1.0]), (16, [2.0])] for name in ("a", "b", "c")}
    root = xml.etree.ElementTree.fromstring(plot.times_by_size("title", lines))
    heights = sorted(float(e.get("y")) for e in root.iter() if e.text in ("a", "b", "c"))
    assert [b - a for a, b in itertools.pairwise(heights)] == [plot.LABEL_HEIGHT] * 2


def document(bound=None):
    """Two rounds of two verbs, np 2: a peer of half horon's time at 8 bytes, of twice at 1 KiB."""
    cells = [
        {
            "np": 2,
            "verb": verb,
            "library": library,
            "round": turn,
            "asked": size,
            "time_us": 10.0 * times[library, size],
            "busbw": size / (10.0 * times[library, size]) * 1e-3,
        }
        for verb, times in (
            (
                "allreduce",
                {
                    ("horon", 1024): 1,
                    ("horon", 8): 1,
                    ("mpi", 8): 0.5,
                    ("mpi", 1024): 2,
                    ("gloo", 8): 9,
                    ("horon-torch", 8): 0.1,
                },
            ),
            ("reduce", {("horon", 8): 1}),
        )
        for library, size in times
        for turn in range(2)
    ]
    machine = {"cores": 2, "cpu": "a<b", "kernel": "6", "load": 0, "commit": "c", "date": "d"}
    return {"machine": machine, "path": "raw", "bound": bound, "cells": cells}


def test_page_compares_with_the_best_peer_of_each_size():
    places = page.by_place(document()["cells"])
    assert list(places) == [(2, "allreduce"), (2, "reduce")]
    small, large = page.rows_of(places[2, "allreduce"])
    assert (small["size"], small["best"], small["ratio"]) == (8, "mpi", (2.0, 2.0, 2.0))
    assert (large["size"], large["best"], large["ratio"]) == (1024, "mpi", (0.5, 0.5, 0.5))
    assert small["times"]["gloo"] == 90.0 and "gloo" not in large["times"]
    (alone,) = page.rows_of(places[2, "reduce"])
    assert (alone["best"], alone["ratio"], alone["over"]) == (None, None, None)
    _, large = page.rows_of(places[2, "allreduce"], 0.2048)
    assert [round(x, 6) for x in large["over"]] == [2.0] * 3  # 1 KiB in 10 us is half of that


def test_page_has_a_table_and_pictures_of_every_verb():
    files = page.files(document())
    assert next(iter(files)) == "compare.md"
    assert sorted(files)[1:] == ["compare-ratio-np2.svg", "compare-reduce-np2.svg", "compare.md"]
    text = files["compare.md"]
    for name in files:
        assert name == "compare.md" or f"]({name})" in text, name
    assert "## 2 ranks" in text and "### reduce, 2 ranks" in text
    assert "| 8 B | 10.00 | 5.00 | 90.00 | 1.00 | mpi | 2.000 | 2.000..2.000 | 0.0008 |" in text
    assert "| 1 KiB | 10.00 | 20.00 | - | - | mpi | 0.500 | 0.500..0.500 | 0.102 |" in text
    assert "bound" not in text
    assert {"allreduce", "time / the best peer's"} <= set(texts_of(files["compare-ratio-np2.svg"]))
    assert {"horon", "mpi", "gloo", "time"} <= set(texts_of(files["compare-allreduce-np2.svg"]))


def test_page_tells_the_distance_from_a_bound_that_is_known():
    files = page.files(document(0.2048))
    assert "a busbw of 0.2048 GB/s" in files["compare.md"]
    assert "| over the bound | range |" in files["compare.md"]
    assert "| 0.102 | 2.000 | 2.000..2.000 |" in files["compare.md"]
    assert {"allreduce", "reduce"} <= set(texts_of(files["compare-bound-np2.svg"]))


def test_page_tells_the_distance_from_a_copy_of_the_same_round():
    given = document()
    copies = [
        {"np": 2, "verb": "allreduce", "library": "copy", "round": turn, "asked": 1024}
        for turn in range(2)
    ]
    given["cells"] += [{**cell, "time_us": 5.0 - 3 * cell["round"]} for cell in copies]
    text = page.files(given)["compare.md"]
    assert "what copying the outputs takes" in text
    row = "| 1 KiB | 10.00 | 20.00 | - | - | 3.50 | mpi | 0.500 | 0.500..0.500 | 0.102 | 3.500 |"
    assert f"{row} 2.000..5.000 |" in text  # in turn 5 and 2 us; no peer, though the fastest
    assert "| mpi | 2.000 | 2.000..2.000 | 0.0008 | - | - |" in text  # none at 8 bytes
    assert "allreduce" in texts_of(page.files(given)["compare-bound-np2.svg"])
    given["bound"] = 0.2048
    assert "| 0.102 | 2.000 | 2.000..2.000 |" in page.files(given)["compare.md"]  # the user knows


def test_compare_writes_the_page_of_what_was_measured():
    """Rounds as run_round() gives them become the same page, by way of compare.json."""
    compare = script("compare")

    class Arguments:
        path, bound = "raw", None

    cell = {"time_us": 10.0, "busbw": 0.1, "size": 7}
    rounds = [{("mpi", 8): {**cell, "time_us": 5.0}, ("horon", 8): cell}] * 2
    results = {("reduce", 2): rounds, ("scatter", 4): rounds}
    made = compare.document_of(document()["machine"], results, [], Arguments)
    with tempfile.TemporaryDirectory() as scratch:
        Arguments.page, Arguments.out = (
            pathlib.Path(scratch) / "compare.json",
            pathlib.Path(scratch),
        )
        Arguments.page.write_text(json.dumps(made))
        assert compare.write_page(Arguments) == 0
        text = (Arguments.out / "compare.md").read_text()
        assert text == page.files(made)["compare.md"]
        assert text.index("reduce, 2 ranks") < text.index("scatter, 4 ranks")
        assert "| size | horon us | mpi us |" in text
        Arguments.page.write_text('{"cells": [{}]}')
        assert "there is no 'np' in it" in refused(compare.write_page, Arguments)
        Arguments.page.write_text("[")
        assert "compare.json: " in refused(compare.write_page, Arguments)


def test_compare_has_every_verb_of_horon_perf():
    rows = re.findall(r'[.]word = "(\w+)", [.]verb', (BENCHMARKS / "perf" / "names.c").read_text())
    assert set(rows) == set(script("compare").VERBS)


def test_page_of_a_barrier_has_a_table_and_no_picture():
    given = document(0.2)
    given["cells"] = [
        {**cell, "verb": "barrier", "asked": 0, "busbw": 0.0}
        for cell in given["cells"]
        if cell["verb"] == "allreduce" and cell["asked"] == 8
    ]
    files = page.files(given)
    assert list(files) == ["compare.md"]
    assert "### barrier, 2 ranks" in files["compare.md"] and "![" not in files["compare.md"]
    assert "| 0 B | 10.00 | 5.00 |" in files["compare.md"]


def test_compare_leaves_out_sizes_that_a_verb_has_not():
    compare = script("compare")
    assert compare.sizes_of("reduce", 4, [4, 8, 16]) == [4, 8, 16]
    assert compare.sizes_of("allgather", 4, [4, 8, 16]) == [16]
    assert compare.sizes_of("sendrecv", 4, [4, 8, 16]) == [4, 8, 16]
    assert compare.sizes_of("barrier", 4, [4, 8, 16]) == [0]


def test_compare_limits_on_hosts_are_beside_mpi_and_the_links():
    compare = script("compare")
    limit_of, kib, mib = compare.limit_on_hosts, 1 << 10, 1 << 20
    assert limit_of("allreduce", "mpi", kib, "time_us") == 1.0
    assert limit_of("allreduce", "mpi", kib, "b2b_us") is None
    assert limit_of("broadcast", "mpi", kib, "time_us") is None
    assert limit_of("allgather", "bound", 4 * mib, "time_us") == 1.03
    assert limit_of("allgather", "bound", 4 * mib - 4, "time_us") is None

    class Arguments:
        path, tcp = "raw", False
        net = harness.Hosts.__new__(harness.Hosts)  # of its numbers alone

    Arguments.net.count, Arguments.net.each, Arguments.net.gbit = 2, 2, 1.0
    bound_us = compare.bound_us("allreduce", 4 * mib, Arguments)
    assert 1.03 < bound_us / (4 * mib / 125) < 1.05  # 4 MiB each way, and headers
    rounds = [{("horon", 4 * mib): {"time_us": 1.2 * bound_us}}] * 5
    judged = compare.judge("allreduce", 4, 4 * mib, "bound", rounds, Arguments, "time_us")
    assert abs(judged["ratio"] - 1.2) < 1e-9 and judged["verdict"] == "SHORT"


def test_harness_links_carry_what_other_hosts_need():
    """The least, as test/hosts/test_traffic.py counts it, of three hosts with two ranks each."""
    net = harness.Hosts.__new__(harness.Hosts)
    net.count, net.each = 3, 2
    for verb, sixths in (
        ("allreduce", 8),
        ("broadcast", 6),
        ("reduce", 6),
        ("sendrecv", 6),
        ("allgather", 4),
        ("gather", 4),
        ("scatter", 4),
        ("reducescatter", 4),
        ("alltoall", 8),
    ):
        assert round(net.link_bytes(verb, 600), 6) == 100 * sixths, verb


def test_harness_shape_of_hosts_is_two_numbers():
    for wrong in ("4", "4x", "x1", "0x2", "2x-1", "4x1x1"):
        assert "HOSTSxRANKS" in refused(harness.Hosts, wrong, 1.0, "cubic")


def test_harness_folder_that_cannot_be_made_is_refused_before_anything_runs():
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        (folder / "file").touch()
        assert "file: File exists" in refused(harness.make_folder, folder / "file")
        harness.make_folder(folder / "new" / "one")
        assert (folder / "new" / "one").is_dir()
    harness.make_folder(None)


def test_gloo_takes_the_slowest_rank_of_a_job_of_the_kind():
    gloo, jobs = script("gloo"), []

    def run_all(commands, timeout_s, environments):
        jobs.append([command[0] for command in commands])
        for rank, command in enumerate(commands):
            pathlib.Path(command[-1]).write_text(f"1 00\n2 begins\n2 time {rank + 0.5}\ndone\n")
        assert timeout_s == 9 and len(environments) == len(commands)

    real, harness.run_all = harness.run_all, run_all
    try:
        arguments = gloo.parse(["--place", "1", "--timeout", "9"])
        arguments.gloo, arguments.horon = "G", "H"
        taken = [gloo.launch(kind, "allreduce", 3, 64, arguments) for kind in arguments.kinds]
    finally:
        harness.run_all = real
    assert taken == [2.5] * 3 and jobs == [["G"] * 3, ["G", "H", "G"], ["H"] * 3], (taken, jobs)
    assert gloo.line_of("allgather", 4096, 4) == "x300 allgather f32 - 256 0"
    assert gloo.line_of("reduce", 64 << 20, 4) == "x10 reduce f32 sum 16777216 0"


def test_gloo_says_which_sizes_take_longer_than_gloo():
    gloo = script("gloo")
    arguments = gloo.parse(["--kinds", "all"])
    times = {("gloo", 8): [2.0] * 5, ("all", 8): [1.0] * 5}
    times |= {("gloo", 64): [2.0] * 5, ("all", 64): [2.1] * 5}
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        verdicts = gloo.report("allreduce", 2, [8, 64], arguments, times)
    assert verdicts == ["holds", "SHORT"], out.getvalue()
    assert "0.500..0.500" in out.getvalue() and "1.050..1.050" in out.getvalue(), out.getvalue()


if __name__ == "__main__":
    tap.run(vars())
