/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks keep of the job key once they have joined: nothing of its text. All memory that the
 * process can write is searched, that was freed too. The test never has the key in one piece, but
 * for a copy that shows that it would be found.
 */
#undef NDEBUG
#include <horon/horon.h>

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 2, KEY_BYTES = 64, MASK = 0x55, PIECE_BYTES = 1 << 20 };
/* A sanitizer has terabytes, which hold none of ours. */
#define REGION_BYTES_MAX ((size_t)256 << 20)

static char folder[] = "/tmp/horon-test-XXXXXX", key_setting[64], store_setting[64];
static uint8_t masked[KEY_BYTES];

struct rank {
    int number;
    pthread_t thread;
    horon_context_t *ctx;
    horon_status_t status;
    char text[HORON_ERROR_TEXT_BYTES];
};

/* Another process makes it, so that this one has read nothing. */
static void make_key(void)
{
    char command[160];
    assert_non_null(mkdtemp(folder));
    snprintf(key_setting, sizeof key_setting, "JOB_KEY_FILE=%s/key", folder);
    snprintf(store_setting, sizeof store_setting, "STORE=file:%s", folder);
    snprintf(command, sizeof command,
             "umask 077; head -c %d /dev/urandom | od -An -v -tx1 | tr -d ' \\n' > %s/key",
             KEY_BYTES / 2, folder);
    assert_int_equal(system(command), 0);
    const int fd = open(strchr(key_setting, '=') + 1, O_RDONLY | O_CLOEXEC);
    for (int i = 0; i < KEY_BYTES; i++) {
        assert_int_equal(read(fd, &masked[i], 1), 1);
        masked[i] ^= MASK;
    }
    close(fd);
}

static void *join(void *arg)
{
    struct rank *rank = arg;
    horon_options_t options = HORON_OPTIONS_INIT;
    const char *const settings[] = {key_setting, store_setting, NULL};
    options.rank = rank->number;
    options.size = RANKS;
    options.settings = settings;
    rank->status = horon_context_create(&options, &rank->ctx, rank->text, sizeof rank->text);
    return NULL;
}

static bool is_key(const uint8_t *bytes)
{
    for (int i = 0; i < KEY_BYTES; i++)
        if ((bytes[i] ^ MASK) != masked[i])
            return false;
    return true;
}

/* @param piece [PIECE_BYTES] which is not searched itself */
static int count_in_region(int memory, uint64_t from, uint64_t to, uint8_t *piece)
{
    const uint64_t own = (uint64_t)(uintptr_t)piece;
    int found = 0;
    if (to - from > REGION_BYTES_MAX || (from <= own && own < to))
        return 0;
    for (uint64_t at = from; at + KEY_BYTES <= to; at += PIECE_BYTES - KEY_BYTES) {
        const size_t wanted = to - at < PIECE_BYTES ? (size_t)(to - at) : PIECE_BYTES;
        const ssize_t got = pread(memory, piece, wanted, (off_t)at);
        for (ssize_t i = 0; i + KEY_BYTES <= got; i++)
            found += is_key(piece + i);
    }
    return found;
}

static int count_keys(void)
{
    /* shared, so that the kernel joins it to no other */
    uint8_t *piece =
        mmap(NULL, PIECE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    FILE *maps = fopen("/proc/self/maps", "re");
    unsigned long long from, to;
    char line[512], rights[8];
    int found = 0, regions = 0;
    assert_true(piece != MAP_FAILED && memory >= 0 && maps);
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%llx-%llx %7s", &from, &to, rights) != 3 || rights[1] != 'w')
            continue;
        found += count_in_region(memory, from, to, piece);
        regions++;
    }
    assert_true(regions > 3);
    fclose(maps);
    close(memory);
    munmap(piece, PIECE_BYTES);
    return found;
}

static void test_secret_leaves_the_memory_of_ranks_that_have_joined(void **state)
{
    struct rank ranks[RANKS] = {{0}};
    char command[64];
    volatile char *copy = malloc(KEY_BYTES); /* which is really written */
    (void)state;
    make_key();
    for (int i = 0; i < RANKS; i++) {
        ranks[i].number = i;
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, join, &ranks[i]), 0);
    }
    for (int i = 0; i < RANKS; i++) {
        pthread_join(ranks[i].thread, NULL);
        if (ranks[i].status != HORON_OK)
            fail_msg("rank %d: %s", i, ranks[i].text);
    }
    assert_int_equal(count_keys(), 0);
    for (int i = 0; i < KEY_BYTES; i++)
        copy[i] = (char)(masked[i] ^ MASK);
    assert_int_equal(count_keys(), 1);
    free((void *)copy);
    for (int i = 0; i < RANKS; i++)
        horon_context_destroy(ranks[i].ctx);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_secret_leaves_the_memory_of_ranks_that_have_joined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
