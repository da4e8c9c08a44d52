/* SPDX-License-Identifier: Apache-2.0 */
/* Gloo's stores in files and in memory, their keys, and what bounds a call. */
#undef NDEBUG
#include "boot/gloo/store.h"

#include "alloc.h"
#include "boot/gloo/dial.h"
#include "clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define GUESTS_MAX 16

static struct horon_error error;
static const struct horon_gloo_wait no_limit = {.deadline_ns = UINT64_MAX};

static int make_directory(void **state)
{
    static char path[64];
    strcpy(path, "/tmp/horon-test-XXXXXX");
    assert_non_null(mkdtemp(path));
    *state = path;
    return 0;
}

static int remove_directory(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", (const char *)*state);
    return system(command);
}

static struct horon_gloo_store *opened(const char *directory, const char *prefix)
{
    char url[128];
    struct horon_gloo_store *store = NULL;
    snprintf(url, sizeof url, "file:%s", directory);
    const struct horon_gloo_store_options options = {
        .url = url, .prefix = prefix, .size = 2, .wait = no_limit};
    assert_int_equal(horon_gloo_store_open(&options, &store, &error), HORON_OK);
    return store;
}

static horon_status_t put(struct horon_gloo_store *store, const char *key, const char *value)
{
    return horon_gloo_store_set(store, key, value, strlen(value), &no_limit, &error);
}

static void expect(struct horon_gloo_store *store, const char *key, const char *wanted)
{
    struct horon_gloo_value value;
    assert_int_equal(horon_gloo_store_get(store, key, &value, &no_limit, &error), HORON_OK);
    assert_int_equal(value.count, strlen(wanted));
    assert_memory_equal(value.bytes, wanted, value.count);
    horon_free(value.bytes);
}

static horon_status_t get_status(struct horon_gloo_store *store, const char *key)
{
    struct horon_gloo_value value;
    return horon_gloo_store_get(store, key, &value, &no_limit, &error);
}

static void test_stores_a_key_is_hashed_as_libstdcxx_does(void **state)
{
    static const struct {
        const char *key;
        uint64_t hash;
    } known[] = {
        {"0", UINT64_C(2297668033614959926)},
        {"1", UINT64_C(10159970873491820195)},
        {"rank_0", UINT64_C(7977090932840177126)},
        {"", UINT64_C(6142509188972423790)},
        {"12345678", UINT64_C(10113836418918046885)},
        {"default_pg/0//cpu//0/1", UINT64_C(1944858145108064909)},
    };
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        assert_int_equal(horon_gloo_file_hash(known[i].key, strlen(known[i].key)), known[i].hash);
}

static void test_stores_a_file_has_a_value_under_its_hash(void **state)
{
    char path[128], text[16];
    struct horon_gloo_store *store = opened(*state, "");
    assert_int_equal(get_status(store, "0"), HORON_AGAIN);
    assert_int_equal(put(store, "0", "value"), HORON_OK);
    expect(store, "0", "value");
    snprintf(path, sizeof path, "%s/2297668033614959926", (const char *)*state);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    assert_string_equal(text, "value");
    horon_gloo_store_destroy(store);
}

static void test_stores_a_file_keeps_what_an_earlier_job_set(void **state)
{
    struct horon_gloo_store *store = opened(*state, "");
    assert_int_equal(put(store, "0", "old"), HORON_OK);
    assert_int_equal(put(store, "0", "new"), HORON_ERR_INVALID);
    assert_non_null(strstr(error.text, "another job"));
    expect(store, "0", "old");
    assert_int_equal(put(store, "1", ""), HORON_OK);
    expect(store, "1", "");
    horon_gloo_store_destroy(store);
}

/* As long as files of this process may have @p bytes, which is as a disk that gets full. */
static horon_status_t put_below(rlim_t bytes, struct horon_gloo_store *store, const char *key,
                                const char *value)
{
    struct rlimit before, limit;
    void (*const handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = (struct rlimit){.rlim_cur = bytes, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    const horon_status_t status = put(store, key, value);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    return status;
}

static int count_entries(const char *directory)
{
    int count = 0;
    DIR *entries = opendir(directory);
    assert_non_null(entries);
    while (readdir(entries))
        count++;
    closedir(entries);
    return count - 2; /* itself and its parent */
}

static void test_stores_a_file_of_a_full_disk_leaves_nothing_behind(void **state)
{
    struct horon_gloo_store *store = opened(*state, "");
    assert_int_equal(put_below(2, store, "0", "value"), HORON_ERR_SYSTEM);
    assert_non_null(strstr(error.text, "key '0' cannot be written"));
    assert_int_equal(count_entries(*state), 0);
    assert_int_equal(put(store, "0", "value"), HORON_OK);
    expect(store, "0", "value");
    assert_int_equal(count_entries(*state), 1);
    horon_gloo_store_destroy(store);
}

static void test_stores_what_is_no_value_is_refused(void **state)
{
    char path[128];
    struct horon_gloo_store *store = opened(*state, "");
    snprintf(path, sizeof path, "%s/2297668033614959926", (const char *)*state);
    assert_int_equal(mkfifo(path, 0600), 0); /* which open() could wait for */
    assert_int_equal(get_status(store, "0"), HORON_ERR_PROTO);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    assert_int_equal(get_status(store, "0"), HORON_ERR_SYSTEM);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(close(creat(path, 0600)), 0);
    assert_int_equal(truncate(path, HORON_GLOO_VALUE_BYTES_MAX + 1), 0);
    assert_int_equal(get_status(store, "0"), HORON_ERR_PROTO);
    horon_gloo_store_destroy(store);
}

static void test_stores_prefixes_stand_before_keys(void **state)
{
    struct horon_gloo_store *plain = opened(*state, ""), *nested = opened(*state, "default_pg/0/");
    assert_int_equal(horon_gloo_store_nest(nested, "", &error), HORON_OK);
    assert_int_equal(horon_gloo_store_nest(nested, "cpu/", &error), HORON_OK);
    assert_int_equal(horon_gloo_store_nest(nested, "0", &error), HORON_OK);
    assert_string_equal(nested->prefix, "default_pg/0//cpu//0/");
    assert_int_equal(put(nested, "1", "here"), HORON_OK);
    expect(plain, "default_pg/0//cpu//0/1", "here");
    assert_int_equal(get_status(plain, "1"), HORON_AGAIN);
    horon_gloo_store_destroy(nested);
    horon_gloo_store_destroy(plain);
}

static void test_stores_a_prefix_that_is_too_long_is_refused(void **state)
{
    char prefix[HORON_GLOO_KEY_BYTES];
    struct horon_gloo_store *store = opened(*state, "");
    memset(prefix, 'p', sizeof prefix);
    prefix[HORON_GLOO_KEY_BYTES - HORON_GLOO_KEY_REST_BYTES] = 0;
    assert_int_equal(horon_gloo_store_nest(store, prefix, &error), HORON_ERR_CONFIG);
    assert_non_null(strstr(error.text, "has 448 bytes, and may have 447: pppp"));
    prefix[HORON_GLOO_KEY_BYTES - HORON_GLOO_KEY_REST_BYTES - 1] = 0;
    assert_int_equal(horon_gloo_store_nest(store, prefix, &error), HORON_OK);
    assert_int_equal(put(store, "rank_29999", "x"), HORON_OK);
    expect(store, "rank_29999", "x");
    memset(prefix, 'k', sizeof prefix - 1);
    prefix[sizeof prefix - 1] = 0;
    assert_int_equal(put(store, prefix, "x"), HORON_ERR_INVALID);
    horon_gloo_store_destroy(store);
}

static void test_stores_a_url_of_no_store_is_refused(void **state)
{
    struct horon_gloo_store *store = NULL;
    struct horon_gloo_store_options options = {
        .url = "redis://h:1", .prefix = "", .size = 2, .wait = no_limit};
    (void)state;
    assert_int_equal(horon_gloo_store_open(&options, &store, &error), HORON_ERR_CONFIG);
    assert_non_null(strstr(error.text, "file:"));
    options.url = "file:/tmp/horon-test-that-is-not-there";
    assert_int_equal(horon_gloo_store_open(&options, &store, &error), HORON_ERR_SYSTEM);
    assert_null(store);
}

static void test_stores_in_memory_are_one_for_all_threads(void **state)
{
    struct horon_gloo_hash *hash = horon_gloo_hash_create();
    struct horon_gloo_store *a = horon_gloo_hash_store(hash), *b = horon_gloo_hash_store(hash);
    (void)state;
    assert_non_null(a);
    assert_non_null(b);
    assert_int_equal(horon_gloo_store_nest(b, "b", &error), HORON_OK);
    assert_int_equal(get_status(a, "b/1"), HORON_AGAIN);
    assert_int_equal(put(b, "1", "one"), HORON_OK);
    assert_int_equal(put(a, "1", "other"), HORON_OK);
    expect(a, "b/1", "one");
    assert_int_equal(put(b, "1", "anew"), HORON_OK);
    expect(a, "b/1", "anew");
    horon_gloo_store_destroy(a);
    horon_gloo_store_destroy(b);
    horon_gloo_hash_destroy(hash);
    horon_gloo_hash_destroy(NULL);
    horon_gloo_store_destroy(NULL);
}

static horon_status_t open_hash(const char *url, const char *prefix, int rank, int size,
                                struct horon_gloo_store **store_out)
{
    const struct horon_gloo_store_options options = {
        .url = url, .prefix = prefix, .rank = rank, .size = size, .wait = no_limit};
    return horon_gloo_store_open(&options, store_out, &error);
}

static struct horon_gloo_store *opened_hash(const char *url, const char *prefix, int rank, int size)
{
    struct horon_gloo_store *store = NULL;
    assert_int_equal(open_hash(url, prefix, rank, size, &store), HORON_OK);
    return store;
}

/* Twice, as nothing stays behind the last store. */
static void test_stores_in_memory_are_found_by_name_and_prefix(void **state)
{
    (void)state;
    for (int round = 0; round < 2; round++) {
        struct horon_gloo_store *a = opened_hash("hash:a", "", 0, 2),
                                *b = opened_hash("hash:b", "", 0, 1),
                                *of_prefix = opened_hash("hash:a", "p", 0, 3),
                                *other = opened_hash("hash:a", "", 1, 2);
        assert_int_equal(get_status(other, "1"), HORON_AGAIN);
        assert_int_equal(put(a, "1", "one"), HORON_OK);
        expect(other, "1", "one");
        assert_int_equal(get_status(b, "1"), HORON_AGAIN);
        assert_int_equal(get_status(of_prefix, "1"), HORON_AGAIN);
        horon_gloo_store_destroy(a);
        expect(other, "1", "one");
        horon_gloo_store_destroy(round ? of_prefix : b);
        horon_gloo_store_destroy(round ? b : of_prefix);
        horon_gloo_store_destroy(other);
    }
}

static void expect_refused(const char *url, int rank, int size, const char *why)
{
    struct horon_gloo_store *none = NULL;
    assert_int_equal(open_hash(url, "", rank, size, &none), HORON_ERR_CONFIG);
    assert_null(none);
    assert_non_null(strstr(error.text, why));
}

static void test_stores_in_memory_are_of_one_job(void **state)
{
    (void)state;
    struct horon_gloo_store *first = opened_hash("hash:job", "", 0, 2),
                            *second = opened_hash("hash:job", "", 1, 2);
    expect_refused("hash:", 0, 2, "has no name");
    expect_refused("hash:job", 2, 3, "of a job of 2 ranks, and rank 2 has come for one of 3");
    expect_refused("hash:job", 1, 2, "rank 1 has been in the Gloo store hash:job");
    horon_gloo_store_destroy(second);
    expect_refused("hash:job", 1, 2, "another job needs another name");
    horon_gloo_store_destroy(first);
    horon_gloo_store_destroy(opened_hash("hash:job", "", 1, 3));
}

/* The child has no rank of the parent's, and its own are not seen there. It may end what it has
 * inherited, which does nothing to the parent's. */
static void test_stores_in_memory_stay_the_parents_in_a_fork(void **state)
{
    int status = -1;
    (void)state;
    struct horon_gloo_store *ours = opened_hash("hash:fork", "", 0, 2);
    assert_int_equal(put(ours, "1", "one"), HORON_OK);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct horon_gloo_store *own = NULL;
        const bool is_own = open_hash("hash:fork", "", 0, 3, &own) == HORON_OK &&
                            get_status(own, "1") == HORON_AGAIN;
        horon_gloo_store_destroy(ours);
        horon_gloo_store_destroy(own);
        _exit(!is_own);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    expect(ours, "1", "one");
    horon_gloo_store_destroy(ours);
}

static struct horon_gloo_store *opened_c10d(const char *directory, int size)
{
    char url[128];
    struct horon_gloo_store *store = NULL;
    snprintf(url, sizeof url, "c10d-file:%s/store", directory);
    const struct horon_gloo_store_options options = {
        .url = url, .prefix = "0", .size = size, .wait = no_limit};
    assert_int_equal(horon_gloo_store_open(&options, &store, &error), HORON_OK);
    return store;
}

static void test_stores_torch_has_one_file_of_records(void **state)
{
    static const char records[] = "\x09\0\0\0refcount/\x01\0\0\0"
                                  "1"
                                  "\x04\0\0\0/0/1\x03\0\0\0one";
    char path[128], bytes[256];
    struct horon_gloo_store *store = opened_c10d(*state, 2);
    snprintf(path, sizeof path, "%s/store", (const char *)*state);
    assert_int_equal(get_status(store, "1"), HORON_AGAIN);
    assert_int_equal(put(store, "1", "one"), HORON_OK);
    FILE *file = fopen(path, "r+");
    assert_int_equal(fread(bytes, 1, sizeof bytes, file), sizeof records - 1);
    assert_memory_equal(bytes, records, sizeof records - 1);
    expect(store, "1", "one");
    assert_int_equal(put(store, "1", "anew"), HORON_OK);
    expect(store, "1", "anew");
    fseek(file, 0, SEEK_END); /* torch takes it away; then one that dies while it writes */
    fwrite("\x05\0\0\0-/0/1\0\0\0\0"
           "\x04\0\0\0/0/1\xff",
           1, 22, file);
    fclose(file);
    assert_int_equal(get_status(store, "1"), HORON_AGAIN);
    horon_gloo_store_destroy(store);
}

/* A rank that comes later would refuse the file. */
static void test_stores_half_a_record_of_torchs_is_taken_back(void **state)
{
    struct horon_gloo_store *a = opened_c10d(*state, 2);
    assert_int_equal(put(a, "1", "one"), HORON_OK); /* 33 bytes with the count of ranks */
    assert_int_equal(put_below(45, a, "2", "two"), HORON_ERR_SYSTEM);
    assert_non_null(strstr(error.text, "write"));
    struct horon_gloo_store *b = opened_c10d(*state, 2);
    expect(b, "1", "one");
    assert_int_equal(get_status(b, "2"), HORON_AGAIN);
    assert_int_equal(put(b, "2", "two"), HORON_OK);
    expect(a, "2", "two");
    horon_gloo_store_destroy(a);
    horon_gloo_store_destroy(b);
}

/* The path may be a wrong one, or one where a process died while it wrote: nothing is added there,
 * neither by a rank that comes nor by one that goes. */
static void test_stores_a_file_that_is_no_store_of_torchs_stays_as_it_is(void **state)
{
    static const struct {
        const char *bytes;
        size_t count;
    } cases[] = {{"root:x:0:0:root:/root:/bin/bash\n", 32},
                 {"x", 1},
                 {"\0\0\0\0\0\0\0\0", 8}, /* an empty key and its value */
                 {"\x09\0\0\0refcount/\x01\0\0\0"
                  "1"
                  "\x04\0\0\0/0/1\x03\0\0\0on",
                  32}};
    char path[128], url[160], bytes[64];
    snprintf(path, sizeof path, "%s/foreign", (const char *)*state);
    snprintf(url, sizeof url, "c10d-file:%s", path);
    const struct horon_gloo_store_options options = {
        .url = url, .prefix = "", .size = 2, .wait = no_limit};
    for (size_t i = 0; i < 2 * sizeof cases / sizeof cases[0]; i++) {
        struct horon_gloo_store *store = NULL;
        const bool late = i % 2; /* after a rank has come */
        if (late)
            assert_int_equal(horon_gloo_store_open(&options, &store, &error), HORON_OK);
        FILE *file = fopen(path, "w+");
        assert_non_null(file);
        assert_int_equal(fwrite(cases[i / 2].bytes, 1, cases[i / 2].count, file),
                         cases[i / 2].count);
        assert_int_equal(fflush(file), 0);
        if (!late) {
            assert_int_equal(horon_gloo_store_open(&options, &store, &error), HORON_ERR_PROTO);
            assert_non_null(strstr(error.text, path));
            assert_non_null(strstr(error.text, "is no store of torch's, or was cut"));
        }
        horon_gloo_store_destroy(store);
        rewind(file);
        assert_int_equal(fread(bytes, 1, sizeof bytes, file), cases[i / 2].count);
        assert_memory_equal(bytes, cases[i / 2].bytes, cases[i / 2].count);
        fclose(file);
        assert_int_equal(unlink(path), 0);
    }
}

/* Anybody may write the file. */
static void test_stores_a_count_of_torchs_that_is_none_is_refused(void **state)
{
    static const struct {
        const char *digits;
        horon_status_t status;
    } cases[] = {{"9223372036854775806", HORON_OK},
                 {"9223372036854775807", HORON_ERR_PROTO},
                 {"99999999999999999999", HORON_ERR_PROTO},
                 {"-9223372036854775808", HORON_OK},
                 {"one", HORON_OK}};
    char path[128], url[160];
    snprintf(path, sizeof path, "%s/counts", (const char *)*state);
    snprintf(url, sizeof url, "c10d-file:%s", path);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct horon_gloo_store_options options = {
            .url = url, .prefix = "", .size = 2, .wait = no_limit};
        struct horon_gloo_store *store = NULL;
        const uint8_t digits = (uint8_t)strlen(cases[i].digits);
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fprintf(file, "%c%c%c%crefcount/%c%c%c%c%s", 9, 0, 0, 0, digits, 0, 0, 0, cases[i].digits);
        fclose(file);
        assert_int_equal(horon_gloo_store_open(&options, &store, &error), cases[i].status);
        if (!store)
            assert_non_null(strstr(error.text, "'refcount/', which is no count"));
        horon_gloo_store_destroy(store);
    }
    unlink(path);
}

static void test_stores_the_last_of_torchs_ranks_removes_its_file(void **state)
{
    char path[128];
    struct horon_gloo_store *a = opened_c10d(*state, 2), *b = opened_c10d(*state, 2);
    snprintf(path, sizeof path, "%s/store", (const char *)*state);
    assert_int_equal(put(a, "1", "one"), HORON_OK);
    expect(b, "1", "one");
    horon_gloo_store_destroy(a);
    assert_int_equal(access(path, F_OK), 0);
    horon_gloo_store_destroy(b);
    assert_int_equal(access(path, F_OK), -1);
    a = opened_c10d(*state, 2); /* the same path, another job */
    assert_int_equal(get_status(a, "1"), HORON_AGAIN);
    horon_gloo_store_destroy(a);
}

static void test_stores_a_lock_is_not_waited_for_for_ever(void **state)
{
    char path[128];
    struct horon_gloo_value value;
    const struct horon_gloo_wait none = {.deadline_ns = 1};
    struct horon_gloo_store *store = opened_c10d(*state, 9);
    snprintf(path, sizeof path, "%s/store", (const char *)*state);
    int fd = open(path, O_RDWR);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_int_equal(horon_gloo_store_get(store, "1", &value, &none, &error), HORON_ERR_TIMEOUT);
    assert_non_null(strstr(error.text, "stays locked"));
    close(fd);
    horon_gloo_store_destroy(store);
}

static int no(void *arg)
{
    return ++*(int *)arg == 3;
}

static void test_stores_a_wait_ends_for_its_reason(void **state)
{
    int asked = 0, ends[2];
    struct horon_gloo_wait wait = {.deadline_ns = horon_clock_ns()};
    (void)state;
    assert_int_equal(pipe(ends), 0);
    struct pollfd fd = {.fd = ends[0], .events = POLLIN};
    assert_int_equal(horon_gloo_wait_for(&wait, &fd, 1, -1, &error), HORON_ERR_TIMEOUT);
    wait.deadline_ns = UINT64_MAX;
    assert_int_equal(horon_gloo_wait_for(&wait, &fd, 1, 0, &error), HORON_AGAIN);
    assert_int_equal(horon_gloo_wait_for(&wait, NULL, 0, 1, &error), HORON_AGAIN);
    wait.interrupted = no;
    wait.arg = &asked;
    assert_int_equal(horon_gloo_wait_for(&wait, &fd, 1, -1, &error), HORON_ERR_CANCELLED);
    assert_int_equal(asked, 3);
    assert_int_equal(write(ends[1], "x", 1), 1);
    assert_int_equal(horon_gloo_wait_for(&wait, &fd, 1, -1, &error), HORON_OK);
    close(ends[0]);
    close(ends[1]);
}

/* A listener that takes nobody any more, as one behind a wall does not. */
static void fill(const struct horon_address *at, int listener, int *guests, int *count)
{
    bool came = true;
    assert_int_equal(listen(listener, 0), 0);
    while (came) {
        struct pollfd fd = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0),
                            .events = POLLOUT};
        assert_true(*count < GUESTS_MAX);
        guests[(*count)++] = fd.fd;
        (void)connect(fd.fd, &at->any, at->bytes);
        came = poll(&fd, 1, 0) == 1;
    }
}

/* A host with an address that no way leads to. */
static void test_stores_an_address_that_is_silent_is_passed_over(void **state)
{
    struct horon_addresses all = {.count = 2};
    struct horon_gloo_wait wait = {.deadline_ns = horon_clock_deadline(horon_clock_ns(), 20000)};
    int guests[GUESTS_MAX], count = 0, fd = -1, listeners[2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_true(horon_address_parse("127.0.0.1", 0, &all.items[i]));
        listeners[i] = horon_address_listen(&all.items[i]);
        assert_true(listeners[i] >= 0);
    }
    fill(&all.items[0], listeners[0], guests, &count);
    assert_int_equal(horon_gloo_dial(&all, NULL, &wait, &fd, &error), HORON_OK);
    close(fd);
    while (count > 0)
        close(guests[--count]);
    close(listeners[0]);
    close(listeners[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stores_a_key_is_hashed_as_libstdcxx_does),
        cmocka_unit_test_setup_teardown(test_stores_a_file_has_a_value_under_its_hash,
                                        make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(test_stores_a_file_keeps_what_an_earlier_job_set,
                                        make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(test_stores_a_file_of_a_full_disk_leaves_nothing_behind,
                                        make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(test_stores_what_is_no_value_is_refused, make_directory,
                                        remove_directory),
        cmocka_unit_test_setup_teardown(test_stores_prefixes_stand_before_keys, make_directory,
                                        remove_directory),
        cmocka_unit_test_setup_teardown(test_stores_a_prefix_that_is_too_long_is_refused,
                                        make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(test_stores_torch_has_one_file_of_records, make_directory,
                                        remove_directory),
        cmocka_unit_test_setup_teardown(test_stores_half_a_record_of_torchs_is_taken_back,
                                        make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(
            test_stores_a_file_that_is_no_store_of_torchs_stays_as_it_is, make_directory,
            remove_directory),
        cmocka_unit_test_setup_teardown(test_stores_a_count_of_torchs_that_is_none_is_refused,
                                        make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(test_stores_the_last_of_torchs_ranks_removes_its_file,
                                        make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(test_stores_a_lock_is_not_waited_for_for_ever,
                                        make_directory, remove_directory),
        cmocka_unit_test(test_stores_a_url_of_no_store_is_refused),
        cmocka_unit_test(test_stores_in_memory_are_one_for_all_threads),
        cmocka_unit_test(test_stores_in_memory_are_found_by_name_and_prefix),
        cmocka_unit_test(test_stores_in_memory_are_of_one_job),
        cmocka_unit_test(test_stores_in_memory_stay_the_parents_in_a_fork),
        cmocka_unit_test(test_stores_a_wait_ends_for_its_reason),
        cmocka_unit_test(test_stores_an_address_that_is_silent_is_passed_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
