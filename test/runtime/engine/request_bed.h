/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of requests share: a descriptor that is right, made into a request or refused. */
#ifndef HORON_TEST_REQUEST_BED_H
#define HORON_TEST_REQUEST_BED_H

#undef NDEBUG
#include "engine/pool.h"
#include "engine/team.h"

#include "alloc.h"

#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RANK 1
#define SIZE 3

struct bed {
    struct horon_engine_team team; /* its place and backends alone */
    struct horon_backends backends;
    struct horon_names names;
    struct horon_request_pool pool; /* keeps none */
    struct horon_error error;
    float data[8];
    struct horon_request *request;
};

static inline int make(void **state)
{
    struct bed *bed = calloc(1, sizeof *bed);
    *state = bed;
    horon_request_pool_init(&bed->pool);
    bed->team.view.rank = RANK;
    bed->team.view.size = SIZE;
    bed->team.backends = &bed->backends;
    if (horon_backends_open(&bed->backends, horon_backends, 1, NULL, NULL, NULL))
        return -1;
    return horon_names_init(&bed->names, 0);
}

static inline int end(void **state)
{
    struct bed *bed = *state;
    horon_names_deinit(&bed->names);
    horon_request_pool_deinit(&bed->pool);
    horon_backends_close(&bed->backends, true);
    free(bed);
    return 0;
}

/* An allreduce that is right. */
static inline horon_descriptor_t right(struct bed *bed)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.name = "x";
    desc.dtype = HORON_FLOAT32;
    desc.src = desc.dst = bed->data;
    desc.count = 8;
    return desc;
}

static inline void drop(struct bed *bed)
{
    horon_request_destroy(&bed->pool, bed->request, &bed->names);
    bed->request = NULL;
    assert_int_equal(bed->names.entry_count, 0);
}

static inline horon_status_t create(struct bed *bed, const horon_descriptor_t *desc)
{
    bed->error = (struct horon_error){0};
    bed->request = NULL;
    return horon_request_create(&bed->pool, desc, &bed->team, &bed->names, &bed->request,
                                &bed->error);
}

static inline void expect_right(struct bed *bed, const horon_descriptor_t *desc)
{
    if (create(bed, desc) != HORON_OK)
        fail_msg("%s", bed->error.text);
    assert_int_equal(atomic_load(&bed->request->state), HORON_REQUEST_IDLE);
    assert_int_equal(atomic_load(&bed->request->refs), 1);
}

static inline void expect_wrong(struct bed *bed, const horon_descriptor_t *desc,
                                horon_status_t status, const char *word)
{
    horon_status_t got = create(bed, desc);
    if (got != status || !strstr(bed->error.text, word))
        fail_msg("status %d, '%s' lacks '%s'", got, bed->error.text, word);
    assert_null(bed->request);
    assert_int_equal(bed->names.entry_count, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make, end)

#endif
