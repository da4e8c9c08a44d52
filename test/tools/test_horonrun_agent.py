# SPDX-License-Identifier: Apache-2.0
"""An agent as horonrun speaks to it: how it ends its ranks."""

import contextlib
import os
import pathlib
import signal
import struct
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "drift")]

import jobs  # noqa: E402
import tap  # noqa: E402

WORK, STOP, HELLO, STARTED, OUTPUT, EXIT, GONE = 1, 2, 16, 17, 18, 19, 21
GREETING = b"\nhoronrun agent 1\n"
NEVER_MS = 86400000


def strings(*texts):
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


class Agent(jobs.Job):
    """An agent of one rank."""

    def __init__(self, *words):
        super().__init__("--agent", stdin=subprocess.PIPE)
        assert self.process.stdout.read(len(GREETING)) == GREETING
        self.expect(HELLO)
        command = [word.encode() for word in words]
        environment = (self.mark.encode(), b"PATH=" + os.environb[b"PATH"])
        self.say(
            WORK,
            struct.pack("<6I", 1, 1, 0, 0, 0, 0)
            + strings(b"/")
            + struct.pack("<I", len(command)) + strings(*command)
            + struct.pack("<I", len(environment)) + strings(*environment),
        )  # fmt: skip
        self.expect(STARTED)

    def say(self, kind, body):
        self.process.stdin.write(struct.pack("<IB", len(body), kind) + body)
        self.process.stdin.flush()

    def stop(self, *numbers):
        self.say(STOP, struct.pack(f"<{len(numbers)}I", *numbers))

    def next(self):
        """@return type and body of the next frame"""
        size, kind = struct.unpack("<IB", self.process.stdout.read(5))
        return kind, self.process.stdout.read(size)

    def expect(self, wanted):
        """@return the body of the next frame, which must be of this type"""
        kind, body = self.next()
        assert kind == wanted, (kind, body)
        return body

    def hear(self, text):
        """Takes what the rank prints, which must be this, in any pieces."""
        while text:
            piece = self.expect(OUTPUT)[5:]
            assert piece and text.startswith(piece), (piece, text)
            text = text[len(piece) :]

    def end(self):
        """@return (wait status of the rank, how many had to be killed)"""
        while (frame := self.next())[0] == OUTPUT:
            pass
        assert frame[0] == EXIT, frame
        forced, survivors = struct.unpack("<II", self.expect(GONE))
        assert survivors == 0
        self.process.stdin.close()
        assert self.process.wait(jobs.DEADLINE) == 0
        self.assert_nothing_left()
        return struct.unpack("<III", frame[1])[1], forced

    def __exit__(self, *exception):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdin = None
        super().__exit__(*exception)


# Says ready, then each signal that it hears, and goes on without end.
HEARS = """
import os, signal
heard = {signal.SIGINT, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, heard)
os.write(1, b"ready")
while True:
    os.write(1, signal.Signals(signal.sigwait(heard)).name.encode())
"""


def test_a_shorter_grace_replaces_one_that_runs():
    with Agent(*jobs.python(HEARS)) as agent:
        agent.hear(b"ready")
        agent.stop(NEVER_MS)
        agent.hear(b"SIGTERM")
        agent.stop(1)
        assert agent.end() == (signal.SIGKILL, 1)


def test_a_longer_grace_replaces_none():
    with Agent(*jobs.python(HEARS)) as agent:
        agent.hear(b"ready")
        agent.stop(1)
        agent.stop(NEVER_MS)
        assert agent.end() == (signal.SIGKILL, 1)


def test_what_is_interrupted_is_asked_to_end_after_a_while():
    with Agent(*jobs.python(HEARS)) as agent:
        agent.hear(b"ready")
        agent.stop(NEVER_MS, 1)
        agent.hear(b"SIGINTSIGTERM")
        agent.stop(0)
        assert agent.end() == (signal.SIGKILL, 1)


def test_what_is_interrupted_is_asked_to_end_at_a_second_word():
    with Agent(*jobs.python(HEARS)) as agent:
        agent.hear(b"ready")
        agent.stop(NEVER_MS, NEVER_MS)
        agent.hear(b"SIGINT")
        agent.stop(1)
        assert agent.end() == (signal.SIGKILL, 1)


def test_what_outlives_interrupted_ranks_is_asked_to_end_at_once():
    """A shell starts what runs in the background with SIGINT ignored."""
    with Agent(
        "sh", "-c", "tail -f /dev/null & trap 'exit 3' INT; echo ready; while :; do :; done"
    ) as agent:
        agent.hear(b"ready\n")
        agent.stop(NEVER_MS, NEVER_MS)
        assert agent.end() == (3 << 8, 0)


def test_what_ranks_that_have_ended_left_is_not_interrupted():
    with Agent("sh", "-c", "tail -f /dev/null & exit 3") as agent:
        assert struct.unpack("<III", agent.expect(EXIT))[1] == 3 << 8
        agent.stop(NEVER_MS, NEVER_MS)
        assert agent.expect(GONE) == bytes(8)


tap.run(dict(vars()))
