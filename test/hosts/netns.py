# SPDX-License-Identifier: Apache-2.0
"""Hosts out of nothing: network namespaces on one bridge, each with a real sshd. Needs root."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
PORT = 2222
MTU = 1500

# The shell of a login is told that it is no first one: else bash reads what the user has it read,
# and killed in the middle of that it may leave a lock for which each later login waits.
SSHD_CONFIG = """
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 100
SetEnv SHLVL=2
{more}
"""

SSH_CONFIG = """
Host *
    User root
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    GlobalKnownHostsFile /dev/null
    LogLevel ERROR
    StrictHostKeyChecking {strict}
"""


def why_not(with_ssh=True):
    """@return why there can be no such hosts here, or None"""
    if os.geteuid() != 0:
        return "needs root to make network namespaces"
    for program in ("ip", "ssh", "ssh-keygen") if with_ssh else ("ip",):
        if not shutil.which(program):
            return f"needs {program}"
    if with_ssh and not os.access(SSHD, os.X_OK):
        return "needs sshd"
    name = f"hz{uuid.uuid4().hex[:8]}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode != 0:
        return f"network namespaces are refused: {made.stderr.strip()}"
    link = subprocess.run(
        ["ip", "-n", name, "link", "add", "name", "probe", "type", "veth", "peer", "probe2"],
        capture_output=True,
        text=True,
    )
    subprocess.run(["ip", "netns", "del", name], check=False)
    return f"veth links are refused: {link.stderr.strip()}" if link.returncode else None


def run(*words):
    subprocess.run(words, check=True, capture_output=True)


def ip(*words):
    run("ip", *words)


class Hosts(contextlib.ExitStack):
    """`count` hosts, numbered from 0, with addresses 10.77.0.1... and fd77::1...."""

    def __init__(self, count, sshd_more="", with_ssh=True):
        super().__init__()
        self.with_ssh = with_ssh
        tag = uuid.uuid4().hex[:6]
        self.names = [f"h{tag}{number}" for number in range(count)]
        self.addresses = [f"10.77.0.{number + 1}" for number in range(count)]
        self.addresses6 = [f"fd77::{number + 1}" for number in range(count)]
        self.bridge = f"h{tag}b"
        self.sshd_more = sshd_more

    def __enter__(self):
        super().__enter__()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # of what ends a test that hangs
        try:
            self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
            self.make_network()
            if self.with_ssh:
                self.make_keys()
            for name in self.names:
                self.callback(self.kill_all_in, name)
                if self.with_ssh:
                    self.start_sshd(name)
        except BaseException:
            self.close()
            raise
        return self

    def add_namespace(self, name):
        ip("netns", "add", name)
        self.callback(ip, "netns", "del", name)

    def make_network(self):
        self.add_namespace(self.bridge)
        ip("-n", self.bridge, "link", "add", "name", "bridge0", "type", "bridge")
        ip("-n", self.bridge, "link", "set", "bridge0", "up")
        for number, name in enumerate(self.names):
            self.add_namespace(name)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", self.bridge, "link", "add", "name", f"p{number}", "type", "veth",
               "peer", "name", "eth0", "netns", name)  # fmt: skip
            ip("-n", self.bridge, "link", "set", f"p{number}", "master", "bridge0", "up")
            ip("-n", name, "addr", "add", f"{self.addresses[number]}/24", "dev", "eth0")
            ip("-n", name, "addr", "add", f"{self.addresses6[number]}/64", "dev", "eth0", "nodad")
            ip("-n", name, "link", "set", "eth0", "up")

    def shape(self, rate, congestion):
        """Makes every link as slow as @p rate, a word of tc, both ways, and has what goes over it
        use one congestion control. The kernel passes on up to 64 KiB as one packet, which at 1
        Gbit/s takes half a millisecond in each of the two queues of its way, and all that is behind
        it waits. A wire has frames of 1.5 KB; pieces of 16 KiB come close and cost little."""
        limit = ("root", "tbf", "rate", rate, "burst", "128k", "latency", "50ms")
        for number, name in enumerate(self.names):
            ip("-n", name, "link", "set", "dev", "eth0", "gso_max_size", str(16 << 10))
            for where, device in ((name, "eth0"), (self.bridge, f"p{number}")):
                run("tc", "-n", where, "qdisc", "add", "dev", device, *limit)
            ip("-n", name, "route", "change", "10.77.0.0/24", "dev", "eth0", "proto", "kernel",
               "scope", "link", "src", self.addresses[number], "congctl", congestion)  # fmt: skip

    def make_keys(self):
        for name in ("host_key", "user_key"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)],
                check=True,
            )
        config = SSHD_CONFIG.format(port=PORT, folder=self.folder, more=self.sshd_more)
        (self.folder / "sshd_config").write_text(config)
        self.check_host_keys("accept-new")  # the hosts are new, and ours
        # Each sshd of the machine looks for this empty folder whenever somebody connects, and the
        # connection is reset without it. It stays: the hosts of another test may need it longer.
        pathlib.Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)

    def check_host_keys(self, how):
        """What the user's configuration says of hosts that ssh does not know."""
        config = SSH_CONFIG.format(folder=self.folder, strict=how)
        (self.folder / "ssh_config").write_text(config)

    def start_sshd(self, name):
        """Starts sshd and waits until its log says that it listens."""
        log = self.folder / f"{name}.log"
        sshd = subprocess.Popen(
            [*self.inside(name), SSHD, "-D", "-E", log, "-f", self.folder / "sshd_config"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.callback(sshd.wait)
        self.callback(self.kill_all_in, name)  # before that
        end = time.monotonic() + 30
        while not log.exists() or "listening on 0.0.0.0" not in log.read_text():
            if sshd.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"sshd did not start: {log.read_text()}")
            time.sleep(0.002)

    def inside(self, name):
        return ["ip", "netns", "exec", name]

    def pids(self, name):
        done = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
        return [int(word) for word in done.stdout.split()]

    def kill_all_in(self, name):
        for pid in self.pids(name):
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                pass

    def ssh_words(self):
        """What horonrun needs to reach the hosts."""
        return (
            "--ssh", f"ssh -F {self.folder}/ssh_config",
            "-p", str(PORT),
            "-i", str(self.folder / "user_key"),
        )  # fmt: skip

    def bytes_received(self, number, interface="eth0"):
        """Bytes that came to a host over its link."""
        return self.count(number, interface, "rx_bytes")

    def bytes_sent(self, number, interface="eth0"):
        return self.count(number, interface, "tx_bytes")

    def bytes_sent_again(self, number):
        """The most that TCP can have sent twice, as it does where an acknowledgement is late."""
        names, values = (
            line.split() for line in self.read(number, "/proc/net/snmp").splitlines()
            if line.startswith("Tcp:")
        )  # fmt: skip
        return MTU * int(values[names.index("RetransSegs")])

    def count(self, number, interface, what):
        return int(self.read(number, f"/sys/class/net/{interface}/statistics/{what}"))

    def read(self, number, path):
        done = subprocess.run(
            [*self.inside(self.names[number]), "cat", path],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        return done.stdout

    def unplug(self, number):
        ip("-n", self.bridge, "link", "set", f"p{number}", "down")
