/* SPDX-License-Identifier: Apache-2.0 */
#pragma GCC visibility push(default)
#include "fake_pmix.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

struct fake_pmix fake_pmix;

int PMIx_Init(struct pmix_proc *own, struct pmix_info *info, size_t infos);
int PMIx_Finalize(const struct pmix_info *info, size_t infos);
int PMIx_Put(uint8_t scope, const char *key, struct pmix_value *value);
int PMIx_Commit(void);
int PMIx_Get_nb(const struct pmix_proc *proc, const char *key, const struct pmix_info *info,
                size_t infos, pmix_got_fn got, void *arg);
const char *PMIx_Error_string(int status);

int PMIx_Init(struct pmix_proc *own, struct pmix_info *info, size_t infos)
{
    (void)info;
    (void)infos;
    if (fake_pmix.init_code != PMIX_SUCCESS)
        return fake_pmix.init_code;
    *own = (struct pmix_proc){.nspace = "space", .rank = fake_pmix.rank};
    fake_pmix.users++;
    return PMIX_SUCCESS;
}

int PMIx_Finalize(const struct pmix_info *info, size_t infos)
{
    (void)info;
    (void)infos;
    fake_pmix.users--;
    return PMIX_SUCCESS;
}

int PMIx_Put(uint8_t scope, const char *key, struct pmix_value *value)
{
    (void)scope;
    assert((size_t)fake_pmix.puts < sizeof fake_pmix.put / sizeof fake_pmix.put[0]);
    strcpy(fake_pmix.put[fake_pmix.puts].key, key);
    strcpy(fake_pmix.put[fake_pmix.puts++].value, value->data.string);
    return PMIX_SUCCESS;
}

int PMIx_Commit(void)
{
    return PMIX_SUCCESS;
}

/* Once the launcher has told it, it is known here, too. */
static const char *find(uint32_t rank, const char *key)
{
    for (int i = 0; i < fake_pmix.puts && rank == fake_pmix.rank; i++)
        if (strcmp(fake_pmix.put[i].key, key) == 0)
            return fake_pmix.put[i].value;
    const bool come = fake_pmix.comes && fake_pmix.asked >= fake_pmix.comes;
    return come && rank == 0 && strcmp(key, "horon") == 0 ? fake_pmix.invitation : NULL;
}

static bool is_size(const struct pmix_proc *proc, const char *key)
{
    return fake_pmix.size && strcmp(proc->nspace, "space") == 0 &&
           proc->rank == PMIX_RANK_WILDCARD && strcmp(key, "pmix.job.size") == 0;
}

int PMIx_Get_nb(const struct pmix_proc *proc, const char *key, const struct pmix_info *info,
                size_t infos, pmix_got_fn got, void *arg)
{
    char text[1024];
    struct pmix_value value = {.type = PMIX_STRING, .data.string = text};
    fake_pmix.asked += infos == 0;
    fake_pmix.proc = proc;
    fake_pmix.key = key;
    fake_pmix.info = info;
    fake_pmix.got = got;
    fake_pmix.arg = arg;
    if (fake_pmix.silent > 0) {
        fake_pmix.silent--;
        return PMIX_SUCCESS;
    }
    if (fake_pmix.withheld && strcmp(key, fake_pmix.withheld) == 0)
        return PMIX_SUCCESS;
    if (is_size(proc, key)) {
        value = (struct pmix_value){.type = PMIX_UINT32, .data.uint32 = fake_pmix.size};
        got(PMIX_SUCCESS, &value, arg);
        return PMIX_SUCCESS;
    }
    /* of what is not there a launcher says both */
    const int none = infos == 0 && fake_pmix.asked % 2 ? PMIX_ERR_TIMEOUT : PMIX_NOT_FOUND;
    const char *found = find(proc->rank, key);
    snprintf(text, sizeof text, "%s", found ? found : "");
    got(found ? PMIX_SUCCESS : none, found ? &value : NULL, arg);
    return PMIX_SUCCESS;
}

const char *PMIx_Error_string(int status)
{
    return status == PMIX_ERR_UNREACH ? "UNREACHABLE" : "ANOTHER";
}
