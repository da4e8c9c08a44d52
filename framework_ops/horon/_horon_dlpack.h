/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of DLPack 1.x that we read and write, declared here so that no framework's header is
 * needed. Layouts are the public ABI (dmlc/dlpack); names are ours.
 */
#ifndef HORON_PY_DLPACK_H
#define HORON_PY_DLPACK_H

#include <stdint.h>

enum dlpack_device { DLPACK_CPU = 1, DLPACK_CUDA_HOST = 3, DLPACK_ROCM_HOST = 11 };

enum dlpack_code {
    DLPACK_INT = 0,
    DLPACK_UINT = 1,
    DLPACK_FLOAT = 2,
    DLPACK_BFLOAT = 4,
    DLPACK_COMPLEX = 5,
    DLPACK_BOOL = 6,
    DLPACK_FLOAT8_E4M3FN = 10,
    DLPACK_FLOAT8_E5M2 = 12
};

struct dlpack_tensor {
    void *data;
    int32_t device_type;
    int32_t device_id;
    int32_t ndim;
    uint8_t dtype_code;
    uint8_t dtype_bits;
    uint16_t dtype_lanes;
    int64_t *shape;   /* [ndim] */
    int64_t *strides; /* [ndim] elements; NULL: contiguous */
    uint64_t byte_offset;
};

/* Capsule "dltensor". */
struct dlpack_managed {
    struct dlpack_tensor tensor;
    void *manager;
    void (*deleter)(struct dlpack_managed *self);
};

#define DLPACK_READ_ONLY 1u

/* Capsule "dltensor_versioned". */
struct dlpack_versioned {
    uint32_t major, minor;
    void *manager;
    void (*deleter)(struct dlpack_versioned *self);
    uint64_t flags;
    struct dlpack_tensor tensor;
};

/* Capsule "dlpack_exchange_api" in a type's __dlpack_c_exchange_api__. A tensor is described
 * without being managed: the description is valid while the object lives and is not changed. */
struct dlpack_exchange {
    uint32_t major, minor;
    struct dlpack_exchange *prev;
    void *allocator;
    void *managed_from_object;
    void *managed_to_object;
    int (*tensor_from_object)(void *object, struct dlpack_tensor *out); /* may be NULL */
    void *current_stream;
};

#endif
