/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of symbols. Functions have the same names in both families; predefined objects are
 * symbols in Open MPI and numbers in MPICH (the MPICH ABI Compatibility Initiative froze them), so
 * each row below gives both. RTLD_GLOBAL, because Open MPI's plug-ins look for the library's
 * symbols that way. 16-bit floats have no type in MPI 3: they only move, as 16-bit integers.
 */
#include "mpi_library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char *const usual_files[] = {"libmpi.so.40", "libmpich.so.12", "libmpi.so.12",
                                          "libmpi.so"};

struct object_row {
    const char *ompi;   /* symbol of Open MPI; NULL: none */
    unsigned int mpich; /* value of MPICH */
};

/* Indexed by horon_dtype_t. */
static const struct object_row types[HORON_DTYPE_COUNT] = {
    [HORON_UINT8] = {"ompi_mpi_uint8_t", 0x4c00013b},
    [HORON_INT8] = {"ompi_mpi_int8_t", 0x4c000137},
    [HORON_UINT16] = {"ompi_mpi_uint16_t", 0x4c00023c},
    [HORON_INT16] = {"ompi_mpi_int16_t", 0x4c000238},
    [HORON_UINT32] = {"ompi_mpi_uint32_t", 0x4c00043d},
    [HORON_INT32] = {"ompi_mpi_int32_t", 0x4c000439},
    [HORON_UINT64] = {"ompi_mpi_uint64_t", 0x4c00083e},
    [HORON_INT64] = {"ompi_mpi_int64_t", 0x4c00083a},
    [HORON_FLOAT16] = {"ompi_mpi_uint16_t", 0x4c00023c},
    [HORON_BFLOAT16] = {"ompi_mpi_uint16_t", 0x4c00023c},
    [HORON_FLOAT32] = {"ompi_mpi_float", 0x4c00040a},
    [HORON_FLOAT64] = {"ompi_mpi_double", 0x4c00080b},
    [HORON_BOOL] = {"ompi_mpi_c_bool", 0x4c00013f},
    [HORON_COMPLEX64] = {"ompi_mpi_c_float_complex", 0x4c000840},
    [HORON_COMPLEX128] = {"ompi_mpi_c_double_complex", 0x4c001041},
    [HORON_FLOAT8_E4M3] = {"ompi_mpi_byte", 0x4c00010d},
    [HORON_FLOAT8_E5M2] = {"ompi_mpi_byte", 0x4c00010d},
};

/* Indexed by horon_redop_t. */
static const struct object_row ops[HORON_REDOP_COUNT] = {
    [HORON_SUM] = {"ompi_mpi_op_sum", 0x58000003},
    [HORON_AVERAGE] = {NULL, 0},
    [HORON_MIN] = {"ompi_mpi_op_min", 0x58000002},
    [HORON_MAX] = {"ompi_mpi_op_max", 0x58000001},
    [HORON_PRODUCT] = {"ompi_mpi_op_prod", 0x58000004},
    [HORON_BIT_AND] = {"ompi_mpi_op_band", 0x58000006},
    [HORON_BIT_OR] = {"ompi_mpi_op_bor", 0x58000008},
    [HORON_BIT_XOR] = {"ompi_mpi_op_bxor", 0x5800000a},
};
static const struct object_row op_or = {"ompi_mpi_op_lor", 0x58000007};
static const struct object_row op_and = {"ompi_mpi_op_land", 0x58000005};
static const struct object_row op_xor = {"ompi_mpi_op_lxor", 0x58000009};
static const struct object_row world_row = {"ompi_mpi_comm_world", 0x44000000};
static const struct object_row info_row = {"ompi_mpi_info_null", 0x1c000000};

struct function_row {
    const char *name;
    size_t offset;
};

#define FUNCTION(symbol, field)                                                                    \
    {                                                                                              \
        symbol, offsetof(struct mpi_library, field)                                                \
    }
static const struct function_row functions[] = {
    FUNCTION("MPI_Init", init),
    FUNCTION("MPI_Init_thread", init_thread),
    FUNCTION("MPI_Initialized", initialized),
    FUNCTION("MPI_Finalize", finalize),
    FUNCTION("MPI_Abort", abort),
    FUNCTION("MPI_Comm_rank", comm_rank),
    FUNCTION("MPI_Comm_size", comm_size),
    FUNCTION("MPI_Comm_split_type", comm_split_type),
    FUNCTION("MPI_Comm_free", comm_free),
    FUNCTION("MPI_Get_library_version", get_library_version),
    FUNCTION("MPI_Barrier", barrier),
    FUNCTION("MPI_Bcast", bcast),
    FUNCTION("MPI_Allreduce", allreduce),
    FUNCTION("MPI_Allgather", allgather),
    FUNCTION("MPI_Alltoallv", alltoallv),
    FUNCTION("MPI_Gather", gather),
    FUNCTION("MPI_Scatter", scatter),
    FUNCTION("MPI_Reduce_scatter", reduce_scatter),
    FUNCTION("MPI_Reduce", reduce),
    FUNCTION("MPI_Sendrecv", sendrecv),
    FUNCTION("MPI_Isend", isend),
    FUNCTION("MPI_Irecv", irecv),
    FUNCTION("MPI_Ibcast", ibcast),
    FUNCTION("MPI_Iallreduce", iallreduce),
    FUNCTION("MPI_Iallgather", iallgather),
    FUNCTION("MPI_Ialltoallv", ialltoallv),
    FUNCTION("MPI_Igather", igather),
    FUNCTION("MPI_Iscatter", iscatter),
    FUNCTION("MPI_Ireduce_scatter", ireduce_scatter),
    FUNCTION("MPI_Ireduce", ireduce),
    FUNCTION("MPI_Ibarrier", ibarrier),
    FUNCTION("MPI_Waitall", waitall),
    FUNCTION("MPI_Testall", testall),
};

static int object_find(const struct mpi_library *library, const struct object_row *row,
                       mpi_handle_t *out)
{
    if (row->ompi == NULL) {
        return -1;
    }
    if (library->request_bytes == sizeof(int)) {
        *out = row->mpich;
        return 0;
    }
    void *const address = dlsym(library->image, row->ompi);
    *out = (mpi_handle_t)address;
    return address != NULL ? 0 : -1;
}

static int image_open(struct mpi_library *library, const char *file, char *why, size_t why_bytes)
{
    size_t used = (size_t)snprintf(why, why_bytes, "no MPI library:");
    const size_t names = file != NULL ? 1 : sizeof usual_files / sizeof usual_files[0];
    for (size_t i = 0; i < names; i++) {
        const char *const name = file != NULL ? file : usual_files[i];
        library->image = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
        if (library->image != NULL) {
            library->file = name;
            return 0;
        }
        if (used < why_bytes) {
            used += (size_t)snprintf(why + used, why_bytes - used, "%s %s", i > 0 ? ";" : "",
                                     dlerror());
        }
    }
    return -1;
}

static void family_set(struct mpi_library *library)
{
    const int ompi = dlsym(library->image, "ompi_mpi_comm_world") != NULL;
    library->family = ompi ? "Open MPI" : "MPICH";
    library->request_bytes = ompi ? sizeof(void *) : sizeof(int);
    library->comm_type_shared = ompi ? 0 : 1;
    library->in_place = (void *)(intptr_t)(ompi ? 1 : -1);
    library->statuses_ignore = (void *)(intptr_t)(ompi ? 0 : 1);
}

int mpi_library_open(struct mpi_library *library, const char *file, char *why, size_t why_bytes)
{
    memset(library, 0, sizeof *library);
    if (image_open(library, file, why, why_bytes) != 0) {
        return -1;
    }
    family_set(library);
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *const address = dlsym(library->image, functions[i].name);
        if (address == NULL) {
            snprintf(why, why_bytes, "%s has no %s", library->file, functions[i].name);
            return -1;
        }
        memcpy((char *)library + functions[i].offset, &address, sizeof address);
    }
    if (object_find(library, &world_row, &library->comm_world) != 0 ||
        object_find(library, &info_row, &library->info_null) != 0) {
        snprintf(why, why_bytes, "%s has no world communicator or null info", library->file);
        return -1;
    }
    return 0;
}

int mpi_library_type(const struct mpi_library *library, horon_dtype_t dtype, mpi_handle_t *out)
{
    return object_find(library, &types[dtype], out);
}

int mpi_library_op(const struct mpi_library *library, horon_dtype_t dtype, horon_redop_t redop,
                   mpi_handle_t *out)
{
    if (dtype == HORON_FLOAT16 || dtype == HORON_BFLOAT16) {
        return -1;
    }
    if (dtype == HORON_BOOL) {
        const int is_or = redop == HORON_SUM || redop == HORON_MAX || redop == HORON_BIT_OR;
        const struct object_row *const row = redop == HORON_BIT_XOR ? &op_xor
                                             : is_or                ? &op_or
                                                                    : &op_and;
        return object_find(library, row, out);
    }
    return object_find(library, &ops[redop], out);
}
