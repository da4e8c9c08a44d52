# SPDX-License-Identifier: Apache-2.0
"""What `meson install` puts on a machine is enough to build and run a C program with pkg-config."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import tap
import tree

PROGRAM = """#include <horon/horon.h>
#include <stdio.h>
int main(void)
{
    puts(horon_version());
    return horon_version_number() == HORON_VERSION_MAJOR * 10000 + HORON_VERSION_MINOR * 100 +
                                          HORON_VERSION_PATCH ? 0 : 1;
}
"""


def run(*command, **environment):
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


@contextlib.contextmanager
def installed():
    """A folder that holds the installed tree, and the environment for pkg-config to find it."""
    meson = tap.need(shutil.which("meson"), "there is no meson")
    with tempfile.TemporaryDirectory() as folder:
        run(meson, "install", "-C", tree.BUILD, "--no-rebuild", "--quiet", "--destdir", folder)
        packages = sorted(Path(folder).rglob("horon.pc"))
        assert packages, "no horon.pc was installed"
        yield (
            Path(folder),
            {
                "PKG_CONFIG_PATH": str(packages[0].parent),
                "PKG_CONFIG_SYSROOT_DIR": folder,
            },
        )


def builds_and_runs(*pkg_config_options, text=PROGRAM, **environment_of_program):
    with installed() as (folder, environment):
        flags = run("pkg-config", "--cflags", "--libs", *pkg_config_options, "horon", **environment)
        # The prefix of the system's own libraries is none of the installed folder's.
        words = [
            word if not word.startswith(("-I", "-L")) or Path(word[2:]).exists()
            else word[:2] + word[2:].removeprefix(str(folder))
            for word in flags.split()
        ]  # fmt: skip
        source, program = folder / "use.c", folder / "use"
        source.write_text(text, encoding="utf-8")
        library = next(folder.rglob("libhoron.so")).parent
        if "--static" in pkg_config_options:
            words = [str(library / "libhoron.a") if word == "-lhoron" else word for word in words]
        run("cc", source, "-o", program, *words)
        return run(program, LD_LIBRARY_PATH=str(library), **environment_of_program).strip()


def test_install_program_links_the_shared_library():
    assert builds_and_runs().count(".") == 2


def test_install_program_links_the_static_library():
    assert builds_and_runs("--static").count(".") == 2


def test_install_program_of_the_page_builds_and_runs():
    page = (tree.ROOT / "include" / "README.md").read_text(encoding="utf-8")
    program = page.partition("```c\n")[2].partition("```")[0]
    assert builds_and_runs(text=program) == "summed"


def test_install_program_among_ranks_of_gloo_builds_and_runs():
    page = (tree.ROOT / "tools" / "STARTING.md").read_text(encoding="utf-8")
    program = page.partition("```c\n")[2].partition("```")[0]
    alone = {"HORON_GLOO_STORE": "hash:page", "HORON_RANK": "0", "HORON_SIZE": "1"}
    assert builds_and_runs(text=program, **alone) == "summed 4"


def test_install_programs_are_there():
    with installed() as (folder, _):
        names = {path.name for path in folder.rglob("bin/*")}
    assert {"horonrun", "horon-info", "horon-perf"} <= names, names


tap.run(globals())
