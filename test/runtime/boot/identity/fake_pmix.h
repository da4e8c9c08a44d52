/* SPDX-License-Identifier: Apache-2.0 */
/* A PMIx library without a launcher, under the true one's name: what it has been told, and what it
 * is to answer. */
#ifndef TEST_FAKE_PMIX_H
#define TEST_FAKE_PMIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- as in pmix_common.h -------------------------------------------------------------------- */

#define PMIX_SUCCESS 0
#define PMIX_ERR_TIMEOUT (-24)
#define PMIX_ERR_UNREACH (-25)
#define PMIX_NOT_FOUND (-46)
#define PMIX_STRING 3
#define PMIX_UINT32 14
#define PMIX_RANK_WILDCARD (UINT32_MAX - 1)

struct pmix_proc {
    char nspace[256];
    uint32_t rank;
};

struct pmix_value {
    uint16_t type;
    union {
        char *string;
        uint32_t uint32;
        void *largest[3];
    } data;
};

struct pmix_info {
    char key[512];
    uint32_t flags;
    struct pmix_value value;
};

typedef void (*pmix_got_fn)(int status, struct pmix_value *value, void *arg);

/* ---- the fake ------------------------------------------------------------------------------- */

struct fake_pmix {
    int init_code; /* what PMIx_Init() is to return */
    uint32_t rank;
    uint32_t size;        /* of the job; 0: it is not told */
    int users;            /* begun, and not ended */
    int silent;           /* so many questions are not answered, but kept; the last one is below */
    const char *withheld; /* a key of which no question is answered, either; or NULL */
    int asked;            /* questions that the launcher would have got */
    int comes;            /* rank 0's "horon" is there from this one on; 0: never */
    const char *invitation;
    struct {
        char key[64], value[1024];
    } put[8]; /* by this process */
    int puts;
    /* as the library keeps them: pointers */
    const struct pmix_proc *proc;
    const char *key;
    const struct pmix_info *info;
    pmix_got_fn got;
    void *arg;
};

extern struct fake_pmix fake_pmix;

#endif
