/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs seeds of the simulation and tells in TAP. Arguments: [FIRST] [COUNT] [FAILURES]; it ends
 * after so many. HORON_TEST_SEED=n replays one seed and says what it was.
 */
#undef NDEBUG
#include "simulation/simulation.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of one seed, in seconds; it takes milliseconds. */
#define SEED_SECONDS_MAX 60
#define FAILURES_SHOWN 10
/* Every so many seeds, one is run twice. */
#define REPLAY_EVERY 16

static char fatal_text[160]; /* for the handler, which may not print numbers */
static volatile size_t fatal_bytes;

static void say_seed(int number)
{
    ssize_t wrote = write(STDERR_FILENO, fatal_text, fatal_bytes);
    (void)wrote;
    signal(number, SIG_DFL);
    raise(number);
}

static void note_seed(uint64_t seed)
{
    fatal_bytes = (size_t)snprintf(fatal_text, sizeof fatal_text,
                                   "\n# died in seed %llu; replay it: HORON_TEST_SEED=%llu "
                                   "test_simulation\n",
                                   (unsigned long long)seed, (unsigned long long)seed);
    alarm(SEED_SECONDS_MAX);
}

struct totals {
    uint64_t steps, well, cancelled, mismatched, failed;
    unsigned kills, kills_inside, departures, disorders;
};

static void add(struct totals *totals, const struct sim_outcome *outcome)
{
    totals->steps += outcome->steps;
    totals->well += outcome->well;
    totals->cancelled += outcome->cancelled;
    totals->mismatched += outcome->mismatched;
    totals->failed += outcome->failed;
    totals->kills += outcome->killed;
    totals->kills_inside += outcome->killed_inside;
    totals->departures += outcome->left;
    totals->disorders += outcome->disordered;
}

/* Says what was seen. @return was anything left out that so many seeds should have shown? */
static bool tell_totals(const struct totals *totals, uint64_t seeds)
{
    printf("# %llu steps; %u kills, %u of them in the middle of a turn; %u early departures; "
           "%u broken promises\n",
           (unsigned long long)totals->steps, totals->kills, totals->kills_inside,
           totals->departures, totals->disorders);
    printf("# requests: %llu well, %llu cancelled, %llu mismatched, %llu failed\n",
           (unsigned long long)totals->well, (unsigned long long)totals->cancelled,
           (unsigned long long)totals->mismatched, (unsigned long long)totals->failed);
    bool all = totals->kills_inside && totals->departures && totals->disorders &&
               totals->cancelled && totals->mismatched && totals->failed;
    return seeds >= 1000 && !all;
}

static bool run(uint64_t seed, bool twice, bool tell, struct totals *totals)
{
    char why[1024], again[1100];
    struct sim_outcome first = {0}, second = {0};
    note_seed(seed);
    bool good = sim_run(seed, &first, why, sizeof why);
    add(totals, &first);
    if (good && twice) {
        good = sim_run(seed, &second, again, sizeof again);
        if (good && first.hash != second.hash) {
            good = false;
            snprintf(again, sizeof again, "the second run differs from the first: %s", why);
        }
        if (!good)
            snprintf(why, sizeof why, "%.1000s", again);
    }
    if (!good || tell)
        printf("# seed %llu: %s\n", (unsigned long long)seed, why);
    if (!good)
        printf("# replay it: HORON_TEST_SEED=%llu test_simulation\n", (unsigned long long)seed);
    fflush(stdout);
    return good;
}

int main(int argc, char **argv)
{
    const char *one = getenv("HORON_TEST_SEED");
    uint64_t first = 1, count = 2000;
    int failures = 0, shown = FAILURES_SHOWN;
    struct totals totals = {0};
    signal(SIGABRT, say_seed);
    signal(SIGSEGV, say_seed);
    signal(SIGBUS, say_seed);
    signal(SIGFPE, say_seed);
    signal(SIGALRM, say_seed);
    if (argc > 1)
        first = strtoull(argv[1], NULL, 10);
    if (argc > 2)
        count = strtoull(argv[2], NULL, 10);
    if (argc > 3)
        shown = atoi(argv[3]);
    if (one) {
        first = strtoull(one, NULL, 10);
        count = 1;
    }
    printf("1..1\n");
    for (uint64_t seed = first; seed < first + count && failures < shown; seed++)
        failures += !run(seed, one || seed % REPLAY_EVERY == 0, one != NULL, &totals);
    failures += failures == 0 && tell_totals(&totals, count);
    printf("%sok 1 - simulation of seeds %llu to %llu\n", failures ? "not " : "",
           (unsigned long long)first, (unsigned long long)(first + count - 1));
    return failures ? 1 : 0;
}
