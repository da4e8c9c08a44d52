# SPDX-License-Identifier: Apache-2.0
"""What ran and how it ended: one Case a test function, one Report for the whole run."""

import time
from collections import Counter
from dataclasses import dataclass, field

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(frozen=True)
class Case:
    name: str
    outcome: str
    reason: str = ""  # of a skip or a failure, one line
    output: str = ""  # of a failure: what it printed; of a pass: what it wants to be read
    took: float = 0.0  # seconds, of what may have begun before it was waited for


def counts(cases):
    """The three numbers of a list of cases, as the last line of a run shows them."""
    tally = Counter(case.outcome for case in cases)
    return f"{tally[PASSED]} passed, {tally[FAILED]} failed, {tally[SKIPPED]} skipped"


def tail(text, lines=40):
    kept = text.rstrip().splitlines()[-lines:]
    return "\n".join(kept)


@dataclass
class Report:
    """Collects suites in the order they ran and prints each as it ends."""

    suites: dict[str, list[Case]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self, suite, function, *arguments):
        """Runs function(*arguments) -> [Case] as a suite. Returns True if nothing failed in it."""
        print(f"  {suite:<34}", end="", flush=True)
        began = time.monotonic()
        cases = function(*arguments)
        if not cases:
            cases = [Case(suite, FAILED, "nothing ran: a suite without a test proves nothing")]
        self.suites.setdefault(suite, []).extend(cases)
        self.seconds[suite] = self.seconds.get(suite, 0.0) + time.monotonic() - began
        print(f"{counts(cases)}, {self._time(suite, cases)}", flush=True)
        for case in cases:
            if case.outcome == FAILED:
                print(f"    FAILED {case.name}: {case.reason}", flush=True)
                if case.output:
                    print(_indented(tail(case.output)), flush=True)
        return all(case.outcome != FAILED for case in cases)

    def _time(self, suite, cases):
        """Says of what ran beside other suites how long that took in all."""
        waited, took = self.seconds[suite], max(case.took for case in cases)
        return f"{waited:.1f} s" + (f", of {took:.1f} s" if took > waited + 1 else "")

    def cases(self):
        return [case for cases in self.suites.values() for case in cases]

    def print_summary(self):
        print(f"\n{'suite':<34}{'passed':>8}{'failed':>8}{'skipped':>8}{'seconds':>9}")
        for suite, cases in self.suites.items():
            tally = Counter(case.outcome for case in cases)
            numbers = f"{tally[PASSED]:>8}{tally[FAILED]:>8}{tally[SKIPPED]:>8}"
            print(f"{suite:<34}{numbers}{self.seconds[suite]:>9.1f}")
        for case in self.cases():
            if case.outcome == PASSED and case.output:
                print(f"\nreported by {case.name}:\n{_indented(case.output)}")
        for outcome in (SKIPPED, FAILED):
            self._print_reasons(outcome)
        print()
        print(counts(self.cases()))

    def _print_reasons(self, outcome):
        """One line a reason; the tests that share it stand below each other, the first ones."""
        groups = {}
        for suite, cases in self.suites.items():
            for case in cases:
                if case.outcome == outcome:
                    groups.setdefault((suite, case.reason), []).append(case.name)
        if groups:
            print(f"\n{outcome}:")
        for (suite, reason), names in groups.items():
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            print(f"  {suite}: {', '.join(names[:3])}{more}: {reason}")

    def failed(self):
        return any(case.outcome == FAILED for case in self.cases())


def _indented(text):
    return "\n".join(f"      | {line}" for line in text.splitlines())
