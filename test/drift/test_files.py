# SPDX-License-Identifier: Apache-2.0
"""No file is forgotten: sources are built, headers included, folders and files explained."""

import re
import subprocess
from pathlib import Path

import tap
import tree

# Read as programs by what their name says, not built.
SCRIPTS = ("tools/checks", "test/python", "test/drift", "framework_ops/examples")
README_LINES = (15, 60)
ROOT_README_LINES = (15, 90)


def meson_names():
    """Every quoted word of every meson.build, by the folder that it is relative to."""
    return {
        name.parent: set(re.findall(r"'([^'\n]+)'", tree.text(name)))
        for name in [*tree.files(".build"), *tree.files(".build", under=(".",))]
        if name.name == "meson.build"
    }


def is_listed(name, listed):
    """True if a meson.build in the file's folder or above names it: whole, without its suffix, or
    as two words that it joins ('fuzz_' + name)."""
    for folder in name.parents:
        words = listed.get(folder, set())
        relative = name.relative_to(folder)
        wanted = {str(relative), str(relative.with_suffix(""))}
        joined = {text.removeprefix(word) for text in wanted for word in words if word}
        if wanted & words or joined & words:
            return True
    return False


def test_files_every_c_source_is_built():
    """It is compiled in this build, or a meson.build names it (for a build with other options)."""
    listed = meson_names()
    built = {(tree.BUILD / entry["file"]).resolve() for entry in tree.compile_commands()}
    orphans = [
        name
        for name in tree.files(".c", ".cu")
        if (tree.ROOT / name).resolve() not in built and not is_listed(name, listed)
    ]
    tree.assert_none(orphans, "sources that nothing builds")


def test_files_every_python_module_is_installed():
    listed = meson_names()
    modules = tree.files(".py", under=("framework_ops/horon",))
    orphans = [name for name in modules if not is_listed(name, listed)]
    tree.assert_none(orphans, "modules of the package that no meson.build installs")


def test_files_every_header_is_included():
    included = set()
    for name in tree.files(".c", ".h", ".cu"):
        found = re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', tree.text(name), re.M)
        included |= {path.rpartition("/")[2] for path in found}
    orphans = [name for name in tree.files(".h") if name.name not in included]
    tree.assert_none(orphans, "headers that nothing includes")


def test_files_headers_of_the_library_share_no_tag():
    """A source that includes both does not compile, and a reader takes one for the other."""
    found = {}
    for name in tree.files(".h", under=("include", "runtime", "collectives")):
        code = "".join(text for kind, _, text in tree.c_tokens(tree.text(name)) if kind == "code")
        for tag in re.findall(r"^(?:struct|union|enum)\s+(\w+)\s*\{", code, re.M):
            found.setdefault(tag, []).append(str(name))
    assert found, "no tag was found in any header"
    shared = [f"{tag}: {', '.join(names)}" for tag, names in found.items() if len(names) > 1]
    tree.assert_none(shared, "tags that two headers define")


def test_files_every_room_has_a_readme():
    wrong = [room for room in tree.ROOMS if not (tree.ROOT / room / "README.md").is_file()]
    tree.assert_none(wrong, "rooms without a README.md")


def test_files_readmes_are_short_but_say_something():
    wrong = []
    for name in [Path("README.md"), *tree.files(".md")]:
        low, high = ROOT_README_LINES if name.parent == Path() else README_LINES
        lines = len(tree.text(name).splitlines())
        if name.name == "README.md" and not low <= lines <= high:
            wrong.append(f"{name}: {lines} lines; {low} to {high} are allowed")
    tree.assert_none(wrong, "READMEs of a wrong length")


def test_files_links_in_documents_lead_somewhere():
    wrong = []
    for name in [*tree.files(".md"), *tree.files(".md", under=("*.md",))]:
        for target in re.findall(r"\]\(([^)#\s]+)", tree.text(name)):
            if "://" not in target and not (tree.ROOT / name.parent / target).exists():
                wrong.append(f"{name}: {target}")
    tree.assert_none(wrong, "dead links")


def test_files_begin_with_their_licence():
    wrong = []
    for name in tree.files(".c", ".h", ".cu", ".py", ".sh"):
        head = tree.text(name)[:200]
        if head.strip() and "SPDX-License-Identifier: Apache-2.0" not in head:
            wrong.append(name)
    tree.assert_none(wrong, "files without an SPDX line at the top")


def test_files_licence_is_whole():
    licence = tree.text("LICENSE")
    assert "Apache License" in licence
    assert "END OF TERMS AND CONDITIONS" in licence


def test_files_none_is_large():
    limit = 1 << 20
    large = [name for name in tree.files(under=(".",)) if (tree.ROOT / name).stat().st_size > limit]
    tree.assert_none(large, "files above 1 MiB")


def test_files_programs_in_tools_may_be_run():
    wrong = []
    for name in ("tools/quickstart", "tools/check", "tools/setup", ".ci/run"):
        mode = subprocess.run(
            ["git", "ls-files", "-s", name],
            cwd=tree.ROOT,
            capture_output=True,
            text=True,
            check=False,
        ).stdout.split()
        if not (tree.ROOT / name).stat().st_mode & 0o100 or (mode and mode[0] != "100755"):
            wrong.append(name)
    tree.assert_none(wrong, "programs that are not executable")


tap.run(globals())
