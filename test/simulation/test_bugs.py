# SPDX-License-Identifier: Apache-2.0
"""Deliberate bugs: each patch in bugs/ is applied to a copy of the sources, what it touches is
compiled anew, and the simulation must fail within a bounded number of seeds. One that survives says
that the simulation looks away. A patch may begin with "seed N", one that fails with the bug, and
only with it: that is tried first, and if it finds nothing any more, all seeds are.

Standard library only; needs a C compiler (CC, default cc) and patch. A patch that no longer applies
is a failure, too: renew it. Arguments name patches to try, without .patch; none: all.
"""

import concurrent.futures
import os
import pathlib
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

SEEDS = 20000
CPU_LIMIT_S = 300  # of all seeds; one that hangs ends by a limit of its own, and is caught so
ROOT = pathlib.Path(os.environ.get("HORON_TEST_ROOT", pathlib.Path(__file__).parents[2])).resolve()
BUGS = ROOT / "test" / "simulation" / "bugs"
CC = shlex.split(os.environ.get("CC", "cc"))
FOLDERS = ("include", "runtime", "collectives", "test/world", "test/simulation")
INCLUDES = ("include", "runtime/base", "collectives", "runtime", "test")
SOURCES = (
    "runtime/callbacks.c",
    "runtime/deaths.c",
    "runtime/late_bell.c",
    "runtime/looks.c",
    "runtime/token.c",
    "test/world/teams.c",
    "test/world/world.c",
)
GLOBS = (
    "runtime/base/*.c",
    "runtime/topology/*.c",
    "runtime/engine/*.c",
    "runtime/coordinator/*.c",
    "runtime/observe/*.c",
    "collectives/*.c",
    "collectives/backend/*.c",
    "collectives/exec/*.c",
    "collectives/link/*.c",
    "collectives/plan/*.c",
    "test/simulation/*.c",
)
# Without the vector kernels: what they compute has tests of its own, and a bug here is elsewhere.
REDUCE = (
    "collectives/reduce/neutral.c",
    "collectives/reduce/reduce.c",
    "collectives/reduce/platform_generic.c",
    "collectives/reduce/kernels_generic.c",
)
FLAGS = [
    "-std=gnu17",
    "-D_GNU_SOURCE",
    "-DHORON_OWNERS_CHECKED=0",
    "-O1",
    "-w",
    "-fno-math-errno",
    "-ffp-contract=off",
    "-fopenmp-simd",
    "-fno-trapping-math",
]
LIBRARIES = ["-lxxhash", "-lpthread", "-lm"]


def all_sources(tree):
    found = [*SOURCES, *REDUCE]
    for pattern in GLOBS:
        found += sorted(str(path.relative_to(tree)) for path in tree.glob(pattern))
    return [name for name in found if not name.endswith("_x86.c")]  # there is a *_generic.c


def compile_one(tree, source, objects):
    target = objects / (source.replace("/", "_") + ".o")
    subprocess.run(
        [
            *CC,
            *FLAGS,
            *(f"-I{tree / path}" for path in INCLUDES),
            "-MMD",
            "-c",
            str(tree / source),
            "-o",
            str(target),
        ],
        check=True,
    )
    return target


def at_once(function, values):
    """What @p function gives for each value, in order; as many run at once as there are cores."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(function, values)


def link(objects, target):
    subprocess.run([*CC, *map(str, objects), "-o", str(target), *LIBRARIES], check=True)


class Bench:
    """A copy of the sources, compiled once without any bug."""

    def __init__(self, folder):
        self.clean = folder / "clean"
        self.folder = folder
        for name in FOLDERS:
            shutil.copytree(ROOT / name, self.clean / name)
        self.objects = folder / "objects"
        self.objects.mkdir()
        sources = all_sources(self.clean)
        made = at_once(lambda name: compile_one(self.clean, name, self.objects), sources)
        link(list(made), folder / "program")
        self.seen = {name: self.files_of(name) for name in sources}

    def files_of(self, source):
        """What @p source was compiled with. Read once and removed: attempts share files by hard
        links, and the compiler writes into a list of dependencies while another attempt reads."""
        listed = self.objects / (source.replace("/", "_") + ".d")
        files = listed.read_text().split()
        listed.unlink()
        return files

    def touched(self, files):
        """What to compile anew: the sources that are among @p files, or were compiled with one."""

        def sees_one(source):
            return any(path.endswith(f"/{file}") for file in files for path in self.seen[source])

        return [source for source in self.seen if sees_one(source)]

    def build(self, patch):
        """@return the program with the bug in it."""
        tree = self.folder / patch.stem
        tree.mkdir()
        for name in FOLDERS:
            shutil.copytree(self.clean / name, tree / name, copy_function=os.link)
        result = subprocess.run(
            ["patch", "-p1", "--no-backup-if-mismatch", "-i", str(patch)],
            cwd=tree,
            capture_output=True,
            text=True,
        )
        if result.returncode:
            raise AssertionError(f"{patch.name} does not apply any more:\n{result.stdout}")
        files = {
            line.split("b/", 1)[1].split("\t")[0].strip()
            for line in patch.read_text().splitlines()
            if line.startswith("+++ ")
        }
        objects = tree / "objects"
        shutil.copytree(self.objects, objects, copy_function=os.link)
        for source in self.touched(files):
            compile_one(tree, source, objects)
        program = tree / "program"
        link(sorted(objects.glob("*.o")), program)
        return program

    def attempt(self, patch):
        """@return was the bug caught, and by what"""
        try:
            program = self.build(patch)
            for seed in seeds_of([patch]):
                failed, said = run(program, seed, 1)
                if failed:
                    return failed, said
            return run(program)
        except (AssertionError, subprocess.CalledProcessError) as error:
            return False, str(error).replace("\n", "\n# ")
        finally:
            shutil.rmtree(self.folder / patch.stem, ignore_errors=True)


def seeds_of(patches):
    """-> the seeds that the patches name"""
    texts = [patch.read_text() for patch in patches]
    return [int(seed) for text in texts for seed in re.findall(r"^seed (\d+)$", text, re.MULTILINE)]


def run(program, first=1, count=SEEDS):
    """@return did it fail, and what it said"""
    command = [str(program), str(first), str(count), "1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as running:
        resource.prlimit(running.pid, resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S + 5))
        printed = running.communicate()[0]
    if running.returncode == -signal.SIGXCPU:
        return False, "all seeds took too long, and none of them failed"
    said = [line for line in printed.splitlines() if "seed" in line]
    return running.returncode != 0, said[0] if said else ""


def main():
    wanted = sys.argv[1:]
    patches = [path for path in sorted(BUGS.glob("*.patch")) if not wanted or path.stem in wanted]
    assert len(patches) >= 10 or wanted
    survived = 0
    print(f"1..{len(patches) + 1}", flush=True)
    with tempfile.TemporaryDirectory(prefix="horon-bugs-") as folder:
        bench = Bench(pathlib.Path(folder))
        tries = [(1, 500), *((seed, 1) for seed in seeds_of(patches))]
        results = [run(bench.folder / "program", *each) for each in tries]
        failed, said = next((result for result in results if result[0]), results[0])
        survived += failed
        print(f"{'not ok' if failed else 'ok'} 1 - no_bug_passes # {said}", flush=True)
        attempts = zip(patches, at_once(bench.attempt, patches), strict=True)
        for number, (patch, (failed, said)) in enumerate(attempts, 2):
            survived += not failed
            print(f"# {said[:300]}")
            print(f"{'ok' if failed else 'not ok'} {number} - {patch.stem}_is_caught", flush=True)
    sys.exit(1 if survived else 0)


if __name__ == "__main__":
    main()
