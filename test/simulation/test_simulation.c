/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs seeds of the simulation and tells in TAP.
 *
 *     test_simulation [FIRST] [COUNT] [FAILURES]   ends after so many failures
 *     test_simulation --kill-at-every-step SEED... runs each seed once to its end, then kills each
 *                                                  rank at each of its steps, between turns and in
 *                                                  the middle of one
 *
 * HORON_TEST_SEED=n replays one seed and says what it was; with HORON_TEST_KILL=RANK,STEP,INSIDE
 * it dies there.
 */
#undef NDEBUG
#include "simulation/simulation.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

/* Of one seed, in seconds of the CPU, whatever else the machine does; it takes milliseconds. */
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
    const struct itimerval limit = {.it_value.tv_sec = SEED_SECONDS_MAX};
    setitimer(ITIMER_PROF, &limit, NULL);
}

struct totals {
    uint64_t steps, well, cancelled, mismatched, failed;
    unsigned kills, kills_inside, departures, disorders, teams, team_well, links, refused;
    unsigned replaced, rebound;
    unsigned joined, absent, sets, sets_failed, removed;
    unsigned sent, received, received_long, received_late, messages_failed;
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
    totals->replaced += outcome->replaced;
    totals->rebound += outcome->rebound;
    totals->teams += outcome->teams;
    totals->team_well += outcome->team_well;
    totals->links += outcome->links;
    totals->refused += outcome->refused;
    totals->joined += outcome->joined;
    totals->absent += outcome->absent;
    totals->sets += outcome->sets;
    totals->sets_failed += outcome->sets_failed;
    totals->removed += outcome->removed;
    totals->sent += outcome->sent;
    totals->received += outcome->received;
    totals->received_long += outcome->received_long;
    totals->received_late += outcome->received_late;
    totals->messages_failed += outcome->messages_failed;
}

/* Says what was seen. @return was anything left out that so many seeds should have shown? */
static bool tell_totals(const struct totals *totals, uint64_t seeds)
{
    printf("# %llu steps; %u kills, %u of them in the middle of a turn; %u early departures; "
           "%u broken promises; %u memberships replaced, in which %u ends of other teams went on\n",
           (unsigned long long)totals->steps, totals->kills, totals->kills_inside,
           totals->departures, totals->disorders, totals->replaced, totals->rebound);
    printf("# requests: %llu well, %llu cancelled, %llu mismatched, %llu failed\n",
           (unsigned long long)totals->well, (unsigned long long)totals->cancelled,
           (unsigned long long)totals->mismatched, (unsigned long long)totals->failed);
    printf("# other teams: made %u times, %u requests well; %u ends of links that were asked for, "
           "%u in vain\n",
           totals->teams, totals->team_well, totals->links, totals->refused);
    printf("# %u ranks joined; %u requests well without their data\n", totals->joined,
           totals->absent);
    printf("# process sets: added %u times, in vain %u times; %u teams removed\n", totals->sets,
           totals->sets_failed, totals->removed);
    printf("# messages: %u sent, %u received, %u of them long, %u when their receiver had joined; "
           "%u ends failed\n",
           totals->sent, totals->received, totals->received_long, totals->received_late,
           totals->messages_failed);
    bool all = totals->received_long && totals->received_late && totals->messages_failed &&
               totals->sets && totals->sets_failed && totals->removed && totals->links &&
               totals->joined && totals->absent && totals->team_well && totals->replaced &&
               totals->rebound && totals->kills_inside && totals->departures && totals->disorders &&
               totals->cancelled && totals->mismatched && totals->failed;
    return seeds >= 1000 && !all;
}

static bool run(uint64_t seed, bool twice, bool tell, struct totals *totals)
{
    char why[1024], again[1100];
    struct sim_outcome first = {0}, second = {0};
    note_seed(seed);
    bool good = sim_run(seed, NULL, &first, why, sizeof why);
    add(totals, &first);
    if (good && twice) {
        good = sim_run(seed, NULL, &second, again, sizeof again);
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

/* @return true: it went as it should, or it did not come to the kill */
static bool run_killed(uint64_t seed, const struct sim_kill *kill, struct totals *totals)
{
    char why[1024];
    struct sim_outcome outcome = {0};
    note_seed(seed);
    bool good = sim_run(seed, kill, &outcome, why, sizeof why);
    add(totals, &outcome);
    if (!good)
        printf("# seed %llu: %s\n# replay it: HORON_TEST_SEED=%llu HORON_TEST_KILL=%d,%llu,%d "
               "test_simulation\n",
               (unsigned long long)seed, why, (unsigned long long)seed, kill->victim,
               (unsigned long long)kill->step, kill->inside);
    fflush(stdout);
    return good;
}

/* The steps up to the kill are those of the run that is not disturbed. */
static int kill_at_every_step(uint64_t seed, struct totals *totals)
{
    char why[1024];
    struct sim_outcome whole = {0};
    const struct sim_kill never = {.victim = 0, .step = UINT64_MAX};
    int failures = !sim_run(seed, &never, &whole, why, sizeof why);
    if (failures)
        printf("# seed %llu, not disturbed: %s\n", (unsigned long long)seed, why);
    for (int victim = 0; victim < whole.size && failures == 0; victim++) {
        for (uint64_t step = 1; step <= whole.steps && failures < FAILURES_SHOWN; step++) {
            struct sim_kill kill = {.victim = victim, .step = step};
            failures += !run_killed(seed, &kill, totals);
            kill.inside = true;
            failures += !run_killed(seed, &kill, totals);
        }
    }
    return failures;
}

static int sweep(int count, char **seeds)
{
    int bad = 0;
    printf("1..%d\n", count);
    for (int i = 0; i < count; i++) {
        struct totals totals = {0};
        uint64_t seed = strtoull(seeds[i], NULL, 10);
        int failures = kill_at_every_step(seed, &totals);
        printf("# %u kills, %u of them in the middle of a turn\n", totals.kills,
               totals.kills_inside);
        failures += totals.kills_inside == 0;
        printf("%sok %d - seed %llu with a kill at every step\n", failures ? "not " : "", i + 1,
               (unsigned long long)seed);
        bad += failures;
    }
    return bad ? 1 : 0;
}

static void heed_signals(void)
{
    signal(SIGABRT, say_seed);
    signal(SIGSEGV, say_seed);
    signal(SIGBUS, say_seed);
    signal(SIGFPE, say_seed);
    signal(SIGPROF, say_seed);
}

/* What HORON_TEST_KILL says. @return 0: went as it should */
static int replay_kill(uint64_t seed, const char *words)
{
    struct totals totals = {0};
    struct sim_kill kill = {0};
    unsigned long long step;
    int inside;
    if (sscanf(words, "%d,%llu,%d", &kill.victim, &step, &inside) != 3) {
        fprintf(stderr, "HORON_TEST_KILL is RANK,STEP,INSIDE\n");
        return 2;
    }
    kill.step = step;
    kill.inside = inside != 0;
    return run_killed(seed, &kill, &totals) ? 0 : 1;
}

int main(int argc, char **argv)
{
    const char *one = getenv("HORON_TEST_SEED"), *killed = getenv("HORON_TEST_KILL");
    uint64_t first = 1, count = 2000;
    int failures = 0, shown = FAILURES_SHOWN;
    struct totals totals = {0};
    heed_signals();
    if (one && killed)
        return replay_kill(strtoull(one, NULL, 10), killed);
    if (argc > 2 && strcmp(argv[1], "--kill-at-every-step") == 0)
        return sweep(argc - 2, argv + 2);
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
