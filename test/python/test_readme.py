# SPDX-License-Identifier: Apache-2.0
"""The examples of the README, and of the page on starting, run as they stand there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import LIMIT_SECONDS, clean_environment

README = Path(__file__).parents[2] / "README.md"


def test_readme_example_trains_on_two_ranks(tmp_path, horonrun):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    block = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    assert block, "the README shows no Python"
    lines = block[1].splitlines()
    assert len(lines) <= 17, "the README's example has grown out of one look"
    script = tmp_path / "train.py"
    sums = "[p.sum().item() for p in model.parameters()]"
    report = f"print('rank', hvd.rank(), 'of', hvd.size(), {sums})"
    script.write_text("\n".join([*lines, report, ""]), encoding="utf-8")
    done = subprocess.run(
        [horonrun, "-np", "2", sys.executable, str(script)], stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=LIMIT_SECONDS, env=clean_environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    sums = sorted(re.findall(r"rank (\d) of 2 (\[.*\])", done.stdout))
    assert [rank for rank, _ in sums] == ["0", "1"], done.stdout
    assert sums[0][1] == sums[1][1], "the ranks' parameters differ after training"


def test_readme_of_starting_sums_among_ranks_of_gloo(tmp_path):
    """By itself, as the others are in test_gloo.py."""
    page = README.with_name("tools") / "STARTING.md"
    block = re.search(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    assert block, "the page shows no Python"
    script = tmp_path / "sum.py"
    script.write_text(block[1], encoding="utf-8")
    alone = {"HORON_GLOO_STORE": "hash:page", "HORON_RANK": "0", "HORON_SIZE": "1"}
    done = subprocess.run(
        [sys.executable, str(script)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=LIMIT_SECONDS, env={**clean_environment(), **alone}, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["summed", "4.0"], done.stdout + done.stderr
