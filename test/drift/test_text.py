# SPDX-License-Identifier: Apache-2.0
"""What the text of the tree may not hold, and how long its parts may be."""

import ast
import io
import re
import tokenize
from itertools import pairwise
from pathlib import Path

import tap
import tree

FILE_LINES = 600
HEADER_LINES = 200
FUNCTION_LINES = 70
COLUMNS = 100

# The ABI is its own manual.
LONG_HEADERS = ("include/horon/horon.h",)
# Code that is compiled once for every instruction set: as long as code may be.
CODE_IN_HEADERS = re.compile(r"collectives/reduce/(kernels|lanes)_\w+\.h")


def sources(*suffixes):
    return tree.files(*suffixes)


def c_functions(lines):
    """(name, first line, lines) of each function. clang-format puts both braces in column 0."""
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            start = number
        elif line == "}" and start is not None:
            head = " ".join(lines[max(0, start - 8) : start - 1])
            names = re.findall(r"(\w+)\s*\(", head.rpartition(";")[2].rpartition("}")[2])
            yield (names[0] if names else "?"), start, number - start + 1
            start = None


def python_functions(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, node.end_lineno - node.lineno + 1


def test_text_parser_of_functions_sees_their_length():
    lines = ["static int f(int a)", "{", *["    a++;"] * 70, "}", "int g(void)", "{", "}"]
    assert list(c_functions(lines)) == [("f", 2, 72), ("g", 75, 2)]


def test_text_functions_are_short():
    wrong = []
    for name in sources(".c", ".h", ".py", ".cu"):
        text = tree.text(name)
        found = python_functions(text) if name.suffix == ".py" else c_functions(text.splitlines())
        wrong += [f"{name}:{at} {who}: {n} lines" for who, at, n in found if n > FUNCTION_LINES]
    tree.assert_none(wrong, f"functions above {FUNCTION_LINES} lines")


def test_text_files_are_short():
    wrong = []
    for name in sources(".c", ".h", ".py", ".cu"):
        lines = len(tree.text(name).splitlines())
        if lines > FILE_LINES and str(name) not in LONG_HEADERS:
            wrong.append(f"{name}: {lines} lines")
    tree.assert_none(wrong, f"files above {FILE_LINES} lines")


def test_text_headers_are_short():
    wrong = []
    for name in sources(".h"):
        lines = len(tree.text(name).splitlines())
        excepted = str(name) in LONG_HEADERS or CODE_IN_HEADERS.fullmatch(str(name))
        if lines > HEADER_LINES and not excepted:
            wrong.append(f"{name}: {lines} lines")
    tree.assert_none(wrong, f"headers above {HEADER_LINES} lines")


def test_text_lines_are_short():
    wrong = [
        f"{name}:{number}: {len(line)} columns"
        for name in [*sources(".c", ".h", ".cu", ".py")]
        for number, line in enumerate(tree.text(name).splitlines(), 1)
        if len(line) > COLUMNS
    ]
    tree.assert_none(wrong, f"lines above {COLUMNS} columns")


def test_text_drawings_survive_clang_format():
    """It breaks what is too long in a drawing or a list, and puts the rest where text begins."""
    wrong = []
    for name in sources(".c", ".h"):
        lines = tree.text(name).splitlines()
        for number, (before, line) in enumerate(pairwise(lines), 2):
            indented = re.match(r"( *\*) {2,}\S", before)
            if indented and re.match(re.escape(indented[1]) + r" [a-z(]", line):
                wrong.append(f"{name}:{number}: {line.strip()}")
    tree.assert_none(wrong, "lines that clang-format broke off a drawing or a list")


def everything():
    """(file, line number, line) of all text files."""
    for name in tree.files(under=(".",)):
        if name.suffix in (".abi", ".gz", ".png", ".svg", ".json", ".csv") or "corpus" in str(name):
            continue
        try:
            lines = tree.text(name).splitlines()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(lines, 1):
            yield name, number, line


def test_text_names_no_folder_of_a_machine():
    folders = "|".join(("work", "root", "farm", "home/[a-z]+"))
    pattern = re.compile(rf"(?<![\w.$}}*])/(?:{folders})/")
    wrong = [
        f"{name}:{at}: {line.strip()}" for name, at, line in everything() if pattern.search(line)
    ]
    tree.assert_none(wrong, "absolute paths of a machine")


def test_text_has_no_unfinished_business():
    words = "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK"))
    pattern = re.compile(rf"\b(?:{words})\b")
    wrong = [
        f"{name}:{at}: {line.strip()}"
        for name, at, line in everything()
        if pattern.search(line) and name.suffix != ".patch" and str(name) != "LICENSE"
        and "mktemp" not in line
    ]  # fmt: skip
    tree.assert_none(wrong, "notes of unfinished work")


# Words that stand for a rank, thread, process or server without saying which of them is meant.
RIDDLES = re.compile(r"\b(who|whom|whoever|he|him|his|she|her)\b", re.IGNORECASE)
# A user is a person.
PEOPLE = re.compile(r"\busers?( there)?,? whom?\b")


def python_comments(source):
    """(line, text) of comments and docstrings."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.lineno, value.value


def comments(name, source):
    """(line, text) of what is written for readers; in a file that is no code, each line."""
    if name.suffix in (".c", ".h", ".cu"):
        return [(at, text) for kind, at, text in tree.c_tokens(source) if kind == "comment"]
    if name.suffix == ".py":
        return list(python_comments(source))
    lines = list(enumerate(source.splitlines(), 1))
    if name.suffix == ".md":
        return lines
    return [(at, line) for at, line in lines if line.lstrip().startswith("#")]


def riddles(name, source):
    """(line, word)"""
    for at, text in comments(name, source):
        whole = re.sub(r"\s*\n[\s*#]*", " ", text)
        for found in RIDDLES.finditer(PEOPLE.sub("", whole)):
            yield at, found.group()


def test_text_riddles_are_found_in_comments_only():
    found = [
        list(riddles(Path(name), source))
        for name, source in (
            ("a.c", 'who("who"); /* of the user\n * who runs it */\nint a; // to Whom\n'),
            ("a.h", "\n/* a rank\n * that he waits for: nobody who can help */"),
            ("a.py", '"""Who is it?"""\n\ndef f(who):\n    """his"""  # her\n    return "who"\n'),
            ("a.sh", "who am i\n# whoever\n"),
            ("a.md", "the whole\nwho it is\n"),
        )
    ]
    assert found == [
        [(3, "Whom")],
        [(2, "he"), (2, "who")],
        [(4, "her"), (1, "Who"), (4, "his")],
        [(2, "whoever")],
        [(2, "who")],
    ], found


def test_text_comments_say_what_is_meant():
    wrong = [
        f"{name}:{at}: {word}"
        for name in {*tree.files(), *tree.files(".md", under=(".",))}
        if "corpus" not in name.parts  # bytes for the fuzzers
        for at, word in riddles(name, tree.text(name))
    ]
    tree.assert_none(wrong, "texts with a riddle: say rank, thread, process or server")


def test_text_names_of_tests_say_what_is_meant():
    names = re.compile(r"\btest_\w+")
    wrong = [
        f"{name}:{at}: {found}"
        for name in tree.files(".c", ".py", under=("test",))
        for at, line in enumerate(tree.text(name).splitlines(), 1)
        for found in names.findall(line)
        if RIDDLES.search(found.replace("_", " "))
    ]
    tree.assert_none(wrong, "names of tests with a riddle: say rank, thread, process or server")


def test_text_environment_is_read_in_one_place():
    wrong = []
    for name in tree.files(".c", ".h", under=("runtime", "collectives")):
        if str(name) == "runtime/base/config_parse.c" or str(name).startswith("runtime/boot/"):
            continue
        for number, line in enumerate(tree.text(name).splitlines(), 1):
            if re.search(r"\b(secure_)?getenv\s*\(", line):
                wrong.append(f"{name}:{number}: {line.strip()}")
    tree.assert_none(wrong, "readings of the environment outside base/config_parse.c and boot")


def test_text_logic_has_no_ifdef():
    """A file is chosen in Meson; a header guard, a compiler's or machine's macro is no logic."""
    allowed = re.compile(
        r"__(cplusplus|GNUC__|clang__|has_\w+|SANITIZE_\w+|x86_64__|aarch64__|AVX\w*|F16C__)|_H\b"
    )
    wrong = []
    for name in tree.files(".c", ".h", under=("runtime", "collectives")):
        for number, line in enumerate(tree.text(name).splitlines(), 1):
            if re.match(r"\s*#\s*(ifdef|ifndef|if|elif)\b", line) and not allowed.search(line):
                wrong.append(f"{name}:{number}: {line.strip()}")
    tree.assert_none(wrong, "conditionals of the preprocessor")


def test_text_memory_passes_one_hook():
    calls = re.compile(
        r"(?<![\w>.])(malloc|calloc|realloc|free|strdup|strndup|posix_memalign|aligned_alloc)\s*\("
    )
    wrong = []
    for name in tree.files(".c", under=("runtime", "collectives")):
        if str(name) == "runtime/base/alloc.c":
            continue
        code = re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), tree.text(name), flags=re.S)
        for number, line in enumerate(code.splitlines(), 1):
            if calls.search(line):
                wrong.append(f"{name}:{number}: {line.strip()}")
    tree.assert_none(wrong, "allocations that pass by base/alloc.h")


tap.run(globals())
