# SPDX-License-Identifier: Apache-2.0
"""The option table and what is written about it: every row explained, every name written exists."""

import re
import subprocess

import tap
import tree

PAGE = "tools/OPTIONS.md"

# Read before there are options (runtime/boot says what each is), or by the tests and scripts only.
NOT_OPTIONS = re.compile(
    r"HORON_(TEST_\w+|TORCH_SPEC|PYTHON|SKIP_DEBIAN|TREE_\w+|RANK|SIZE|LOCAL_RANK|LOCAL_SIZE|API|"
    r"ASSERT_OWNER)$"
)

# The test that proves the sentence of a row: it fails if the option does nothing.
BOOT = "test/runtime/boot/test_boot.c"
BOOT_FAIL = "test/runtime/boot/test_boot_fail.c"
ENGINE = "test/runtime/engine/test_options.c"
CONTEXT = "test/multi/test_options.c"
GLOO = "test/multi/test_gloo.c"
SETS = "test/multi/test_process_sets.c"
PROOFS = {
    "LOG_LEVEL": (CONTEXT, "test_options_log_level_passes_what_is_as_important"),
    "STORE": (BOOT_FAIL, "test_boot_without_a_server_says_where_it_looked"),
    "RANKS": ("test/python/test_launch.py", "test_selections_of_a_launch_by_a_variable"),
    "JOB_KEY": (BOOT_FAIL, "test_boot_wrong_key_is_told_apart"),
    "JOB_KEY_FILE": (BOOT, "test_boot_key_file_is_read_without_its_newline"),
    "FAILURE_FILE": (
        "test/multi/test_failure_file.c",
        "test_failure_file_tells_which_rank_made_the_job_fail",
    ),
    "INTERFACES": (BOOT, "test_boot_ipv6_loopback_is_used"),
    "PORT_RANGE": (BOOT, "test_boot_interfaces_and_ports_are_obeyed"),
    "START_TIMEOUT": (BOOT_FAIL, "test_boot_missing_ranks_are_named_by_tcp_store"),
    "PEER_TIMEOUT": (CONTEXT, "test_options_peer_timeout_is_given_to_connections"),
    "FUSION_BYTES": (ENGINE, "test_options_fusion_bytes_bound_a_batch"),
    "CACHE_ENTRIES": (ENGINE, "test_options_cache_entries_are_names_that_travel_once"),
    "INFLIGHT_MAX": (CONTEXT, "test_options_inflight_max_refuses_one_more"),
    "SHM": (CONTEXT, "test_options_shm_off_makes_every_rank_a_host"),
    "SHM_LEND_BYTES": (
        "test/world/test_world_lent.c",
        "test_lent_is_what_is_long_and_all_read_at_once",
    ),
    "SHM_CHUNK_BYTES": (CONTEXT, "test_options_shm_bytes_are_those_of_the_arenas"),
    "SHM_SMALL_BYTES": (CONTEXT, "test_options_shm_bytes_are_those_of_the_arenas"),
    "NET_EAGER_BYTES": (ENGINE, "test_options_net_eager_bytes_go_unasked"),
    "NET_CHUNK_BYTES": (ENGINE, "test_options_net_chunk_bytes_travel_at_a_time"),
    "NET_ALGORITHM": (ENGINE, "test_options_net_algorithm_decides_which_rank_sends_what_to_which"),
    "DETERMINISTIC": (
        "test/world/test_world_backends.c",
        "test_world_backends_without_the_tree_get_no_sums_if_deterministic",
    ),
    "BACKEND": ("test/mpi/test_backend.py", "test_results_of_every_verb_are_right"),
    "GLOO_STORE": (GLOO, "test_gloo_store_prefix_era_and_native_make_a_job"),
    "GLOO_PREFIX": (GLOO, "test_gloo_store_prefix_era_and_native_make_a_job"),
    "GLOO_ERA": (GLOO, "test_gloo_store_prefix_era_and_native_make_a_job"),
    "GLOO_NATIVE": (GLOO, "test_gloo_store_prefix_era_and_native_make_a_job"),
    "MPI_SERIALIZED": (
        "test/mpi/test_backend.py",
        "test_a_program_that_begins_mpi_for_one_thread_at_a_time",
    ),
    "MPI_LIBRARY": ("test/mpi/test_backend.py", "test_a_library_of_the_other_family_is_named"),
    "SPIN_US": (CONTEXT, "test_options_spin_and_yield_us_come_before_sleep"),
    "YIELD_US": (CONTEXT, "test_options_spin_and_yield_us_come_before_sleep"),
    "OBJECTS": ("test/python/test_objects.py", "test_objects_are_refused_by_setting"),
    "PROCESS_SETS": (SETS, "test_process_sets_may_be_there_from_the_start"),
    "DYNAMIC_PROCESS_SETS": (SETS, "test_process_sets_may_be_there_from_the_start"),
    "JOIN_AVERAGE": (
        "test/world/test_world_join.c",
        "test_world_join_average_is_of_those_that_gave_if_asked",
    ),
    "JOIN_VERBS": (
        "test/python/test_torch_join.py",
        "test_join_options_let_all_verbs_go_on_and_divide_by_those_that_gave",
    ),
    "STALL_WARN": (CONTEXT, "test_options_stall_warn_is_when_and_for_which_rank_or_never"),
    "STALL_SHUTDOWN_TIME": (
        CONTEXT,
        "test_options_stall_shutdown_time_ends_the_job_or_never",
    ),
    "TIMELINE": (CONTEXT, "test_options_timeline_is_written_from_the_beginning"),
    "TIMELINE_CYCLES": (CONTEXT, "test_options_timeline_is_written_from_the_beginning"),
}


def horon_info(*arguments):
    program = tap.need(tree.built("horon-info"), "this build made no horon-info")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows():
    """name -> meaning, of the table that horon-info prints."""
    found = {}
    for line in horon_info("--config", "--markdown").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        match = re.match(r"`HORON_(\w+)`$", cells[0])
        if match:
            found[match[1]] = cells[-1].rstrip("| ")
    assert found, "horon-info --config --markdown prints no row"
    return found


def table():
    """The names in the source of the table."""
    return re.findall(r'\.name = "(\w+)"', tree.text("runtime/base/config.c"))


def test_options_every_row_is_printed():
    assert sorted(rows()) == sorted(table())


def test_options_every_row_is_explained():
    wrong = [
        f"{name}: {doc!r}" for name, doc in rows().items() if len(doc) < 20 or doc[-1] not in ".)"
    ]
    tree.assert_none(wrong, "rows without a sentence that explains them")


def test_options_every_row_is_used():
    """A row whose field nobody reads is an option that does nothing."""
    source = tree.text("runtime/base/config.c")
    fields = re.findall(r'\.name = "(\w+)".*?AT\((\w+)\)', source, re.S)
    users = "".join(
        tree.text(name)
        for name in tree.files(".c", under=("runtime", "collectives", "tools"))
        if str(name) != "runtime/base/config.c"
    )
    bindings = "".join(tree.text(name) for name in tree.files(".py", under=("framework_ops",)))
    wrong = [
        name
        for name, field in fields
        if not re.search(rf"(->|\.){field}\b", users) and f'setting("{name}")' not in bindings
    ]
    tree.assert_none(wrong, "options that no code reads")


def test_options_every_row_has_a_test_that_proves_its_sentence():
    wrong = [f"{name}: no test is named in PROOFS" for name in set(table()) - set(PROOFS)]
    wrong += [f"{name}: in PROOFS, but no row" for name in set(PROOFS) - set(table())]
    for name, (path, test) in PROOFS.items():
        source = tree.text(path)
        if path.endswith(".py"):
            if not re.search(rf"^def {test}\(", source, re.M) or f"HORON_{name}=" not in source:
                wrong.append(f"{name}: {path} has no {test} that sets it")
        elif not re.search(rf"^static void {test}\(", source, re.M) or f"({test})" not in source:
            wrong.append(f"{name}: {path} runs no {test}")
        elif not re.search(rf'"(HORON_)?{name}=', source):
            wrong.append(f"{name}: {path} never sets it")
    tree.assert_none(sorted(wrong), "rows without a proof")


def test_options_page_is_what_the_program_prints():
    assert (
        tree.text(PAGE).partition("\n|")[2]
        == horon_info("--config", "--markdown").partition("|")[2]
    ), f"{PAGE} is behind the table; build, then: tools/lib/write-options"


def test_options_named_in_documents_exist():
    known = {f"HORON_{name}" for name in table()}
    header = set(re.findall(r"\bHORON_[A-Z0-9_]+", tree.text("include/horon/horon.h")))
    rows = re.findall(r"X\((\w+), -?\d", tree.text("include/horon/horon.h"))
    enums = {f"HORON_{prefix}{name}" for name in rows for prefix in ("", "CAUSE_")}
    boot = {
        name
        for path in tree.files(".c", ".h", under=("runtime/boot", "tools/horonrun"))
        for name in re.findall(r'"(HORON_[A-Z_]+)', tree.text(path))
    }
    wrong = []
    for name in [*tree.files(".md"), *tree.files(".md", under=("*.md",))]:
        for word in re.findall(r"\bHORON_[A-Z0-9_]+\b", tree.text(name)):
            if word not in known | header | enums | boot and not NOT_OPTIONS.match(word):
                wrong.append(f"{name}: {word}")
    tree.assert_none(sorted(set(wrong)), "names in documents that nothing knows")


def test_options_variables_of_launchers_are_those_that_are_read():
    """HORON_* are looked at above; the launchers' own stand where they are read."""
    readers = ("runtime/boot/identity/identity.c", "runtime/boot/identity/moves.c")
    read = {
        name for path in readers for name in re.findall(r'"([A-Z][A-Z0-9_]+)"', tree.text(path))
    }
    written = set(re.findall(r"`([A-Z][A-Z0-9]*_?[A-Z0-9_]+)`", tree.text("tools/STARTING.md")))
    others = {name for name in written if not name.startswith("HORON_")}
    assert len(others) > 15, others
    tree.assert_none(sorted(others - read), "variables that no launcher's row has")


tap.run(globals())
