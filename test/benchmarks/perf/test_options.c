/* SPDX-License-Identifier: Apache-2.0 */
/* horon-perf's command line: nccl-tests' letters, sizes and steps, and what is refused. */
#undef NDEBUG
#include "options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define WORDS_MAX 32

struct parsed {
    struct perf_options options;
    char why[PERF_TEXT_BYTES];
    char copy[512];
    char *argv[WORDS_MAX];
    enum perf_parse result;
};

/* Splits @p text at single spaces. */
static void parse(struct parsed *parsed, const char *text)
{
    int count = 0;
    assert_true(strlen(text) < sizeof parsed->copy);
    memset(parsed, 0, sizeof *parsed);
    memcpy(parsed->copy, text, strlen(text));
    parsed->argv[count++] = parsed->copy + sizeof parsed->copy - 1;
    for (char *word = strtok(parsed->copy, " "); word != NULL; word = strtok(NULL, " ")) {
        assert_true(count + 1 < WORDS_MAX);
        parsed->argv[count++] = word;
    }
    parsed->result = perf_options_parse(count, parsed->argv, &parsed->options, parsed->why);
}

static void test_options_of_nccl_tests_are_understood(void **state)
{
    (void)state;
    struct parsed p;
    parse(&p, "allreduce -b 8 -e 256M -f 4 -d float -o sum -n 21 -w 6 -c 2 --json out.json");
    assert_int_equal(p.result, PERF_PARSE_RUN);
    assert_int_equal(p.options.verb, HORON_ALLREDUCE);
    assert_int_equal(p.options.begin_bytes, 8);
    assert_int_equal(p.options.end_bytes, 256 << 20);
    assert_int_equal(p.options.factor, 4);
    assert_int_equal(p.options.dtype, HORON_FLOAT32);
    assert_int_equal(p.options.redop, HORON_SUM);
    assert_int_equal(p.options.iterations, 21);
    assert_int_equal(p.options.warmup, 6);
    assert_int_equal(p.options.checks, 2);
    assert_string_equal(p.options.json_path, "out.json");
    assert_false(p.options.named);
    assert_int_equal(p.options.peer, PERF_PEER_HORON);
    assert_int_equal(p.options.places, PERF_BOTH_PLACES);
}

static void test_options_first_size_without_a_flag_holds_an_element(void **state)
{
    static const struct {
        const char *words;
        uint64_t bytes;
    } rows[] = {{"allreduce", 8},
                {"broadcast -d complex128", 16},
                {"allgather", 1024},
                {"allgather -e 4K", 1024}};
    (void)state;
    struct parsed p;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        parse(&p, rows[i].words);
        assert_int_equal(p.result, PERF_PARSE_RUN);
        assert_int_equal(p.options.begin_bytes, rows[i].bytes);
    }
}

static void test_options_long_words_are_understood(void **state)
{
    (void)state;
    struct parsed p;
    parse(&p,
          "--minbytes 4K broadcast --root 3 --datatype bf16 --named --persistent --tensors 1000 "
          "--place in --pin");
    assert_int_equal(p.result, PERF_PARSE_RUN);
    assert_int_equal(p.options.verb, HORON_BROADCAST);
    assert_int_equal(p.options.begin_bytes, 4096);
    assert_int_equal(p.options.end_bytes, 4096);
    assert_int_equal(p.options.root, 3);
    assert_int_equal(p.options.dtype, HORON_BFLOAT16);
    assert_true(p.options.named);
    assert_true(p.options.persistent);
    assert_false(p.options.group);
    assert_true(p.options.pin);
    assert_int_equal(p.options.tensors, 1000);
    assert_int_equal(p.options.places, PERF_IN_PLACE);
    parse(&p, "allreduce --tensors 3 --group");
    assert_int_equal(p.result, PERF_PARSE_RUN);
    assert_true(p.options.group);
}

static void test_options_slips_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *line, *in_text;
    } slips[] = {
        {"", "one verb"},
        {"allreduced", "\"allreduced\""},
        {"allreduce broadcast", "one verb"},
        {"allreduce -b 8x", "--minbytes: \"8x\""},
        {"allreduce -b -8", "--minbytes"},
        {"allreduce -b 99999999999G", "--minbytes"},
        {"allreduce -n 0", "--iters"},
        {"allreduce -n 5x", "\"5x\""},
        {"allreduce -f 1", "--stepfactor"},
        {"allreduce -d floaty", "\"floaty\""},
        {"allreduce -o xor", "sum avg min max prod band bor bxor"},
        {"allreduce --place up", "in out both"},
        {"allreduce --peer gloo", "horon mpi"},
        {"broadcast -r -1", "--root: \"-1\" is none of: 0 1 2 ..."},
        {"allreduce --frob", "--frob"},
        {"allreduce -z", "-z"},
        {"allreduce -b", "missing"},
        {"allreduce -b 8 -e 4", "below"},
        {"allreduce -b 0 -e 8", "--stepbytes"},
        {"allreduce -b 3", "below one element of this type: give a larger --minbytes"},
        {"broadcast -b 0 -e 16 -i 7 -d double", "below one element"},
        {"allreduce -d complex64", "only moves"},
        {"allreduce -d bool -o avg", "bool no average"},
        {"allreduce -d half -o bxor", "floats no bitwise"},
        {"allreduce --peer mpi --named", "horon's own"},
        {"barrier --tensors 2", "barrier"},
        {"allreduce --peer mpi --sets 2", "process sets"},
        {"allreduce --peer mpi --group", "horon's own"},
        {"allreduce --group --persistent", "one by one"},
        {"sendrecv --group", "messages"},
        {"barrier --group", "barriers"},
        {"allreduce --sets 0", "1 to 1000"},
    };
    for (size_t i = 0; i < sizeof slips / sizeof slips[0]; i++) {
        struct parsed p;
        parse(&p, slips[i].line);
        if (p.result != PERF_PARSE_WRONG || strstr(p.why, slips[i].in_text) == NULL) {
            fail_msg("\"%s\" gave %d, \"%s\"", slips[i].line, (int)p.result, p.why);
        }
    }
}

static void test_options_help_lists_every_flag(void **state)
{
    (void)state;
    struct parsed p;
    char text[8192] = "";
    parse(&p, "allreduce --help");
    assert_int_equal(p.result, PERF_PARSE_HELP);
    FILE *const to = fmemopen(text, sizeof text, "w");
    assert_non_null(to);
    perf_options_help(to);
    fclose(to);
    static const char *const words[] = {"-b, --minbytes", "-c, --check", "--named",
                                        "--persistent",   "--tensors",   "--group",
                                        "--peer",         "--json",      "--pin"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        assert_non_null(strstr(text, words[i]));
    }
}

static size_t sizes_of(const char *line, uint64_t *sizes, size_t room)
{
    struct parsed p;
    parse(&p, line);
    assert_int_equal(p.result, PERF_PARSE_RUN);
    size_t n = 0;
    for (uint64_t at = p.options.begin_bytes; n == 0 || at != 0;
         at = perf_size_next(&p.options, at)) {
        assert_true(n < room);
        sizes[n++] = at;
    }
    return n;
}

static void test_options_sizes_end_at_the_last(void **state)
{
    (void)state;
    uint64_t sizes[64];
    assert_int_equal(sizes_of("allreduce -b 8 -e 256M -f 4", sizes, 64), 13);
    assert_int_equal(sizes[12], 128 << 20);
    assert_int_equal(sizes_of("allreduce -b 8 -e 8", sizes, 64), 1);
    assert_int_equal(sizes_of("allreduce -b 0 -e 12 -i 4", sizes, 64), 4);
    assert_int_equal(sizes[3], 12);
    assert_int_equal(sizes_of("allreduce -b 1 -e 11 -i 4 -d uint8", sizes, 64), 3);
    assert_int_equal(sizes_of("allreduce -b 0", sizes, 64), 1);
    assert_int_equal(sizes_of("allreduce -b 4G -e 17G -f 2", sizes, 64), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_of_nccl_tests_are_understood),
        cmocka_unit_test(test_options_first_size_without_a_flag_holds_an_element),
        cmocka_unit_test(test_options_long_words_are_understood),
        cmocka_unit_test(test_options_slips_are_named),
        cmocka_unit_test(test_options_help_lists_every_flag),
        cmocka_unit_test(test_options_sizes_end_at_the_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
