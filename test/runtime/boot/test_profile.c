/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles and addresses there and back, cut at every byte; machines and settings told apart. */
#undef NDEBUG
#include "boot/profile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void fill(struct horon_profile *profile)
{
    struct horon_config config;
    struct horon_error error = {0};
    static char text[HORON_PROFILE_SETTINGS_BYTES];
    static const char *const settings[] = {"FUSION_BYTES=64m", "JOB_KEY=a secret of these tests",
                                           NULL};
    assert_int_equal(horon_config_load(&config, settings, NULL, &error), HORON_OK);
    assert_int_equal(horon_profile_fill(profile, text, &config, &error), HORON_OK);
    profile->job = UINT64_C(0x1122334455667788);
    profile->readers = UINT64_C(0x99);
    strcpy(profile->socket, "horon-3-abc");
    profile->addresses = "10.1.0.3:4000,[fd00::9]:4000";
}

static void test_profile_survives_the_way(void **state)
{
    uint8_t bytes[HORON_PROFILE_SETTINGS_BYTES + sizeof(struct horon_profile)];
    struct horon_profile profile, copy;
    (void)state;
    fill(&profile);
    struct horon_writer out = horon_writer_over(bytes, sizeof bytes);
    horon_profile_encode(&out, &profile, true);
    assert_true(out.ok);
    memset(&copy, 0, sizeof copy);
    struct horon_reader in = horon_reader_over(bytes, out.used);
    assert_true(horon_profile_decode(&in, &copy));
    assert_memory_equal(copy.member, profile.member, sizeof profile.member);
    assert_true(copy.job == profile.job && copy.group == profile.group);
    assert_true(profile.cores > 0 && copy.cores == profile.cores);
    assert_string_equal(copy.name, profile.name);
    assert_string_equal(copy.socket, "horon-3-abc");
    assert_string_equal(copy.settings, profile.settings);
    assert_string_equal(copy.addresses, "10.1.0.3:4000,[fd00::9]:4000");
    assert_true(profile.machine && copy.machine == profile.machine);
    assert_true(copy.host == profile.host);
    assert_true(profile.readers && copy.readers == profile.readers);
    for (size_t cut = 0; cut < out.used; cut++) {
        in = horon_reader_over(bytes, cut);
        assert_false(horon_profile_decode(&in, &copy));
    }
}

/* What a terminal would obey: from a host of any name, or from anybody between the two. */
static void test_profile_texts_of_others_are_cleaned(void **state)
{
    uint8_t bytes[HORON_PROFILE_SETTINGS_BYTES + sizeof(struct horon_profile)];
    struct horon_profile mine, profile, copy = {0};
    struct horon_error error = {0};
    (void)state;
    fill(&mine);
    profile = mine;
    strcpy(profile.name, "host\033[2J\n");
    profile.settings = "FUSION_BYTES=\033[31m\n";
    struct horon_writer out = horon_writer_over(bytes, sizeof bytes);
    horon_profile_encode(&out, &profile, true);
    struct horon_reader in = horon_reader_over(bytes, out.used);
    assert_true(horon_profile_decode(&in, &copy));
    assert_string_equal(copy.name, "host?[2J?");
    assert_int_equal(horon_profile_check_settings(&copy, &mine, 1, &error), HORON_ERR_CONFIG);
    assert_non_null(strstr(error.text, "FUSION_BYTES=?[31m"));
    assert_null(strchr(error.text, '\033'));
}

static void test_profile_never_holds_the_key(void **state)
{
    struct horon_profile profile;
    (void)state;
    fill(&profile);
    assert_non_null(strstr(profile.settings, "FUSION_BYTES="));
    assert_null(strstr(profile.settings, "JOB_KEY"));
    assert_null(strstr(profile.settings, "a secret"));
    assert_null(memmem(&profile, sizeof profile, "a secret", 8));
}

static void write_file(const char *folder, const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static uint64_t machine_of(const char *proc)
{
    struct horon_profile profile = {0};
    horon_profile_find_machine(&profile, proc);
    return profile.machine;
}

/* A namespace is told by its file, whatever that holds. */
static void test_profile_other_kernel_or_network_is_another_machine(void **state)
{
    char proc[] = "/tmp/horon-test-XXXXXX", command[256];
    static const char boot_id[] = "sys/kernel/random/boot_id";
    (void)state;
    assert_non_null(mkdtemp(proc));
    assert_true(machine_of(proc) == 0); /* nothing is known */
    snprintf(command, sizeof command, "mkdir -p %s/sys/kernel/random %s/thread-self/ns", proc,
             proc);
    assert_int_equal(system(command), 0);
    write_file(proc, boot_id, "one\n");
    assert_true(machine_of(proc) == 0);
    write_file(proc, "thread-self/ns/net", "");
    write_file(proc, "thread-self/ns/another", "");
    const uint64_t machine = machine_of(proc);
    assert_true(machine != 0 && machine == machine_of(proc));
    write_file(proc, boot_id, "two\n");
    assert_true(machine_of(proc) != machine);
    write_file(proc, boot_id, "one\n");
    assert_true(machine_of(proc) == machine);
    snprintf(command, sizeof command, "mv %s/thread-self/ns/another %s/thread-self/ns/net", proc,
             proc);
    assert_int_equal(system(command), 0);
    assert_true(machine_of(proc) != machine); /* of the same kernel */
    snprintf(command, sizeof command, "rm -r %s", proc);
    assert_int_equal(system(command), 0);
}

/* @param arg a uint64_t: its machine; 0 if it gets no network of its own */
static void *join_another_network(void *arg)
{
    uint64_t *machine = arg;
    *machine = unshare(CLONE_NEWNET) == 0 ? machine_of("/proc") : 0;
    return NULL;
}

static void test_profile_thread_in_another_network_is_on_another_machine(void **state)
{
    pthread_t thread;
    uint64_t machine = 0;
    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, join_another_network, &machine), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    if (machine == 0) {
        print_message("skip: no network namespace of its own for a thread; needs root\n");
        skip();
    }
    assert_true(machine_of("/proc") != 0);
    assert_true(machine_of("/proc") != machine);
}

typedef uint64_t (*hash_fn_t)(const struct horon_profile *profile);

/* @return what a process says of itself that has moved, to another user or namespace; 0 if it may
 * not */
static uint64_t hash_elsewhere(const struct horon_profile *profile, bool (*move)(void),
                               hash_fn_t hash_of)
{
    int ends[2];
    uint64_t hash = 0;
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        hash = move() ? hash_of(profile) : 0;
        _exit(write(ends[1], &hash, sizeof hash) != sizeof hash);
    }
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(read(ends[0], &hash, sizeof hash), sizeof hash);
    close(ends[0]);
    close(ends[1]);
    return hash;
}

static uint64_t host_of(const struct horon_profile *profile)
{
    struct horon_profile copy = *profile;
    horon_profile_find_host(&copy, "/proc");
    return copy.host;
}

static uint64_t host_elsewhere(const struct horon_profile *profile, bool (*move)(void))
{
    return hash_elsewhere(profile, move, host_of);
}

static bool stay(void)
{
    return true;
}

static bool become_another_user(void)
{
    return setuid(65534) == 0;
}

static bool enter_namespace(void)
{
    return unshare(CLONE_NEWUSER) == 0;
}

static void test_profile_another_user_shares_no_memory(void **state)
{
    struct horon_profile profile;
    bool (*const moves[])(void) = {become_another_user, enter_namespace};
    int tried = 0;
    (void)state;
    fill(&profile);
    const uint64_t host = host_of(&profile);
    assert_true(host != 0 && host != profile.machine);
    assert_true(host_elsewhere(&profile, stay) == host);
    for (size_t i = 0; i < sizeof moves / sizeof moves[0]; i++) {
        const uint64_t other = host_elsewhere(&profile, moves[i]);
        tried += other != 0;
        assert_true(other != host);
    }
    profile.machine = 0;
    assert_true(host_of(&profile) == 0); /* nothing known is not the same */
    if (tried == 0) {
        print_message("skip: neither another user nor a namespace can be had; needs root\n");
        skip();
    }
}

/* ---- which ranks may read the memory of others ---- */

static uint64_t readers_of(const struct horon_profile *profile)
{
    struct horon_profile copy = *profile;
    horon_profile_find_host(&copy, "/proc");
    return copy.readers;
}

static bool become_unreadable(void)
{
    return prctl(PR_SET_DUMPABLE, 0) == 0;
}

/* As a container's profile does where the kernel is old. */
static bool lose_the_call(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static void test_profile_of_an_unreadable_process_has_no_readers(void **state)
{
    struct horon_profile profile;
    (void)state;
    fill(&profile);
    if (readers_of(&profile) == 0) {
        print_message("skip: the system lets nobody read another's memory\n");
        skip();
    }
    assert_true(hash_elsewhere(&profile, stay, readers_of) == readers_of(&profile));
    assert_true(hash_elsewhere(&profile, become_unreadable, readers_of) == 0);
    assert_true(hash_elsewhere(&profile, lose_the_call, readers_of) == 0);
    profile.machine = 0;
    assert_true(readers_of(&profile) == 0);
}

/* Of all that /proc says. @param scope, status NULL: there is no such file */
static uint64_t readers_with(const char *proc, const char *scope, const char *status)
{
    struct horon_profile profile = {.machine = 7};
    char command[256];
    snprintf(command, sizeof command, "rm -f %s/sys/kernel/yama/ptrace_scope %s/self/status", proc,
             proc);
    assert_int_equal(system(command), 0);
    if (scope)
        write_file(proc, "sys/kernel/yama/ptrace_scope", scope);
    if (status)
        write_file(proc, "self/status", status);
    horon_profile_find_host(&profile, proc);
    assert_true(profile.host != 0);
    return profile.readers;
}

static void test_profile_readers_are_of_one_namespace_and_allowed_to(void **state)
{
    char proc[] = "/tmp/horon-test-XXXXXX", command[256];
    static const char may[] = "Name:\tx\nCapEff:\t0000000000080000\nCapBnd:\t0\n",
                      may_not[] = "CapEff:\tfffffffffff7ffff\n";
    const struct horon_profile profile = {.machine = 7};
    (void)state;
    if (readers_of(&profile) == 0) {
        print_message("skip: the system lets nobody read another's memory\n");
        skip();
    }
    assert_non_null(mkdtemp(proc));
    snprintf(command, sizeof command, "mkdir -p %s/sys/kernel/yama %s/self %s/thread-self/ns", proc,
             proc, proc);
    assert_int_equal(system(command), 0);
    write_file(proc, "thread-self/ns/user", "");
    assert_true(readers_with(proc, NULL, may) == 0); /* no pid namespace is known */
    write_file(proc, "thread-self/ns/pid", "");
    write_file(proc, "thread-self/ns/another", "");
    const uint64_t readers = readers_with(proc, NULL, NULL);
    assert_true(readers != 0);
    assert_true(readers_with(proc, "0\n", may_not) == readers);
    assert_true(readers_with(proc, "1\n", may) == readers);
    assert_true(readers_with(proc, "2\n", may) == readers);
    assert_true(readers_with(proc, "3\n", may) == 0);
    assert_true(readers_with(proc, "1\n", may_not) == 0);
    assert_true(readers_with(proc, "1\n", "Name:\tx\n") == 0);
    assert_true(readers_with(proc, "1\n", NULL) == 0);
    snprintf(command, sizeof command, "mv %s/thread-self/ns/another %s/thread-self/ns/pid", proc,
             proc);
    assert_int_equal(system(command), 0);
    const uint64_t others = readers_with(proc, NULL, NULL);
    assert_true(others != 0 && others != readers);
    snprintf(command, sizeof command, "rm -r %s", proc);
    assert_int_equal(system(command), 0);
}

static void test_profile_settings_that_differ_are_named(void **state)
{
    struct horon_profile a, b;
    struct horon_error error = {0};
    char theirs[HORON_PROFILE_SETTINGS_BYTES];
    (void)state;
    fill(&a);
    b = a;
    b.settings = strcpy(theirs, a.settings);
    strcpy(a.name, "host-a");
    strcpy(b.name, "host-b");
    assert_int_equal(horon_profile_check_settings(&a, &b, 1, &error), HORON_OK);
    strcat(theirs, "LATER=1\n"); /* a row that the other one does not know */
    assert_int_equal(horon_profile_check_settings(&a, &b, 1, &error), HORON_ERR_CONFIG);
    assert_non_null(strstr(error.text, "different releases"));
    char *digit = strstr(theirs, "FUSION_BYTES=6");
    assert_non_null(digit);
    digit[strlen("FUSION_BYTES=")] = '7';
    assert_int_equal(horon_profile_check_settings(&a, &b, 1, &error), HORON_ERR_CONFIG);
    assert_non_null(strstr(error.text, "HORON_FUSION_BYTES=67108864 on rank 0 (host-a)"));
    assert_non_null(strstr(error.text, "HORON_FUSION_BYTES=77108864 on rank 1 (host-b)"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_profile_survives_the_way),
        cmocka_unit_test(test_profile_texts_of_others_are_cleaned),
        cmocka_unit_test(test_profile_never_holds_the_key),
        cmocka_unit_test(test_profile_other_kernel_or_network_is_another_machine),
        cmocka_unit_test(test_profile_thread_in_another_network_is_on_another_machine),
        cmocka_unit_test(test_profile_another_user_shares_no_memory),
        cmocka_unit_test(test_profile_of_an_unreadable_process_has_no_readers),
        cmocka_unit_test(test_profile_readers_are_of_one_namespace_and_allowed_to),
        cmocka_unit_test(test_profile_settings_that_differ_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
