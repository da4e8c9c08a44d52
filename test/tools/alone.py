# SPDX-License-Identifier: Apache-2.0
"""Runs a test in namespaces of its own: a machine with nothing on it but what the test starts.

So it can ask what a job has left behind, and be sure that it was that job.
"""

import fcntl
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys

INSIDE = "HORON_TEST_ALONE"
NAMESPACES = ("--mount", "--net", "--ipc", "--uts", "--pid")
START = ("--fork", "--kill-child", "--mount-proc")
HOST = "nowhere-else"  # the name of our machine, while we are alone
SCRATCH = ["/dev/shm", "/tmp", "/var/tmp"]  # where what is left would lie
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
LISTENS = "0A"
# The thread sanitizer's own file, which it makes and unlinks as a program starts: a program that is
# killed in between leaves it, and that is not ours.
OF_SANITIZER = "tsan.rodata."


def set_up(programs):
    """The loopback, a name, and scratch folders of our own, but those that the programs lie in."""
    with socket.socket() as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))
    socket.sethostname(HOST)
    used = [pathlib.Path(program).resolve() for program in programs if program]
    SCRATCH[:] = [
        folder
        for folder in SCRATCH
        if os.path.isdir(folder) and not any(pathlib.Path(folder) in one.parents for one in used)
    ]
    for folder in SCRATCH:
        subprocess.run(["mount", "-t", "tmpfs", "horon-test", folder], check=True)


def enter(*programs):
    """Starts this test again, alone, with @p programs where they are. @return None, or why not"""
    if os.environ.pop(INSIDE, None):
        set_up((sys.executable, __file__, *programs))
        return None
    if not shutil.which("unshare"):
        return "needs unshare (util-linux)"
    words = ["unshare", *(() if os.geteuid() == 0 else ("--map-root-user",)), *NAMESPACES, *START]
    probe = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        return f"namespaces are refused: {probe.stderr.strip()}"
    os.environ[INSIDE] = "1"
    return os.execvp(words[0], [*words, sys.executable, *sys.argv])


def reap():
    """Orphans fall to us, the first process. Call it when no child is awaited otherwise."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def lines_of(path):
    return pathlib.Path(path).read_text().splitlines()[1:]


def processes():
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            command = pathlib.Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ")
            if int(name) != os.getpid():
                yield f"process {name}: {command.decode(errors='replace')}"
            for fd in os.listdir(f"/proc/{name}/fd"):
                if "memfd:" in (target := os.readlink(f"/proc/{name}/fd/{fd}")):
                    yield f"{target} of process {name}"
        except OSError:
            continue  # it has just ended


def everything():
    """@return a set of texts: processes, sockets with names, ports, shared memory, files"""
    reap()
    found = set(processes())
    found.update(line for line in lines_of("/proc/net/unix") if len(line.split()) > 7)
    for table in ("tcp", "tcp6"):
        if os.path.exists(f"/proc/net/{table}"):
            found.update(
                line for line in lines_of(f"/proc/net/{table}") if line.split()[3] == LISTENS
            )
    found.update(f"segment {line}" for line in lines_of("/proc/sysvipc/shm"))
    for folder in SCRATCH:
        found.update(
            str(path)
            for path in pathlib.Path(folder).rglob("*")
            if not path.name.startswith(OF_SANITIZER)
        )
    return found
