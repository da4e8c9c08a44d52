# SPDX-License-Identifier: Apache-2.0
"""What the scripts of this folder share: finding the programs, running jobs under a deadline, a
network of their own with one congestion control, hosts on shaped links, and the statistics of
interleaved rounds.

Standard library only: torch and matplotlib are wanted by the programs that are run, not by these.
"""

import ctypes
import fcntl
import json
import os
import platform
import random
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
HERE = Path(__file__).resolve().parent
sys.path.append(str(TOP / "test" / "hosts"))

import netns  # noqa: E402


class HarnessError(Exception):
    """A run could not be made or failed; the text is for the user."""


# ---- Sizes --------------------------------------------------------------------------------------


def parse_size(text):
    """'8', '64K', '1M', '1G' (powers of 1024) as bytes."""
    units = {"K": 10, "M": 20, "G": 30}
    shift = units.get(text[-1:].upper(), 0)
    digits = text[:-1] if shift else text
    if not digits.isdigit():
        raise HarnessError(f'"{text}" is no size, such as 8, 64K or 1M')
    return int(digits) << shift


def parse_sizes(text):
    """A list of sizes separated by commas."""
    return [parse_size(word) for word in text.split(",")]


def parse_count(text):
    if not text.isdecimal() or int(text) == 0:
        raise HarnessError(f'"{text}" is no count of 1 or more')
    return int(text)


def parse_counts(text):
    """A list of counts separated by commas."""
    return [parse_count(word) for word in text.split(",")]


def format_size(n_bytes):
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if n_bytes >= 1 << shift and n_bytes % (1 << shift) == 0:
            return f"{n_bytes >> shift} {unit}"
    return f"{n_bytes} B"


def format_ratio(ratio):
    return f"{ratio:.2g}" if ratio < 0.1 else f"{ratio:.3f}" if ratio < 100 else f"{ratio:.0f}"


def format_us(us):
    if us is None:
        return "-"
    return f"{us:.2f}" if us < 100 else f"{us:.0f}" if us < 1e5 else f"{us / 1e3:.0f}k"


# ---- Programs -----------------------------------------------------------------------------------


def find_program(name, folder=None):
    """Where a program of this build is: in --bin, in .venv, in build/ or in PATH."""
    candidates = []
    if folder is not None:
        base = Path(folder).resolve()
        candidates += [base / name, base / "tools" / name, base / "benchmarks" / name]
    else:
        candidates.append(TOP / ".venv" / "bin" / name)
        for build in sorted(TOP.glob("build*")):
            candidates += [build / "tools" / name, build / "benchmarks" / name]
    for candidate in candidates:
        if os.access(candidate, os.X_OK) and candidate.is_file():
            return str(candidate)
    found = shutil.which(name) if folder is None else None
    if found is None:
        where = folder if folder is not None else ".venv/bin, build*/ and PATH"
        raise HarnessError(
            f"{name} is not in {where}: build it first (tools/quickstart; what that does not "
            "install: meson setup build && ninja -C build)"
        )
    return found


def find_test(name, folder=None):
    """Where a test program is, which only a build folder has: in --bin, or in build*/."""
    builds = [Path(folder).resolve()] if folder is not None else sorted(TOP.glob("build*"))
    builds += [build / "check" for build in builds]  # where tools/check builds
    for build in builds:
        candidate = build / "test" / name
        if os.access(candidate, os.X_OK) and candidate.is_file():
            return str(candidate)
    where = folder if folder is not None else "build*/"
    raise HarnessError(f"the test {name} is not in {where}: build it first (tools/check --quick)")


def find_python(wanted=None):
    """The Python that has torch: the one asked for, the one of .venv, or the one that runs this."""
    if wanted:
        return wanted
    own = TOP / ".venv" / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def python_has(python, *modules):
    """Whether these modules can be imported there."""
    code = "import " + ", ".join(modules)
    return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0


def horonrun(np, program, folder=None, tcp=False):
    """@tcp: ranks move everything over TCP, nothing over shared memory."""
    command = [find_program("horonrun", folder), "-np", str(np)]
    return command + (["--shm", "0"] if tcp else []) + list(program)


def mpirun(np, program, tcp=False):
    """Open MPI's launcher, cores left to horon-perf --pin; yielding where cores are shared.
    @tcp: as for horonrun(); it leaves loopback out by itself."""
    command = [shutil.which("mpirun") or "mpirun", "-np", str(np), "--bind-to", "none"]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    if np > cores():
        command += ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    if tcp:
        command += ["--mca", "pml", "ob1", "--mca", "btl", "self,tcp"]
        command += ["--mca", "btl_tcp_if_include", "lo"]
    return command + list(program)


def mpirun_of_mpich(np, program):
    """MPICH's launcher, cores left to horon-perf --pin. Its ranks spin on shared cores, too."""
    launcher = shutil.which("mpirun.mpich") or "mpirun.mpich"
    return [launcher, "-np", str(np), "-bind-to", "none", *program]


def leave_out(names, launchers):
    """Takes those names from a list whose program is not installed, and says so.
    @launchers  name: (its program, and Debian's package of that)"""
    for name, (program, package) in launchers.items():
        if name in names and shutil.which(program) is None:
            names.remove(name)
            print(f"without {name}: {program} is not installed (Debian: {package})")


def cores():
    return len(os.sched_getaffinity(0))


# ---- Running ------------------------------------------------------------------------------------


def _stop(process):
    """Ends a job that was started in its own process group: asks, then insists."""
    for sign, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            return
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            pass


def _ended(processes, deadline):
    """Waits for all; the first that fails, or the deadline, ends the rest. Returns what failed."""
    while True:
        codes = [process.poll() for process in processes]
        failed = next((code for code in codes if code not in (None, 0)), None)
        if failed is not None:
            return f"ended with status {failed}"
        if None not in codes:
            return None
        if time.monotonic() > deadline:
            return "did not end in time"
        time.sleep(0.005)


def run_all(commands, timeout_s, environments=None):
    """Runs the commands at the same time, each in its own process group. Returns their outputs.

    Output goes to files: a pipe that nobody empties would stop a rank. All stay in one session: the
    scheduler may share the cores out by sessions, so that a rank which yields its core yields it
    to nobody of another one.
    """
    outputs = [tempfile.TemporaryFile() for _ in commands]  # noqa: SIM115 (closed below)
    processes = []
    try:
        for i, command in enumerate(commands):
            environment = {**os.environ, **(environments[i] if environments else {})}
            processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=outputs[i],
                    stderr=subprocess.STDOUT,
                    env=environment,
                    process_group=0,
                )
            )
        failure = _ended(processes, time.monotonic() + timeout_s)
        for process in processes:
            _stop(process)
        texts = []
        for output in outputs:
            output.seek(0)
            texts.append(output.read().decode(errors="replace"))
        if failure is not None:
            tail = "\n".join("\n".join(text.splitlines()[-8:]) for text in texts)
            raise HarnessError(f"{' '.join(commands[0])}: {failure}\n{tail}")
        return texts
    except FileNotFoundError as error:
        raise HarnessError(f"{error.filename}: not found") from error
    finally:
        for process in processes:
            _stop(process)
        for output in outputs:
            output.close()


def run(command, timeout_s, environment=None):
    """Runs one command. Returns its output, both streams together."""
    return run_all([command], timeout_s, [environment or {}])[0]


def json_lines(text):
    """The JSON objects of an output, wherever a launcher put them in their line."""
    found = []
    for line in text.splitlines():
        start = line.find("{")
        if start >= 0:
            try:
                found.append(json.loads(line[start:]))
            except json.JSONDecodeError:
                pass
    return found


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def torch_environments(np):
    """What torch.distributed wants to know in each rank, on this host, over loopback."""
    port = str(free_port())
    return [
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(np),
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        for rank in range(np)
    ]


# ---- The network --------------------------------------------------------------------------------


def _loopback_up():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(s, 0x8913, request))[1]  # SIOCGIFFLAGS
        fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"lo", flags | 1))  # SIOCSIFFLAGS, IFF_UP


def _route_with(control):
    """Asks for the control on loopback's routes, which a namespace may where the sysctl may not."""
    if shutil.which("ip") is None:
        return
    for route in ("127.0.0.0/8", "127.0.0.1"):
        words = f"ip route change local {route} dev lo table local proto kernel scope host"
        words += f" src 127.0.0.1 congctl {control}"
        subprocess.run(words.split(), capture_output=True, check=False)


def congestion_control():
    """What a TCP connection over loopback really uses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as connection:
            name = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return name.split(b"\0")[0].decode()


def own_network(control="cubic"):
    """Puts this process, and so all jobs it starts, into a network namespace of its own, with
    loopback only and the given congestion control: nothing of the machine is changed, nothing has
    to be put back. Returns a sentence for the report; without the right to do that it changes
    nothing and says so."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x40000000) != 0:  # CLONE_NEWNET
        reason = os.strerror(ctypes.get_errno())
        return f"congestion control {congestion_control()} (no network of our own: {reason})"
    _loopback_up()
    _route_with(control)
    used = congestion_control()
    wanted = "" if used == control else f", though {control} was asked for"
    return f"congestion control {used}{wanted}; own network namespace"


class Hosts(netns.Hosts):
    """Hosts on links of one rate, with `each` ranks on each, rank by rank and host by host."""

    PORT = 5076  # of horon's store, in a namespace where nobody else listens

    def __init__(self, shape, gbit, congestion):
        words = shape.split("x")
        if len(words) != 2 or not all(word.isdigit() and int(word) > 0 for word in words):
            raise HarnessError(f'"{shape}" is no HOSTSxRANKS, such as 4x1')
        reason = netns.why_not(with_ssh=False)
        if reason is None and shutil.which("tc") is None:
            reason = "needs tc"
        if reason is not None:
            raise HarnessError(f"no hosts here: {reason}")
        self.count, self.each = map(int, words)
        super().__init__(self.count, with_ssh=False)
        self.shape_name, self.gbit, self.congestion = shape, gbit, congestion

    def __enter__(self):
        super().__enter__()
        try:
            self.shape(f"{self.gbit}gbit", self.congestion)
            self.agent = self.folder / "agent"  # reaches a host as rsh would
            self.agent.write_text(
                "#!/bin/sh\nhost=$1; shift\n"
                f"exec ip netns exec {self.names[0][:-1]}$((${{host##*.}} - 1)) "
                'unshare --uts sh -c "hostname host${host##*.} && $*"\n'
            )
            self.agent.chmod(0o700)
        except BaseException:
            self.close()
            raise
        return self

    def horon(self, program):
        """-> the commands of all ranks, and what each is told"""
        np = self.count * self.each
        told = {
            "HORON_SIZE": str(np),
            "HORON_STORE": f"tcp://{self.addresses[0]}:{self.PORT}",
            "HORON_JOB_KEY": os.urandom(16).hex(),
        }
        commands = [[*self.inside(self.names[rank // self.each]), *program] for rank in range(np)]
        return commands, [{**told, "HORON_RANK": str(rank)} for rank in range(np)]

    def mpirun(self, program):
        """Open MPI's launcher on host 0, where hosts are told apart by their names. Its daemons
        stay in our session: see run_all()."""
        command = mpirun(self.count * self.each, [])
        places = ",".join(f"{address}:{self.each}" for address in self.addresses)
        command += ["-H", places, "--mca", "plm_rsh_agent", str(self.agent)]
        command += ["--mca", "orte_leave_session_attached", "1"]
        command += ["--mca", "pml", "ob1", "--mca", "btl", "self,vader,tcp"]
        for framework in ("btl", "oob"):
            command += ["--mca", f"{framework}_tcp_if_include", "eth0"]
        own_name = ["unshare", "--uts", "sh", "-c", 'hostname host1 && exec "$@"', "sh"]
        return [*self.inside(self.names[0]), *own_name, *command, *program]

    def describe(self):
        return (
            f"{self.count} network namespaces of {self.each} ranks on a bridge, links of "
            f"{self.gbit} Gbit/s (tbf), congestion control {self.congestion}"
        )

    def wire_gb_s(self):
        """What a link carries of a program's bytes: of each frame 66 bytes are headers."""
        return self.gbit / 8 * 1448 / 1514

    def link_bytes(self, verb, size):
        """The least that must cross the busiest link one way, of horon-perf's size."""
        np, hosts, each = self.count * self.each, self.count, self.each
        part = size / np
        return {
            "allreduce": 2 * size * (hosts - 1) / hosts,
            "alltoall": each * (np - each) * part,
            "gather": (np - each) * part,
            "scatter": (np - each) * part,
            "allgather": (np - each) * part,
            "reducescatter": size * (hosts - 1) / hosts,
        }.get(verb, size)


# ---- Statistics ---------------------------------------------------------------------------------


def ratio_of(ours, theirs, resamples=2000, seed=1):
    """The ratio of the medians over interleaved rounds, and its 95 % interval: rounds are drawn
    anew with repetition (both sides of a round together), then percentiles of the ratios are taken.
    Two lists of one length."""
    n = len(ours)
    draw = random.Random(seed)
    ratios = []
    for _ in range(resamples):
        picked = [draw.randrange(n) for _ in range(n)]
        low = statistics.median(theirs[i] for i in picked)
        ratios.append(statistics.median(ours[i] for i in picked) / low)
    ratios.sort()
    ratio = statistics.median(ours) / statistics.median(theirs)
    return ratio, ratios[int(0.025 * resamples)], ratios[int(0.975 * resamples) - 1]


def verdict(low, high, limit):
    """A figure falls short only if its whole interval lies above the limit."""
    if low > limit:
        return "SHORT"
    return "holds" if high <= limit else "holds, not surely"


# ---- Reports ------------------------------------------------------------------------------------


def commit():
    try:
        text = subprocess.run(
            ["git", "-C", str(TOP), "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return "unknown"
    return text.stdout.strip() or "unknown"


def machine():
    """What the numbers were taken on."""
    model = platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return {
        "cores": cores(),
        "cpu": model,
        "kernel": platform.release(),
        "load": round(os.getloadavg()[0], 2),
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }


def describe(facts):
    return (
        f"{facts['cores']} cores ({facts['cpu']}), Linux {facts['kernel']}, load {facts['load']}, "
        f"commit {facts['commit']}, {facts['date']}"
    )


def markdown_table(heads, rows):
    """The lines of a table for a README: the first column left-aligned, the others right."""
    rule = ["---"] + ["---:"] * (len(heads) - 1)
    return [f"| {' | '.join(str(cell) for cell in row)} |" for row in [heads, rule, *rows]]


def print_table(heads, rows, markdown=False):
    """Right-aligned columns, the first one left-aligned; or a table for a README."""
    if markdown:
        print("\n".join(markdown_table(heads, rows)), flush=True)
        return
    widths = [max(len(str(row[i])) for row in [heads, *rows]) for i in range(len(heads))]
    for row in [heads, *rows]:
        cells = [
            str(cell).ljust(width) if i == 0 else str(cell).rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip(), flush=True)


def make_folder(folder):
    """Of --out, before anything is measured. None: there is none."""
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HarnessError(f"--out {folder}: {error.strerror}") from error


def main_guard(main):
    """Runs main(); turns our errors and Ctrl-C into one line and a status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except HarnessError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"{Path(sys.argv[0]).name}: interrupted", file=sys.stderr)
        sys.exit(130)
