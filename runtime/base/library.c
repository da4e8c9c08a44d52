/* SPDX-License-Identifier: Apache-2.0 */
/* What the library says about itself: its version, and dtypes and reductions by name, one table
 * each.
 */
#include <horon/horon.h>

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

const char *horon_version(void)
{
    return TEXT(HORON_VERSION_MAJOR) "." TEXT(HORON_VERSION_MINOR) "." TEXT(HORON_VERSION_PATCH);
}

int32_t horon_version_number(void)
{
    return HORON_VERSION_MAJOR * 10000 + HORON_VERSION_MINOR * 100 + HORON_VERSION_PATCH;
}

static const struct {
    const char *name;
    size_t bytes;
} dtypes[HORON_DTYPE_COUNT] = {
    [HORON_UINT8] = {"uint8", 1},
    [HORON_INT8] = {"int8", 1},
    [HORON_UINT16] = {"uint16", 2},
    [HORON_INT16] = {"int16", 2},
    [HORON_UINT32] = {"uint32", 4},
    [HORON_INT32] = {"int32", 4},
    [HORON_UINT64] = {"uint64", 8},
    [HORON_INT64] = {"int64", 8},
    [HORON_FLOAT16] = {"float16", 2},
    [HORON_BFLOAT16] = {"bfloat16", 2},
    [HORON_FLOAT32] = {"float32", 4},
    [HORON_FLOAT64] = {"float64", 8},
    [HORON_BOOL] = {"bool", 1},
    [HORON_COMPLEX64] = {"complex64", 8},
    [HORON_COMPLEX128] = {"complex128", 16},
    [HORON_FLOAT8_E4M3] = {"float8_e4m3", 1},
    [HORON_FLOAT8_E5M2] = {"float8_e5m2", 1},
};

size_t horon_dtype_bytes(horon_dtype_t dtype)
{
    return (unsigned)dtype < HORON_DTYPE_COUNT ? dtypes[dtype].bytes : 0;
}

const char *horon_dtype_name(horon_dtype_t dtype)
{
    return (unsigned)dtype < HORON_DTYPE_COUNT ? dtypes[dtype].name : "unknown";
}

const char *horon_redop_name(horon_redop_t redop)
{
    static const char *const names[HORON_REDOP_COUNT] = {
        [HORON_SUM] = "sum",       [HORON_AVERAGE] = "average", [HORON_MIN] = "min",
        [HORON_MAX] = "max",       [HORON_PRODUCT] = "product", [HORON_BIT_AND] = "bit_and",
        [HORON_BIT_OR] = "bit_or", [HORON_BIT_XOR] = "bit_xor",
    };
    return (unsigned)redop < HORON_REDOP_COUNT ? names[redop] : "unknown";
}
