/* SPDX-License-Identifier: Apache-2.0 */
/* Names that are looked up within a limit; this program's resolver answers when it is let. */
#undef NDEBUG
#include "resolve.h"

#include "clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <netdb.h>
#include <semaphore.h>
#include <string.h>

int __real_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                       struct addrinfo **found);
int __wrap_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                       struct addrinfo **found);

static sem_t let, answered;

/* "slow" is a name of this machine. */
int __wrap_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                       struct addrinfo **found)
{
    const int slow = strcmp(host, "slow") == 0;
    while (slow && sem_wait(&let) != 0)
        ;
    const int why = __real_getaddrinfo(slow ? "127.0.0.1" : host, service, hints, found);
    if (slow)
        sem_post(&answered);
    return why;
}

static struct horon_addresses found;
static struct horon_error error;

static int at_the_third_time(void *arg)
{
    return ++*(int *)arg == 3;
}

static void test_resolve_within_no_limit_waits_for_the_resolver(void **state)
{
    const struct horon_resolve_limit none = {.deadline_ns = UINT64_MAX};
    (void)state;
    sem_post(&let);
    assert_int_equal(horon_addresses_resolve_within("slow", 9, &none, &found, &error), HORON_OK);
    assert_true(found.count > 0);
    assert_int_equal(horon_address_port(&found.items[0]), 9);
    sem_wait(&answered);
    sem_post(&let);
    assert_int_equal(horon_addresses_resolve_within("slow", 8, NULL, &found, &error), HORON_OK);
    sem_wait(&answered);
    assert_int_equal(horon_addresses_resolve_within("no..name", 9, &none, &found, &error),
                     HORON_ERR_CONFIG);
    assert_non_null(strstr(error.text, "'no..name' is not known"));
}

static void test_resolve_within_a_limit_names_the_resolver(void **state)
{
    const struct horon_resolve_limit soon = {.deadline_ns = horon_clock_ns() + 20000000};
    (void)state;
    assert_int_equal(horon_addresses_resolve_within("slow", 9, &soon, &found, &error),
                     HORON_ERR_TIMEOUT);
    assert_non_null(strstr(error.text, "'slow' was not found in time: the resolver"));
    assert_int_equal(horon_addresses_resolve_within("127.0.0.1", 9, &soon, &found, &error),
                     HORON_OK);
    sem_post(&let); /* what it finds now is nobody's any more */
    sem_wait(&answered);
}

static void test_resolve_within_is_interrupted(void **state)
{
    int asked = 0;
    const struct horon_resolve_limit limit = {
        .deadline_ns = UINT64_MAX, .interrupted = at_the_third_time, .arg = &asked};
    (void)state;
    assert_int_equal(horon_addresses_resolve_within("slow", 9, &limit, &found, &error),
                     HORON_ERR_CANCELLED);
    assert_int_equal(asked, 3);
    sem_post(&let);
    sem_wait(&answered);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resolve_within_no_limit_waits_for_the_resolver),
        cmocka_unit_test(test_resolve_within_a_limit_names_the_resolver),
        cmocka_unit_test(test_resolve_within_is_interrupted),
    };
    sem_init(&let, 0, 0);
    sem_init(&answered, 0, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
