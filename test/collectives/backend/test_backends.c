/* SPDX-License-Identifier: Apache-2.0 */
/* Which backends a context opens, and in what order. */
#undef NDEBUG
#include "fake.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

struct scene {
    struct fake fakes[2]; /* "everywhere", "other" */
    const struct horon_backend *tables[2];
    struct horon_backends backends;
    struct horon_log log;
    int warnings;
    struct horon_error error;
};

static void count_warnings(void *arg, horon_log_level_t level, const char *text)
{
    (void)text;
    *(int *)arg += level == HORON_LOG_WARN;
}

static horon_status_t open_in(struct scene *scene, const char *order, const char *absent)
{
    const struct horon_backend_settings settings = {.order = order, .mpi_library = ""};
    memset(scene, 0, sizeof *scene);
    fake_init(&scene->fakes[0], "everywhere", HORON_BACKEND_ANY_THREAD | HORON_BACKEND_EVERYWHERE);
    fake_init(&scene->fakes[1], "other", HORON_BACKEND_ANY_THREAD);
    scene->fakes[1].absent = absent;
    for (int i = 0; i < 2; i++)
        scene->tables[i] = &scene->fakes[i].base;
    scene->log = (struct horon_log){
        .fn = count_warnings, .arg = &scene->warnings, .level = HORON_LOG_WARN, .rank = -1};
    return horon_backends_open(&scene->backends, scene->tables, 2, &settings, &scene->log,
                               &scene->error);
}

static void expect(const struct scene *scene, const char *first, const char *second)
{
    assert_int_equal(scene->backends.count, second ? 2 : 1);
    assert_string_equal(scene->backends.tables[0]->name, first);
    if (second)
        assert_string_equal(scene->backends.tables[1]->name, second);
}

static void end(struct scene *scene)
{
    horon_backends_close(&scene->backends, true);
    for (int i = 0; i < 2; i++)
        assert_int_equal(scene->fakes[i].opened, scene->fakes[i].closed);
}

static void test_backends_are_those_that_are_named_in_that_order(void **state)
{
    static const char *const orders[][3] = {
        {"everywhere", "everywhere", NULL},
        {"everywhere,other", "everywhere", "other"},
        {"other,everywhere", "other", "everywhere"},
        {"other", "other", "everywhere"}, /* which is always there */
        {NULL, "everywhere", "other"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        struct scene scene;
        assert_int_equal(open_in(&scene, orders[i][0], NULL), HORON_OK);
        expect(&scene, orders[i][1], orders[i][2]);
        end(&scene);
    }
}

static void test_backends_that_are_none_are_refused_by_name(void **state)
{
    static const char *const wrong[] = {"others", "othe", "OTHER", "other, other", "other,other"};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct scene scene;
        assert_int_equal(open_in(&scene, wrong[i], NULL), HORON_ERR_CONFIG);
        const bool twice = strcmp(wrong[i], "other,other") == 0;
        assert_non_null(
            strstr(scene.error.text, twice ? "names \"other\" twice" : "everywhere, other"));
        assert_int_equal(strstr(scene.error.text, "which is no backend here") == NULL, twice);
        assert_int_equal(scene.fakes[1].opened, 0);
        end(&scene);
    }
}

static void test_backends_of_which_a_name_is_empty_are_refused(void **state)
{
    static const char *const wrong[] = {"", ",", "other,", ",other", "other,,everywhere"};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct scene scene;
        assert_int_equal(open_in(&scene, wrong[i], NULL), HORON_ERR_CONFIG);
        assert_string_equal(scene.error.text,
                            "HORON_BACKEND has an empty name: leave out the comma beside it");
        assert_int_equal(scene.fakes[1].opened, 0);
        end(&scene);
    }
}

static void test_backends_that_were_asked_for_and_are_absent_are_warned_of(void **state)
{
    struct scene scene;
    (void)state;
    assert_int_equal(open_in(&scene, "other", "no library"), HORON_OK);
    expect(&scene, "other", "everywhere");
    assert_null(scene.backends.contexts[0]);
    assert_int_equal(scene.warnings, 1);
    horon_backends_close(&scene.backends, true);
    assert_int_equal(open_in(&scene, NULL, "no library"), HORON_OK);
    assert_int_equal(scene.warnings, 0); /* nobody asked */
    horon_backends_close(&scene.backends, true);
}

static void *ask_whether_needed(void *backends)
{
    return horon_backends_need_thread(backends) ? backends : NULL;
}

static void test_backends_that_are_bound_need_the_thread_that_opened_them(void **state)
{
    struct scene scene;
    (void)state;
    for (int bound = 0; bound < 2; bound++) {
        pthread_t other;
        void *needed = NULL;
        assert_int_equal(open_in(&scene, "other", NULL), HORON_OK);
        scene.backends.contexts[0]->is_bound = bound;
        assert_int_equal(horon_backends_need_thread(&scene.backends), bound);
        assert_int_equal(pthread_create(&other, NULL, ask_whether_needed, &scene.backends), 0);
        assert_int_equal(pthread_join(other, &needed), 0);
        assert_null(needed);
        end(&scene);
    }
}

/* The one that there is has no other name that the default could mean. */
static void test_backends_among_gloo_take_the_default_for_nothing_said(void **state)
{
    struct horon_backends backends;
    struct horon_error error;
    (void)state;
    assert_null(horon_backends_order_among_gloo("native"));
    const char *const others[] = {"gloo", "native,mpi", "mpi", ""};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        const char *order = horon_backends_order_among_gloo(others[i]);
        assert_ptr_equal(order, others[i]);
        assert_int_equal(
            horon_backends_order(&backends, horon_backends_among_gloo, 1, order, &error),
            i == 0 ? HORON_OK : HORON_ERR_CONFIG);
    }
}

static horon_status_t prepared; /* what "other" says */
static int prepares, give_ups;

static horon_status_t prepare(const struct horon_backend_settings *settings,
                              struct horon_error *error)
{
    assert_ptr_equal(settings->context, &prepares);
    prepares++;
    return prepared == HORON_OK ? HORON_OK : horon_error_set(error, prepared, "it waits, or not");
}

static void give_up(const void *context, const struct horon_log *log)
{
    (void)log;
    assert_ptr_equal(context, &prepares);
    give_ups++;
}

static void test_backends_that_are_wanted_prepare_as_often_as_they_are_asked(void **state)
{
    static const horon_status_t says[] = {HORON_IN_PROGRESS, HORON_OK, HORON_ERR_CONFIG};
    struct horon_backend_settings settings = {.context = &prepares};
    struct scene scene;
    (void)state;
    assert_int_equal(open_in(&scene, "everywhere", NULL), HORON_OK);
    scene.fakes[1].base.prepare = prepare;
    scene.fakes[1].base.give_up = give_up;
    for (int i = 0; i < 3; i++) {
        prepared = says[i];
        settings.order = "everywhere";
        assert_int_equal(horon_backends_prepare(scene.tables, 2, &settings, &scene.error),
                         HORON_OK);
        assert_int_equal(prepares, i);
        settings.order = "other";
        assert_int_equal(horon_backends_prepare(scene.tables, 2, &settings, &scene.error),
                         prepared);
        assert_int_equal(prepares, i + 1);
        if (prepared != HORON_OK)
            assert_string_equal(scene.error.text, "backend other: it waits, or not");
    }
    settings.order = "others";
    assert_int_equal(horon_backends_prepare(scene.tables, 2, &settings, &scene.error),
                     HORON_ERR_CONFIG);
    horon_backends_give_up(scene.tables, 2, &prepares, &scene.log);
    assert_int_equal(give_ups, 1);
    end(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_backends_are_those_that_are_named_in_that_order),
        cmocka_unit_test(test_backends_that_are_none_are_refused_by_name),
        cmocka_unit_test(test_backends_of_which_a_name_is_empty_are_refused),
        cmocka_unit_test(test_backends_that_were_asked_for_and_are_absent_are_warned_of),
        cmocka_unit_test(test_backends_that_are_wanted_prepare_as_often_as_they_are_asked),
        cmocka_unit_test(test_backends_that_are_bound_need_the_thread_that_opened_them),
        cmocka_unit_test(test_backends_among_gloo_take_the_default_for_nothing_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
