/* SPDX-License-Identifier: Apache-2.0 */
/* Limits from written /proc and /sys trees; sealed memory; what is not to be mapped. */
#undef NDEBUG
#include "host/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

static char root[64];

static int make_root(void **state)
{
    (void)state;
    strcpy(root, "/tmp/horon-test-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

/* Writes root/path with all folders it needs. */
static void put(const char *path, const char *text)
{
    char full[256];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        assert_true(mkdir(full, 0700) == 0 || errno == EEXIST);
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void test_memory_nothing_known_is_no_limit(void **state)
{
    struct horon_memory_room room;
    (void)state;
    horon_memory_look(&room, root);
    assert_true(room.machine_bytes == UINT64_MAX);
    assert_true(room.group_bytes == UINT64_MAX);
    assert_int_equal(horon_memory_check(&room, UINT64_C(1) << 60, UINT64_C(1) << 60, NULL),
                     HORON_OK);
}

static void test_memory_machine_is_asked(void **state)
{
    struct horon_memory_room room;
    struct horon_error error = {0};
    (void)state;
    put("/proc/meminfo",
        "MemTotal:       16384 kB\nMemAvailableX: 1 kB\nMemAvailable:   2048 kB\n");
    horon_memory_look(&room, root);
    assert_true(room.machine_bytes == 2 * MIB);
    assert_int_equal(horon_memory_check(&room, 2 * MIB, 0, &error), HORON_OK);
    assert_int_equal(horon_memory_check(&room, 3 * MIB, 0, &error), HORON_ERR_MEMORY);
    assert_non_null(strstr(error.text, "ask for 3145728 bytes"));
    assert_non_null(strstr(error.text, "2097152 bytes available"));
}

static void test_memory_group_v2_counts_its_cache_as_free(void **state)
{
    struct horon_memory_room room;
    (void)state;
    put("/proc/self/cgroup", "0::/job/step\n");
    put("/sys/fs/cgroup/job/step/memory.max", "104857600\n");                       /* 100 MiB */
    put("/sys/fs/cgroup/job/step/memory.current", "94371840\n");                    /* 90 MiB */
    put("/sys/fs/cgroup/job/step/memory.stat", "anon 5\ninactive_file 20971520\n"); /* 20 MiB */
    horon_memory_look(&room, root);
    assert_true(room.group_bytes == 30 * MIB);
    assert_string_equal(room.group, "/job/step");
}

static void test_memory_tightest_parent_group_counts(void **state)
{
    struct horon_memory_room room;
    struct horon_error error = {0};
    (void)state;
    put("/sys/fs/cgroup/job/memory.max", "20971520\n");
    put("/sys/fs/cgroup/job/memory.current", "15728640\n");
    put("/sys/fs/cgroup/memory.max", "max\n");
    horon_memory_look(&room, root);
    assert_true(room.group_bytes == 5 * MIB);
    assert_string_equal(room.group, "/job");
    assert_int_equal(horon_memory_check(&room, 0, 6 * MIB, &error), HORON_ERR_MEMORY);
    assert_non_null(strstr(error.text, "/job has 5242880 bytes left"));
}

static void test_memory_used_up_group_has_nothing(void **state)
{
    struct horon_memory_room room;
    (void)state;
    put("/sys/fs/cgroup/job/memory.current", "99999999\n");
    horon_memory_look(&room, root);
    assert_true(room.group_bytes == 0);
}

static void test_memory_group_v1_is_understood(void **state)
{
    struct horon_memory_room room;
    (void)state;
    put("/proc/self/cgroup", "12:cpu,cpuacct:/x\n4:memory:/old\n0::/none\n");
    put("/sys/fs/cgroup/memory/old/memory.limit_in_bytes", "10485760\n");
    put("/sys/fs/cgroup/memory/old/memory.usage_in_bytes", "1048576\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1048576\n");
    horon_memory_look(&room, root);
    assert_true(room.group_bytes == 9 * MIB);
    assert_string_equal(room.group, "/old");
}

static bool kernel_knows_memory_that_is_not_executable(void)
{
    const int fd = memfd_create("horon-test", MFD_CLOEXEC | 8u); /* MFD_NOEXEC_SEAL */
    close(fd);
    return fd >= 0;
}

static void test_memory_created_is_zeroed_sealed_and_whole(void **state)
{
    static const size_t sizes[] = {0, 1, 4096, 4097, 1000003};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct horon_map map, made;
        struct horon_error error = {0};
        struct stat is;
        assert_int_equal(horon_memory_make("horon-test", sizes[i], &made, &error), HORON_OK);
        const int fd = made.fd;
        assert_int_equal(fstat(fd, &is), 0);
        assert_true(is.st_size >= (off_t)sizes[i] && is.st_size % 4096 == 0 && is.st_size > 0);
        assert_true(is.st_blocks * 512 >= is.st_size); /* no page is missing */
        assert_int_equal(ftruncate(fd, 0), -1);
        assert_int_equal(ftruncate(fd, 1 << 24), -1);
        assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
        assert_true((is.st_mode & 0111) == 0 || !kernel_knows_memory_that_is_not_executable());
        assert_int_equal(horon_memory_map(fd, sizes[i], &map, &error), HORON_OK);
        close(fd);
        const char *bytes = map.base;
        for (size_t b = 0; b < map.bytes; b++)
            assert_int_equal(bytes[b], 0);
        horon_memory_unmap(&map);
        assert_null(map.base);
        horon_memory_unmap(&map);
        horon_memory_unmap(&made);
    }
}

static void test_memory_is_not_in_the_child_of_a_fork(void **state)
{
    struct horon_map made, mapped;
    struct horon_error error = {0};
    int end = 0;
    (void)state;
    assert_int_equal(horon_memory_make("horon-test", 100, &made, &error), HORON_OK);
    assert_int_equal(horon_memory_map(made.fd, 100, &mapped, &error), HORON_OK);
    const pid_t child = fork();
    if (child == 0) {
        const bool has = msync(made.base, made.bytes, MS_ASYNC) == 0 ||
                         msync(mapped.base, mapped.bytes, MS_ASYNC) == 0;
        _exit(has || errno != ENOMEM);
    }
    assert_int_equal(waitpid(child, &end, 0), child);
    assert_int_equal(end, 0);
    close(made.fd);
    horon_memory_unmap(&made);
    horon_memory_unmap(&mapped);
}

static void test_memory_that_can_shrink_is_not_mapped(void **state)
{
    struct horon_map map = {0};
    struct horon_error error = {0};
    (void)state;
    int fd = memfd_create("horon-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 4096), 0);
    assert_int_equal(horon_memory_map(fd, 4096, &map, &error), HORON_ERR_PROTO);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    assert_int_equal(horon_memory_map(fd, 4096, &map, &error), HORON_ERR_PROTO);
    assert_null(map.base);
    close(fd);
}

static void test_memory_of_another_size_is_not_mapped(void **state)
{
    struct horon_map map = {0}, made;
    struct horon_error error = {0};
    (void)state;
    assert_int_equal(horon_memory_make("horon-test", 8192, &made, &error), HORON_OK);
    assert_int_equal(horon_memory_map(made.fd, 12288, &map, &error), HORON_ERR_PROTO);
    assert_int_equal(horon_memory_map(made.fd, 4096, &map, &error), HORON_ERR_PROTO);
    close(made.fd);
    horon_memory_unmap(&made);
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    assert_int_equal(horon_memory_map(pipes[0], 4096, &map, &error), HORON_ERR_PROTO);
    close(pipes[0]);
    close(pipes[1]);
}

static void test_memory_beyond_the_machine_is_refused(void **state)
{
    struct horon_error error = {0};
    struct horon_map map = {.fd = -1};
    (void)state;
    /* 8 EiB: no file may be that long, so the kernel refuses before it allocates anything */
    assert_int_equal(horon_memory_make("horon-test", (size_t)1 << 63, &map, &error),
                     HORON_ERR_MEMORY);
    assert_non_null(strstr(error.text, "refuses 9223372036854775808 bytes"));
    assert_int_equal(map.fd, -1);
}

/* It would be a signal that ends the process, not an error. */
static void test_memory_beyond_the_file_limit_is_refused(void **state)
{
    struct horon_error error = {0};
    struct rlimit before;
    struct horon_map map = {.fd = -1};
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    const struct rlimit small = {8192, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    horon_status_t status = horon_memory_make("horon-test", 8193, &map, &error);
    assert_int_equal(map.fd, -1);
    horon_status_t just = horon_memory_make("horon-test", 8192, &map, &(struct horon_error){0});
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(just, HORON_OK);
    close(map.fd);
    horon_memory_unmap(&map);
    assert_int_equal(status, HORON_ERR_MEMORY);
    assert_non_null(strstr(error.text, "12288 bytes of shared memory"));
    assert_non_null(strstr(error.text, "8192 bytes: raise that limit (ulimit -f)"));
}

static bool is_left_out_of_core_files(const void *memory)
{
    const unsigned long long at = (unsigned long long)(uintptr_t)memory;
    unsigned long long from, to;
    bool here = false, left_out = false;
    char line[512];
    FILE *maps = fopen("/proc/self/smaps", "r");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%llx-%llx ", &from, &to) == 2)
            here = from <= at && at < to;
        else if (here && strncmp(line, "VmFlags:", strlen("VmFlags:")) == 0)
            left_out = strstr(line, " dd") != NULL;
    }
    fclose(maps);
    return left_out;
}

static void test_memory_of_a_secret_is_in_no_core_file_and_zero_in_a_child(void **state)
{
    int status = 0;
    char *secret = horon_memory_secret(100);
    (void)state;
    assert_non_null(secret);
    assert_int_equal(secret[99], 0);
    assert_true(is_left_out_of_core_files(secret));
    assert_false(is_left_out_of_core_files(&status));
    strcpy(secret, "a key");
    const pid_t child = fork();
    if (child == 0)
        _exit(secret[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_string_equal(secret, "a key");
    horon_memory_free_secret(secret, 100);
    horon_memory_free_secret(NULL, 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_nothing_known_is_no_limit),
        cmocka_unit_test(test_memory_machine_is_asked),
        cmocka_unit_test(test_memory_group_v2_counts_its_cache_as_free),
        cmocka_unit_test(test_memory_tightest_parent_group_counts),
        cmocka_unit_test(test_memory_used_up_group_has_nothing),
        cmocka_unit_test(test_memory_group_v1_is_understood),
        cmocka_unit_test(test_memory_created_is_zeroed_sealed_and_whole),
        cmocka_unit_test(test_memory_is_not_in_the_child_of_a_fork),
        cmocka_unit_test(test_memory_that_can_shrink_is_not_mapped),
        cmocka_unit_test(test_memory_of_another_size_is_not_mapped),
        cmocka_unit_test(test_memory_beyond_the_machine_is_refused),
        cmocka_unit_test(test_memory_beyond_the_file_limit_is_refused),
        cmocka_unit_test(test_memory_of_a_secret_is_in_no_core_file_and_zero_in_a_child),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
