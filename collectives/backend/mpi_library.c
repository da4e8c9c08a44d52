/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of the families, and the process's library. A predefined object is a symbol in
 * Open MPI, a number in MPICH (which the MPICH ABI Compatibility Initiative froze), and another one
 * in the ABI of the MPI standard, so each row has all three.
 *
 * Elements are combined as everywhere in horon (reduce/reduce.h); only the order of them is MPI's.
 * Its own functions do that for sums and products of 32 and 64 bits, and for little else: where the
 * processor has vectors Open MPI 4 saturates sums of 8 and 16 bits and compares unsigned integers
 * as signed ones; a minimum of a NaN is whatever it is, a boolean may be any byte, and of halves no
 * library knows. The rest is combined by functions of ours, which know the dtype by the type that
 * MPI hands them; halves have types of their own for that, made of a 16-bit integer.
 */
#include "backend/mpi_library.h"

#include "alloc.h"
#include "backend/mpi_gate.h"
#include "backend/mpi_open.h"
#include "reduce/reduce.h"

#include <assert.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { OPEN_MPI, MPICH, STANDARD, FAMILIES };

static const struct horon_mpi_family families[FAMILIES] = {
    [OPEN_MPI] = {.name = "Open MPI",
                  .levels = {0, 1, 2, 3},
                  .handle_bytes = sizeof(void *),
                  .in_place = (void *)1,
                  .ring_ranks = 4},
    [MPICH] = {.name = "MPICH",
               .levels = {0, 1, 2, 3},
               .handle_bytes = sizeof(int),
               .in_place = (void *)-1,
               .statuses_ignore = (void *)1},
    [STANDARD] = {.name = "MPI's standard ABI",
                  .levels = {0, 1024, 2048, 4096},
                  .handle_bytes = sizeof(void *),
                  .in_place = (void *)1},
};

struct object_row {
    const char *symbol; /* of Open MPI; NULL: there is none */
    uint32_t number;    /* of MPICH */
    uint32_t standard;  /* of the standard's ABI */
};

static const struct object_row world_row = {"ompi_mpi_comm_world", 0x44000000, 0x101};
static const struct object_row self_row = {"ompi_mpi_comm_self", 0x44000001, 0x102};
static const struct object_row comm_null_row = {"ompi_mpi_comm_null", 0x04000000, 0x100};
static const struct object_row errors_return_row = {"ompi_mpi_errors_return", 0x54000001, 0x143};

static const struct object_row type_rows[HORON_DTYPE_COUNT] = {
    [HORON_UINT8] = {"ompi_mpi_uint8_t", 0x4c00013b, 0x241},
    [HORON_INT8] = {"ompi_mpi_int8_t", 0x4c000137, 0x240},
    [HORON_UINT16] = {"ompi_mpi_uint16_t", 0x4c00023c, 0x249},
    [HORON_INT16] = {"ompi_mpi_int16_t", 0x4c000238, 0x248},
    [HORON_UINT32] = {"ompi_mpi_uint32_t", 0x4c00043d, 0x251},
    [HORON_INT32] = {"ompi_mpi_int32_t", 0x4c000439, 0x250},
    [HORON_UINT64] = {"ompi_mpi_uint64_t", 0x4c00083e, 0x259},
    [HORON_INT64] = {"ompi_mpi_int64_t", 0x4c00083a, 0x258},
    [HORON_FLOAT16] = {"ompi_mpi_uint16_t", 0x4c00023c, 0x249},
    [HORON_BFLOAT16] = {"ompi_mpi_uint16_t", 0x4c00023c, 0x249},
    [HORON_FLOAT32] = {"ompi_mpi_float", 0x4c00040a, 0x210},
    [HORON_FLOAT64] = {"ompi_mpi_double", 0x4c00080b, 0x214},
    [HORON_BOOL] = {"ompi_mpi_c_bool", 0x4c00013f, 0x238},
    [HORON_COMPLEX64] = {"ompi_mpi_c_float_complex", 0x4c000840, 0x212},
    [HORON_COMPLEX128] = {"ompi_mpi_c_double_complex", 0x4c001041, 0x216},
    [HORON_FLOAT8_E4M3] = {"ompi_mpi_byte", 0x4c00010d, 0x247},
    [HORON_FLOAT8_E5M2] = {"ompi_mpi_byte", 0x4c00010d, 0x247},
};

/* Those that are MPI's, see is_mpis(). */
static const struct object_row op_rows[HORON_REDOP_COUNT] = {
    [HORON_SUM] = {"ompi_mpi_op_sum", 0x58000003, 0x21},
    [HORON_PRODUCT] = {"ompi_mpi_op_prod", 0x58000004, 0x24},
};

struct call_row {
    const char *name;
    size_t offset;
};

#define CALL(symbol, field)                                                                        \
    {                                                                                              \
        "MPI_" symbol, offsetof(struct horon_mpi_calls, field)                                     \
    }
static const struct call_row call_rows[] = {
    CALL("Initialized", initialized),
    CALL("Finalized", finalized),
    CALL("Init_thread", init_thread),
    CALL("Query_thread", query_thread),
    CALL("Is_thread_main", is_thread_main),
    CALL("Finalize", finalize),
    CALL("Get_library_version", get_library_version),
    CALL("Error_string", error_string),
    CALL("Comm_rank", comm_rank),
    CALL("Comm_size", comm_size),
    CALL("Comm_group", comm_group),
    CALL("Comm_idup", comm_idup),
    CALL("Comm_create_group", comm_create_group),
    CALL("Comm_set_errhandler", comm_set_errhandler),
    CALL("Comm_test_inter", comm_test_inter),
    CALL("Comm_free", comm_free),
    CALL("Comm_create_keyval", comm_create_keyval),
    CALL("Comm_set_attr", comm_set_attr),
    CALL("Group_incl", group_incl),
    CALL("Group_free", group_free),
    CALL("Group_translate_ranks", group_translate_ranks),
    CALL("Op_create", op_create),
    CALL("Op_free", op_free),
    CALL("Type_contiguous", type_contiguous),
    CALL("Type_commit", type_commit),
    CALL("Type_free", type_free),
    CALL("Ibarrier", ibarrier),
    CALL("Ibcast", ibcast),
    CALL("Iallreduce", iallreduce),
    CALL("Ireduce", ireduce),
    CALL("Ireduce_scatter", ireduce_scatter),
    CALL("Iallgather", iallgather),
    CALL("Iallgatherv", iallgatherv),
    CALL("Ialltoall", ialltoall),
    CALL("Isend", isend),
    CALL("Irecv", irecv),
    CALL("Iprobe", iprobe),
    CALL("Testall", testall),
};
static_assert(sizeof call_rows / sizeof call_rows[0] ==
                  sizeof(struct horon_mpi_calls) / sizeof(void (*)(void)),
              "a row each");

/* ---- the process's --------------------------------------------------------------------------- */

/* MPI is one in a process, whatever the number of contexts: the only state of its kind, with that
 * of mpi_begin.c, whose lock guards it. What is there once it is loaded is read without. */
static struct {
    struct horon_mpi_library library;
    char file[HORON_MPI_FILE_BYTES];
    bool loaded, has_handles; /* those that are made, in place of what stands in their rows */
    horon_mpi_handle kept[HORON_MPI_KEPT_MAX]; /* to be freed; or 0 */
    horon_mpi_handle types[HORON_DTYPE_COUNT];
    horon_mpi_handle ops[HORON_REDOP_COUNT], own_ops[HORON_REDOP_COUNT];
} process;

/* ---- functions that combine ------------------------------------------------------------------ */

static horon_dtype_t dtype_of(const void *type)
{
    horon_mpi_handle handle = 0;
    int dtype = 0;
    memcpy(&handle, type, process.library.family->handle_bytes);
    while (process.types[dtype] != handle)
        dtype++;
    return (horon_dtype_t)dtype;
}

/* MPI: inout = in op inout. */
#define COMBINE(name, redop)                                                                       \
    static void name(void *in, void *inout, int *count, void *type)                                \
    {                                                                                              \
        horon_reduce_combine(dtype_of(type), redop, in, inout, inout, (size_t)*count);             \
    }
COMBINE(sum, HORON_SUM)
COMBINE(min, HORON_MIN)
COMBINE(max, HORON_MAX)
COMBINE(product, HORON_PRODUCT)
COMBINE(bit_and, HORON_BIT_AND)
COMBINE(bit_or, HORON_BIT_OR)
COMBINE(bit_xor, HORON_BIT_XOR)

static void (*const combines[HORON_REDOP_COUNT])(void *in, void *inout, int *count, void *type) = {
    [HORON_SUM] = sum,         [HORON_MIN] = min,         [HORON_MAX] = max,
    [HORON_PRODUCT] = product, [HORON_BIT_AND] = bit_and, [HORON_BIT_OR] = bit_or,
    [HORON_BIT_XOR] = bit_xor,
};

/* Does MPI combine them as we do? */
static bool is_mpis(horon_dtype_t dtype, horon_redop_t redop)
{
    const bool is_wide = dtype == HORON_UINT32 || dtype == HORON_INT32 || dtype == HORON_UINT64 ||
                         dtype == HORON_INT64 || dtype == HORON_FLOAT32 || dtype == HORON_FLOAT64;
    return is_wide && (redop == HORON_SUM || redop == HORON_PRODUCT);
}

/* ---- finding it ------------------------------------------------------------------------------ */

const char *horon_mpi_lacks(void *image)
{
    const char *lacks = NULL;
    for (size_t i = 0; i < sizeof call_rows / sizeof call_rows[0] && !lacks; i++)
        if (!dlsym(image, call_rows[i].name))
            lacks = call_rows[i].name;
    return lacks;
}

static horon_status_t find_calls(struct horon_mpi_library *library, struct horon_error *error)
{
    const char *lacks = horon_mpi_lacks(library->image);
    if (lacks)
        return horon_error_set(error, HORON_ERR_UNSUPPORTED, "%s has no %s", library->file, lacks);
    for (size_t i = 0; i < sizeof call_rows / sizeof call_rows[0]; i++) {
        void *address = dlsym(library->image, call_rows[i].name);
        memcpy((char *)&library->mpi + call_rows[i].offset, &address, sizeof address);
    }
    return HORON_OK;
}

static horon_status_t find_object(const struct horon_mpi_library *library,
                                  const struct object_row *row, horon_mpi_handle *out,
                                  struct horon_error *error)
{
    *out = library->family == &families[STANDARD] ? row->standard : row->number;
    if (!row->symbol || library->family != &families[OPEN_MPI])
        return HORON_OK;
    /* As the library finds it: a program that is linked with it has copies of what it names. */
    void *address = dlsym(RTLD_DEFAULT, row->symbol);
    address = address ? address : dlsym(library->image, row->symbol);
    *out = (horon_mpi_handle)(uintptr_t)address;
    return *out ? HORON_OK
                : horon_error_set(error, HORON_ERR_UNSUPPORTED, "%s has no %s", library->file,
                                  row->symbol);
}

static horon_status_t find_rows(const struct horon_mpi_library *library,
                                const struct object_row *rows, int count, horon_mpi_handle *out,
                                struct horon_error *error)
{
    horon_status_t status = HORON_OK;
    for (int i = 0; i < count && status == HORON_OK; i++)
        status = find_object(library, &rows[i], &out[i], error);
    return status;
}

static horon_status_t find_objects(struct horon_mpi_library *library, struct horon_error *error)
{
    horon_status_t status = find_object(library, &world_row, &library->world, error);
    if (status == HORON_OK)
        status = find_object(library, &self_row, &library->self, error);
    if (status == HORON_OK)
        status = find_object(library, &comm_null_row, &library->comm_null, error);
    if (status == HORON_OK)
        status = find_object(library, &errors_return_row, &library->errors_return, error);
    if (status == HORON_OK)
        status = find_rows(library, type_rows, HORON_DTYPE_COUNT, process.types, error);
    if (status == HORON_OK)
        status = find_rows(library, op_rows, HORON_REDOP_COUNT, process.ops, error);
    return status;
}

static void read_version(struct horon_mpi_library *library)
{
    char *text = horon_zalloc(1, 8192); /* MPICH's say up to so much */
    int length = 0;
    if (text && library->mpi.get_library_version(text, &length) == HORON_MPI_SUCCESS) {
        text[strcspn(text, "\n\r")] = 0;
        for (char *c = text; *c; c++)
            *c = *c == '\t' ? ' ' : *c;
        snprintf(library->version, sizeof library->version, "%.95s", text);
    }
    horon_free(text);
}

/* A library of MPI 5 has the call whatever its ABI, and says so by it. */
static const struct horon_mpi_family *family_of(void *image)
{
    int (*get_version)(int *major, int *minor) = NULL;
    void *address = dlsym(image, "MPI_Abi_get_version");
    int major = 0, minor = 0;
    memcpy(&get_version, &address, sizeof address);
    if (get_version && get_version(&major, &minor) == HORON_MPI_SUCCESS && major > 0)
        return &families[STANDARD];
    return &families[dlsym(image, world_row.symbol) ? OPEN_MPI : MPICH];
}

static horon_status_t open_and_find(const char *file, const char *launcher,
                                    struct horon_error *error)
{
    struct horon_mpi_library *library = &process.library;
    void *image = NULL;
    const bool is_here = horon_mpi_is_here();
    horon_status_t status = horon_mpi_open(file, launcher, process.file, &image, error);
    if (status != HORON_OK)
        return status;
    library->of_program = is_here;
    library->image = image;
    library->file = process.file;
    library->family = family_of(library->image);
    status = find_calls(library, error);
    if (status == HORON_OK)
        status = find_objects(library, error);
    if (status != HORON_OK)
        return status;
    read_version(library);
    process.loaded = true;
    return HORON_OK;
}

horon_status_t horon_mpi_load(const char *file, const char *launcher,
                              struct horon_mpi_library **library_out, struct horon_error *error)
{
    struct horon_error why = {0};
    const horon_status_t status = process.loaded ? HORON_OK : open_and_find(file, launcher, &why);
    const bool prefix = status == HORON_ERR_UNSUPPORTED && file[0];
    if (status != HORON_OK)
        return horon_error_set(error, status, "%s%s", prefix ? "HORON_MPI_LIBRARY=" : "", why.text);
    *library_out = &process.library;
    return HORON_OK;
}

bool horon_mpi_has_ended(const struct horon_mpi_library *library)
{
    int ended = horon_mpi_gate_is_closed();
    if (!ended)
        library->mpi.finalized(&ended);
    return ended;
}

/* ---- handles --------------------------------------------------------------------------------- */

static horon_status_t make_half(horon_dtype_t dtype, struct horon_error *error)
{
    const struct horon_mpi_library *library = &process.library;
    horon_mpi_handle made = 0;
    int code = library->mpi.type_contiguous(1, process.types[HORON_UINT16], &made);
    if (code == HORON_MPI_SUCCESS)
        code = library->mpi.type_commit(&made);
    if (code != HORON_MPI_SUCCESS)
        return horon_mpi_failed(library, "MPI_Type_contiguous", code, error);
    process.types[dtype] = made;
    return HORON_OK;
}

static void free_kept(void)
{
    for (int i = 0; i < HORON_MPI_KEPT_MAX; i++) {
        if (process.kept[i])
            process.library.mpi.comm_free(&process.kept[i]);
        process.kept[i] = 0;
    }
}

void horon_mpi_keep_comms(const struct horon_mpi_library *library, const horon_mpi_handle *comms,
                          int count)
{
    assert(library == &process.library);
    assert(count <= HORON_MPI_KEPT_MAX);
    for (int i = 0; i < count; i++) {
        if (!comms[i])
            continue;
        assert(!process.kept[i]); /* a context that has any has made handles */
        process.kept[i] = comms[i];
    }
}

horon_status_t horon_mpi_make_handles(const struct horon_mpi_library *library,
                                      struct horon_error *error)
{
    assert(library == &process.library);
    free_kept();
    if (process.has_handles)
        return HORON_OK;
    horon_status_t status = make_half(HORON_FLOAT16, error);
    if (status == HORON_OK)
        status = make_half(HORON_BFLOAT16, error);
    for (int redop = 0; redop < HORON_REDOP_COUNT && status == HORON_OK; redop++) {
        if (!combines[redop])
            continue;
        const int code = library->mpi.op_create(combines[redop], 1, &process.own_ops[redop]);
        if (code != HORON_MPI_SUCCESS)
            status = horon_mpi_failed(library, "MPI_Op_create", code, error);
    }
    process.has_handles = status == HORON_OK;
    return status;
}

/* MPICH counts what is left when it ends. */
void horon_mpi_free_handles(const struct horon_mpi_library *library)
{
    const struct horon_mpi_calls *mpi = &library->mpi;
    free_kept();
    if (!process.has_handles)
        return;
    assert(library == &process.library);
    mpi->type_free(&process.types[HORON_FLOAT16]);
    mpi->type_free(&process.types[HORON_BFLOAT16]);
    for (int redop = 0; redop < HORON_REDOP_COUNT; redop++)
        if (combines[redop])
            mpi->op_free(&process.own_ops[redop]);
    process.has_handles = false;
}

horon_mpi_handle horon_mpi_type(const struct horon_mpi_library *library, horon_dtype_t dtype)
{
    assert(library == &process.library);
    return process.types[dtype];
}

horon_mpi_handle horon_mpi_op(const struct horon_mpi_library *library, horon_dtype_t dtype,
                              horon_redop_t redop)
{
    assert(library == &process.library);
    assert(redop != HORON_AVERAGE);
    return is_mpis(dtype, redop) ? process.ops[redop] : process.own_ops[redop];
}

int horon_mpi_see_level(const struct horon_mpi_library *library, bool *main_out)
{
    const int *levels = library->family->levels;
    int said = 0, main = 0, level = HORON_MPI_SINGLE;
    library->mpi.query_thread(&said);
    library->mpi.is_thread_main(&main);
    while (level < HORON_MPI_MULTIPLE && said >= levels[level + 1])
        level++;
    *main_out = main;
    return level;
}

horon_status_t horon_mpi_see_place(const struct horon_mpi_library *library, horon_mpi_handle comm,
                                   int *rank_out, int *size_out, struct horon_error *error)
{
    int code = library->mpi.comm_rank(comm, rank_out);
    if (code == HORON_MPI_SUCCESS)
        code = library->mpi.comm_size(comm, size_out);
    return code == HORON_MPI_SUCCESS ? HORON_OK
                                     : horon_mpi_failed(library, "MPI_Comm_rank", code, error);
}

horon_status_t horon_mpi_failed(const struct horon_mpi_library *library, const char *call, int code,
                                struct horon_error *error)
{
    char text[1024] = ""; /* MPI_MAX_ERROR_STRING is 256 in Open MPI, 512 in MPICH */
    int length = 0;
    if (library->mpi.error_string(code, text, &length) != HORON_MPI_SUCCESS)
        snprintf(text, sizeof text, "code %d", code);
    for (char *c = text; *c; c++) /* MPICH's has lines */
        *c = *c == '\n' ? ' ' : *c;
    return horon_error_set(error, HORON_ERR_SYSTEM, "%s() of %s failed: %.500s", call,
                           library->family->name, text);
}
