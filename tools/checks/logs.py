# SPDX-License-Identifier: Apache-2.0
"""Reads what the test programs left: cmocka's lines, TAP, Meson's JSON log, pytest's JUnit file.

A program of many test functions counts as that many cases; one that prints neither cmocka's lines
nor TAP counts as one. A program that failed without naming a function (a crash, a time-out, a
sanitizer's finding at the end) adds a failed case of its own, so that nothing is lost.
"""

import json
import re
import signal
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

from results import FAILED, PASSED, SKIPPED, Case

NO_REASON = "no reason printed"
CMOCKA = re.compile(r"^\[ +(RUN|OK|FAILED|SKIPPED) +\] (\w+)$")
TAP = re.compile(r"^(ok|not ok) \d+(?: - ([^#]*?))?\s*(?:# SKIP\b\s*(.*))?$")


def cmocka_cases(stdout, stderr):
    """Cases of cmocka's standard output. A skip's reason is what the test printed before it."""
    cases, said, errors = [], [], cmocka_errors(stderr)
    for line in stdout.splitlines():
        match = CMOCKA.match(line.strip())
        if not match:
            said.append(line.strip())
            continue
        word, name = match.groups()
        if word == "OK":
            cases.append(Case(name, PASSED))
        elif word == "SKIPPED":
            cases.append(Case(name, SKIPPED, skip_reason(said, stderr)))
        elif word == "FAILED":
            reason = errors.pop(0) if errors else "see its output"
            cases.append(Case(name, FAILED, reason, "\n".join(said)))
        said = []
    return cases


def cmocka_errors(stderr):
    """What cmocka says of each function that failed, in their order: assertion and place."""
    reasons, said = [], []
    for line in stderr.splitlines():
        if match := re.match(r"^\[ +(ERROR|LINE) +\] --- (.*)$", line):
            said.append(match[2].strip())
            if match[1] == "LINE":
                reasons.append("; ".join(said))
                said = []
        elif said:  # a text of several lines
            said.append(line.strip())
    return reasons


def skip_reason(said, stderr):
    lines = [line for line in said if line]
    if not lines:
        lines = [line.strip() for line in stderr.splitlines() if "skip" in line.lower()]
        lines = [line for line in lines if not line.startswith("[") and "TEST(S)" not in line]
    return re.sub(r"^skip(ped|ping)?\s*:?\s*", "", lines[-1], flags=re.I) if lines else NO_REASON


def tap_cases(stdout):
    cases, said = [], []
    for line in stdout.splitlines():
        match = TAP.match(line.strip())
        if not match:
            said.append(line.strip())
            continue
        word, name, why = match.groups()
        if why is not None:  # cmocka puts the name there, and has no place for a reason
            reason = skip_reason(said, "") if name is None else (why or NO_REASON)
            cases.append(Case(name or why, SKIPPED, reason))
        elif word == "ok":
            notes = "\n".join(line[2:] for line in said if line.startswith("# "))
            cases.append(Case(name or "unnamed", PASSED, output=notes))
        else:
            told = [line[2:] for line in said if line.startswith("# ")]
            reason = told[0] if told else "see its output"
            cases.append(Case(name or "unnamed", FAILED, reason, "\n".join(said)))
        said = []
    return cases


def program_cases(entry):
    """Cases of one program, from its entry in Meson's JSON log."""
    name = entry["name"].rpartition(" / ")[2]
    stdout, stderr = entry.get("stdout", ""), entry.get("stderr", "")
    cases = [
        Case(f"{name}: {case.name}", case.outcome, case.reason, case.output)
        for case in cmocka_cases(stdout, stderr) or tap_cases(stdout)
    ]
    result = entry["result"]
    finding = re.search(r"^(SUMMARY: \w+.*|.*runtime error: .*)$", stderr, re.M)
    if finding and result == "SKIP":  # a finding's exit status may be the one that means a skip
        result = "FAIL"
    if result in ("FAIL", "ERROR", "TIMEOUT", "INTERRUPT", "UNEXPECTEDPASS"):
        named = any(case.outcome == FAILED for case in cases)
        cases = [case if case.outcome != FAILED else and_said(case, stderr) for case in cases]
        if finding or not named or result in ("TIMEOUT", "INTERRUPT"):
            reason = finding[1] if finding else failure_reason(entry)
            cases.append(Case(name, FAILED, reason, f"{stdout}\n{stderr}"))
    elif not cases:
        if result == "SKIP":
            cases.append(Case(name, SKIPPED, skip_reason(stdout.splitlines(), stderr)))
        else:
            cases.append(Case(name, PASSED))
    return cases


def and_said(case, stderr):
    """@return a failed case with what its program said on standard error, but for cmocka's lines"""
    said = [line for line in stderr.splitlines() if not line.startswith("[")]
    return replace(case, output="\n".join([case.output, *said]).strip())


def failure_reason(entry):
    code = entry.get("returncode", 0)
    seconds = entry.get("duration", 0.0)
    if entry["result"] == "TIMEOUT":
        return f"still running after {seconds:.0f} s"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit status {code}"


def meson_cases(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return [case for line in file for case in program_cases(json.loads(line))]


def junit_cases(path):
    cases = []
    for test in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{test.get('classname', '').rpartition('.')[2]}: {test.get('name')}"
        bad = [node for node in test if node.tag in ("failure", "error")]
        skipped = test.find("skipped")
        if bad:
            reason = (bad[0].get("message") or "").splitlines()
            cases.append(Case(name, FAILED, reason[0] if reason else "failed", bad[0].text or ""))
        elif skipped is not None:
            cases.append(Case(name, SKIPPED, skipped.get("message") or NO_REASON))
        else:
            cases.append(Case(name, PASSED))
    return cases
