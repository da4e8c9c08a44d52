/* SPDX-License-Identifier: Apache-2.0 */
/**
 * horon: collective communication by name. The C ABI, and its manual.
 *
 * N processes (ranks 0..N-1) of one job each create a context. A rank submits *operations*; each is
 * matched with the same operation on the other ranks, by its name (any order, any thread) or, with
 * HORON_IN_ORDER, by its place in the sequence. What is ready everywhere is fused and carried out
 * by a progress thread of the context, or by the thread that waits for the result.
 *
 *     horon_context_t *ctx;
 *     char why[HORON_ERROR_TEXT_BYTES];
 *     if (horon_context_create(NULL, &ctx, why, sizeof why) != HORON_OK) {
 *         fputs(why, stderr);
 *         exit(1);
 *     }
 *     horon_descriptor_t d = HORON_DESCRIPTOR_INIT;
 *     d.verb = HORON_ALLREDUCE; d.name = "loss"; d.dtype = HORON_FLOAT32; d.redop = HORON_AVERAGE;
 *     d.src = d.dst = &loss; d.count = 1;
 *     if (horon_run(ctx, &d, -1, why, sizeof why) != HORON_OK) fputs(why, stderr);
 *     horon_context_destroy(ctx);
 *
 * Conventions, stated once; a declaration tells the exceptions:
 *  - Status: 0 is done, > 0 is "not yet", < 0 failed. Outputs are set on success only, unless a
 *    declaration says otherwise. Nothing aborts, exits, raises a signal or lets an exception out.
 *  - Sizes: every struct that may grow begins with struct_bytes = sizeof the caller's struct; a
 *    field that the caller's version lacks has its default. A field that this library lacks must
 *    be 0: ERR_INVALID tells where one is set. Counts are elements, 64 bits, never
 *    bytes unless the name ends in _bytes. Times are milliseconds; a negative timeout is no
 *    limit.
 *  - Shape: [n] is an array of n elements, and may be NULL if n is 0. An output parameter is not
 *    NULL. Texts end with a 0 byte.
 *  - Owner: what the caller passes stays the caller's, and is not kept beyond the call; pointers
 *    returned are horon's, read only, and live as long as said.
 *  - Thread: any thread, unless said. Blocks: no, unless said. No call may be made from a signal
 *    handler. In a forked child every call fails with HORON_ERR_FORKED.
 *  - Failure: a refused call or a mismatch between named operations concerns those alone. What
 *    leaves the ranks' sequences unequal fails a process set, on all its ranks and for good: a
 *    broken promise of order (ERR_MISMATCH), an in-order operation given up (ERR_TIMEOUT), no
 *    memory in the middle of an operation (ERR_MEMORY). Every pending and every later operation on
 *    it then ends with that status and the same text; other sets work on. A lost rank
 *    (ERR_PEER_LOST) fails the sets that it is in, and no others. STALL_SHUTDOWN_TIME has a rank
 *    fail all its sets (ERR_TIMEOUT), if others lack a named operation for so long. Set 0 holds all
 *    ranks, so "the job has failed" says that set 0 has; no set can be added or removed then.
 *  - A rank whose process is stopped (SIGSTOP, a debugger) may go on: others wait for it as long as
 *    their timeouts say, and STALL_WARN has them log its rank and host. A host that answers nothing
 *    for PEER_TIMEOUT is lost.
 *  - NULL for an object (context, request) gives HORON_ERR_INVALID, and does nothing in the calls
 *    that destroy or release.
 *  - Errors: a call that returns a status gives ERR_INVALID for what its declaration excludes,
 *    besides what it lists. Other calls cannot fail, or name the value that says so.
 *  - Source: ranks, requests and verbs mean what MPI's do; names, average, local and cross rank
 *    what Horovod's do; the rest is horon's own.
 */
#ifndef HORON_HORON_H
#define HORON_HORON_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define HORON_API __attribute__((visibility("default")))
#else
#define HORON_API
#endif

#define HORON_VERSION_MAJOR 0
#define HORON_VERSION_MINOR 1
#define HORON_VERSION_PATCH 0

/** Enough for any error text of horon, its final 0 included. */
#define HORON_ERROR_TEXT_BYTES 1024

/* One row a status: name, value, text. The enum below and horon_status_text() are made of it. */
#define HORON_STATUS_MAP(X)                                                                        \
    X(OK, 0, "success")                                                                            \
    X(IN_PROGRESS, 1, "not finished; poll again")                                                  \
    X(AGAIN, 2, "would block; try again")                                                          \
    X(ERR_INVALID, -1, "an argument is not valid")                                                 \
    X(ERR_MEMORY, -2, "out of memory, or a limit on it was reached")                               \
    X(ERR_PROTO, -3, "a peer sent bytes the protocol forbids")                                     \
    X(ERR_MISMATCH, -4, "ranks disagree about an operation")                                       \
    X(ERR_DUPLICATE, -5, "an operation of this name is already in flight")                         \
    X(ERR_PEER_LOST, -6, "a rank of the job is gone")                                              \
    X(ERR_TIMEOUT, -7, "the time limit has passed")                                                \
    X(ERR_CANCELLED, -8, "the operation was cancelled")                                            \
    X(ERR_CLOSED, -9, "the context, or a peer's context, was shut down")                           \
    X(ERR_SYSTEM, -10, "the operating system refused")                                             \
    X(ERR_UNSUPPORTED, -11, "not supported")                                                       \
    X(ERR_AUTH, -12, "a peer could not prove the job key")                                         \
    X(ERR_FORKED, -13, "the context belongs to the parent process")                                \
    X(ERR_CONFIG, -14, "a setting is not valid")

typedef enum horon_status {
#define HORON_STATUS_ROW(name, value, text) HORON_##name = (value),
    HORON_STATUS_MAP(HORON_STATUS_ROW)
#undef HORON_STATUS_ROW
} horon_status_t;

/* What a failure is about: a program looks here to know what to do. One row a cause, as above; the
 * text is that of horon_cause_text(). `rank` and `other_rank` are those of horon_failure_t. */
#define HORON_CAUSE_MAP(X)                                                                         \
    X(NONE, 0, "nothing failed")                                                                   \
    /* of this program, or of how the job was started: to be mended there */                       \
    X(ARGUMENT, 1, "the call, or what it was given, is wrong")                                     \
    X(SETTING, 2, "a setting is wrong, or ranks have different settings or versions")              \
    X(KEY, 3, "a peer could not prove the job key")                                                \
    X(VERB, 4, "ranks called different verbs by one name")                                         \
    X(DESCRIPTION, 5, "ranks describe an operation differently")                                   \
    X(GROUP, 6, "ranks put an operation into different groups")                                    \
    X(ORDER, 7, "ranks began different sequences of in-order operations")                          \
    /* of a rank: start the job again, without that rank or when it can be reached */              \
    X(ABSENT, 8, "a rank did not come, or could not join")                                         \
    X(DIED, 9, "the process of a rank ended without leaving the job")                              \
    X(SILENT, 10, "a rank does not answer: its process, its host or the network")                  \
    X(EXITING, 11, "a rank said that its process exits")                                           \
    X(LEFT, 12, "a rank has shut down its context")                                                \
    X(RESOURCE, 13, "memory, or another resource of the system, was refused")                      \
    X(PROTOCOL, 14, "a rank sent what the protocol forbids")                                       \
    /* asked for */                                                                                \
    X(TIME_LIMIT, 15, "a time limit has passed")                                                   \
    X(CANCELLED, 16, "it was withdrawn")                                                           \
    X(CLOSED, 17, "this context was shut down")                                                    \
    /* of a rank: it has no more data */                                                           \
    X(JOINED, 18, "a rank has joined, and the operation needs it")

typedef enum horon_cause {
#define HORON_CAUSE_ROW(name, value, text) HORON_CAUSE_##name = (value),
    HORON_CAUSE_MAP(HORON_CAUSE_ROW)
#undef HORON_CAUSE_ROW
} horon_cause_t;

/**
 * Element types. All of them move; the ones marked R also reduce. 16-bit floats sum in 32 bits.
 * Among Gloo's ranks a sum of booleans is one of bytes, as torch's there: 2 of two that are true,
 * and 0 of 256; a reduce-scatter makes of each that is not 0 a 1.
 */
typedef enum horon_dtype {
    HORON_UINT8 = 0,       /* R */
    HORON_INT8 = 1,        /* R */
    HORON_UINT16 = 2,      /* R */
    HORON_INT16 = 3,       /* R */
    HORON_UINT32 = 4,      /* R */
    HORON_INT32 = 5,       /* R */
    HORON_UINT64 = 6,      /* R */
    HORON_INT64 = 7,       /* R */
    HORON_FLOAT16 = 8,     /* R */
    HORON_BFLOAT16 = 9,    /* R */
    HORON_FLOAT32 = 10,    /* R */
    HORON_FLOAT64 = 11,    /* R */
    HORON_BOOL = 12,       /* R: sum and max are "or", product and min are "and"; no average */
    HORON_COMPLEX64 = 13,  /* two float32 */
    HORON_COMPLEX128 = 14, /* two float64 */
    HORON_FLOAT8_E4M3 = 15,
    HORON_FLOAT8_E5M2 = 16
} horon_dtype_t;
#define HORON_DTYPE_COUNT 17

typedef enum horon_verb {
    HORON_ALLREDUCE = 0, /* every rank gets the reduction of all ranks' src */
    HORON_BROADCAST = 1, /* every rank's dst gets root's src */
    HORON_ALLGATHER = 2, /* every rank gets all ranks' src, joined in dimension 0 in rank order */
    HORON_BARRIER = 3,   /* ends once every rank has begun it; moves nothing */
    HORON_ALLTOALL = 4,  /* every rank gives rows of its src to each rank, as its splits say; every
                            rank gets what all give it, joined in rank order */
    HORON_GATHER = 5,    /* root gets all ranks' src, joined in dimension 0 in rank order */
    HORON_SCATTER = 6,   /* every rank gets its rows of root's src, as root's splits say */
    /* Every rank gets its rows, in dimension 0, of the reduction of all ranks' src: the first ones
     * go to rank 0, the next to rank 1 and so on, as splits says, which all ranks give alike */
    HORON_REDUCESCATTER = 7,
    HORON_REDUCE = 8, /* root gets the reduction of all ranks' src */
    /* A message: src goes to root, or dst comes from root. The n-th that a rank sends to another
     * with a tag is the n-th that this one receives from it with the tag, whatever goes between
     * them with other tags. Both say the same count and dtype: if they do not, the receive fails
     * with ERR_MISMATCH, and so does the send unless it has ended before, as a short one may. A
     * message has no name, is in no group and in no order with other operations: neither waits for
     * the other. A send has ended when src may be used again; it may not be received yet, but will
     * be, even if this rank shuts down its context then */
    HORON_SEND = 9,
    HORON_RECV = 10
} horon_verb_t;
#define HORON_VERB_COUNT 11

/**
 * Reductions. Integers wrap; the average of integers is the sum divided, cut towards zero. MIN and
 * MAX of floats: a NaN anywhere gives a NaN; -0 is below +0. BIT_AND, BIT_OR and BIT_XOR combine
 * the bits of integers, and booleans; floats have none of them. The order of additions is one fixed
 * binary tree over the ranks, so that all ranks, runs and algorithms give the same bits.
 */
typedef enum horon_redop {
    HORON_SUM = 0,
    HORON_AVERAGE = 1,
    HORON_MIN = 2,
    HORON_MAX = 3,
    HORON_PRODUCT = 4,
    HORON_BIT_AND = 5,
    HORON_BIT_OR = 6,
    HORON_BIT_XOR = 7
} horon_redop_t;
#define HORON_REDOP_COUNT 8

/** Where the buffers of an operation lie. All ranks must agree. */
typedef enum horon_memory {
    HORON_MEMORY_ASK = 0, /* horon asks what kind the pointers are of; host memory in this build */
    HORON_MEMORY_HOST = 1,
    HORON_MEMORY_CUDA = 2 /* of a CUDA device; not in this build */
} horon_memory_t;
#define HORON_MEMORY_COUNT 3

/** What horon_wait() and horon_test() wait for. On tensors in host memory both mean the same. */
typedef enum horon_completion {
    HORON_HOST_DONE = 0,  /* the result may be read by the host */
    HORON_STREAM_DONE = 1 /* the operation is launched, and later work on the descriptor's stream is
                             ordered after it */
} horon_completion_t;

typedef enum horon_log_level {
    HORON_LOG_ERROR = 0,
    HORON_LOG_WARN = 1, /* one an incident */
    HORON_LOG_INFO = 2,
    HORON_LOG_DEBUG = 3, /* one an object */
    HORON_LOG_TRACE = 4  /* one a message */
} horon_log_level_t;

typedef struct horon_context horon_context_t; /* one rank's membership of one job */
typedef struct horon_request horon_request_t; /* one submitted or prepared operation */

/**
 * Receives each log line, without a newline, instead of standard error.
 * Thread: any, several at once. It must not call horon. @p text is valid during the call only.
 */
typedef void (*horon_log_fn_t)(void *arg, horon_log_level_t level, const char *text);

/**
 * Called once each time an operation ends, after its outputs are complete and it can be tested;
 * in the order in which operations end. horon_context_destroy() returns after the last of them.
 * Thread: the context's own, with no lock held. Keep it short: while it runs, operations move on in
 * threads that wait only, and slowly. It may submit, start, test and release @p req; it must not
 * wait (refused with ERR_INVALID) or destroy the context. @p req is NULL if the operation was begun
 * by horon_run() or horon_run_messages(), which return after the callback.
 */
typedef void (*horon_callback_fn_t)(void *arg, horon_request_t *req, horon_status_t status);

/**
 * Gives memory for an output whose size is known only now (see horon_descriptor_t.dst).
 * @param rows     rows of the output: the sum over ranks
 * @param bytes    bytes needed, > 0
 * @return memory of @p bytes bytes that stays valid until the operation ends, or NULL to fail it on
 *         this rank, with ERR_MEMORY; the other ranks get their output
 * Thread: the one making progress; it must not call horon.
 */
typedef void *(*horon_alloc_fn_t)(void *arg, uint64_t rows, uint64_t bytes);

/**
 * Asked whether to give up joining: a binding looks here whether its user has pressed Ctrl-C.
 * Thread: the one in horon_context_create(), about every 100 ms while that waits, with no lock
 * held; never after it has returned. It may call horon, which has no such context yet; it must not
 * leave by longjmp or an exception, or in a forked child.
 * @return 0: go on. Other than 0 ends the creation with HORON_ERR_CANCELLED; on the other ranks
 *         that are joining, too, where the text names this one
 */
typedef int (*horon_interrupted_fn_t)(void *arg);

/** How to create a context. Begin with HORON_OPTIONS_INIT. */
typedef struct horon_options {
    size_t struct_bytes;
    int32_t rank; /* -1: from the environment (horonrun, Slurm, PMI, Open MPI, torchrun, Horovod) */
    int32_t size; /* -1: likewise; with nothing found, a world of one */
    /* NULL, or a NULL-ended list of "NAME=value" that goes before the environment; NAME is a row of
     * the option table, without HORON_ (see horon-info --config). Copied. */
    const char *const *settings;
    horon_log_fn_t log_fn; /* NULL: standard error */
    void *log_arg;
    /* The first struct ended here. */
    horon_interrupted_fn_t interrupted; /* NULL: nothing interrupts joining */
    void *interrupted_arg;
    /* NULL, or the address of a communicator of MPI: the job is its ranks, numbered as in it, and
     * no variable has a say; rank and size are -1. But ERR_CONFIG, if what started the process says
     * that it started several, and MPI_COMM_WORLD has one: MPI does not know the launcher.
     * `MPI_Comm comm; ... .mpi_comm = &comm`, whatever type the program's MPI makes of MPI_Comm.
     * MPI has begun; all ranks of the communicator give it, in the same order as their other
     * collectives on it, and in a thread that may call MPI then. It is used to tell where the ranks
     * meet, and by which key, and is the program's again when the call returns. No
     * intercommunicator, and of ranks of MPI_COMM_WORLD alone. Disjoint communicators, or one after
     * the other, are jobs that know nothing of each other */
    const void *mpi_comm;
} horon_options_t;
/* clang-format off */
#define HORON_OPTIONS_INIT {sizeof(horon_options_t), -1, -1, NULL, NULL, NULL, NULL, NULL, NULL}
/* clang-format on */

/* Flags of a descriptor. */
/** Every rank submits its in-order operations of a process set in the same sequence; they are not
 * negotiated, and a name is optional. A rank that breaks the promise is named by the first peer
 * that meets its data (HORON_ERR_MISMATCH), if the two operations differ in verb, dtype, reduction,
 * root, scale, shape or name. Two that are alike in all of these cannot be told from each other: if
 * ranks swap them, each gets the other's result. Give names to such operations where their order
 * is in doubt. In-order and named operations do not order each other. */
#define HORON_IN_ORDER 1u

/** One operation. Begin with HORON_DESCRIPTOR_INIT; the strings and shape are copied. */
typedef struct horon_descriptor {
    size_t struct_bytes;
    uint32_t verb;  /* horon_verb_t */
    uint32_t dtype; /* horon_dtype_t */
    uint32_t redop; /* horon_redop_t; of verbs that reduce only */
    uint32_t flags; /* HORON_IN_ORDER or 0 */
    /* What matches operations across ranks: 1..511 bytes, UTF-8 by custom, not beginning with
     * "horon.barrier.". NULL with HORON_IN_ORDER, and for HORON_BARRIER alone, which then
     * matches barriers by their count; one that was withdrawn does not count. NULL for HORON_SEND
     * and HORON_RECV, which go by root and tag. Each process set has
     * names of its own; on set 0 "horon.process_set" and what begins so is horon's. A longer one is
     * refused: a binding whose users may give any shortens it, alike on all ranks (that of Python
     * keeps its beginning, and ends it in '#' and a hash of the whole). */
    const char *name;
    /* Input: [count] elements; equal to dst (in place) or disjoint from it. HORON_ALLGATHER, and
     * HORON_GATHER on root: it may also lie whole within the dst_count elements of dst, anywhere;
     * where this rank's rows have their place in the output they stay, and else they are moved
     * there. HORON_BROADCAST and HORON_SCATTER: only root reads it. HORON_ALLTOALL is never in
     * place: what comes from a rank may be longer than what goes to it */
    const void *src;
    /* Output: as many elements as src. Where the ranks decide together how many come
     * (HORON_ALLGATHER, HORON_ALLTOALL, HORON_GATHER on root, HORON_SCATTER) it has dst_count; or
     * it is NULL: alloc is asked, and if that is NULL the request owns the output until it is
     * released (see horon_request_output). HORON_GATHER and HORON_REDUCE: the other ranks get
     * nothing. HORON_REDUCESCATTER, HORON_SCATTER on root: this rank's rows; it may also begin
     * where these do in src, of which the other ranks' rows then stay as they are */
    void *dst;
    uint64_t count; /* elements of src, if shape is NULL; 0 is allowed and still meets the others */
    /* [ndim] or NULL: then one dimension of count elements. All dimensions must agree on all ranks,
     * but the first one where the ranks decide how many elements come. HORON_SCATTER: the first
     * one, or count, is root's alone */
    const uint64_t *shape;
    int32_t ndim;        /* 0..HORON_NDIM_MAX; 0 with shape set is a scalar of one element */
    int32_t root;        /* rank in the process set; of verbs that have one. Of a message the other
                            rank: none can send to itself */
    int32_t process_set; /* 0: all ranks; else one that horon_process_set_add() gave */
    int32_t reserved;    /* 0 */
    double prescale;     /* each input is multiplied by it before the reduction, ... */
    double postscale;    /* ... and the result after it; both rounded to dtype. Must agree */
    void *stream;        /* device stream that produces src and uses dst; NULL: the default stream
                            of the device. Host memory has none */
    horon_alloc_fn_t alloc;
    void *alloc_arg;
    horon_callback_fn_t callback; /* NULL: none */
    void *callback_arg;
    /* Elements that dst has room for, where the ranks decide together how many come: what does not
     * fit fails the operation on this rank with ERR_MEMORY, and nothing is written. Likewise of
     * HORON_REDUCESCATTER, where too few are ERR_INVALID. Needed with dst: 0 beside a dst that is
     * not NULL is ERR_INVALID, even if nothing comes, unless a row has no elements. Callers of a
     * version without it have no room */
    uint64_t dst_count;
    uint32_t memory; /* horon_memory_t of src and dst */
    int32_t device;  /* number of the device in whose memory they lie; 0 for host memory */
    /* [size] rows of src for each rank: they add up to those of src; copied. HORON_ALLTOALL, root
     * of HORON_SCATTER, and HORON_REDUCESCATTER, where all ranks must agree. NULL: as many for
     * each; of HORON_ALLTOALL that must come out even, of the others the first ranks get one more
     * if it does not. Among Gloo's ranks also HORON_ALLGATHER: the rows that each rank gives, the
     * same on all, which nobody tells there; NULL: as many as this rank */
    const uint64_t *splits;
    uint64_t tag; /* of a message: any number; those of one tag are in order */
} horon_descriptor_t;
/* clang-format off */
#define HORON_DESCRIPTOR_INIT                                                                      \
    {sizeof(horon_descriptor_t), 0, 0, 0, 0, NULL, NULL, NULL, 0, NULL, 0, 0, 0, 0, 1.0, 1.0,      \
     NULL, NULL, NULL, NULL, NULL, 0, 0, 0, NULL, 0}
/* clang-format on */
#define HORON_NDIM_MAX 8
#define HORON_NAME_BYTES_MAX 511

/** What a failure's text says, for programs. Begin with HORON_FAILURE_INIT. */
typedef struct horon_failure {
    size_t struct_bytes;
    int32_t status; /* horon_status_t; OK: nothing failed, and all below is 0, -1 or "" */
    int32_t cause;  /* horon_cause_t */
    /* Where the cause lies: the rank that is gone, that lacks something, or whose time limit has
     * passed; the lower one of two that differ. -1: none, or not known */
    int32_t rank;
    /* The second one that differs, or the first that `rank` waited for; or -1 */
    int32_t other_rank;
    const char *host; /* of `rank`, or "" */
    const char *name; /* of the operation; "" if it is in order, or it is no single one */
    const char *text; /* the same for people */
    /* Of an operation in place, that is, whose dst takes src's place: 1, it may have written over
     * its input before it failed; 0, the input is as it was. Out of place it always is */
    int32_t input_lost;
} horon_failure_t;
/* clang-format off */
#define HORON_FAILURE_INIT {sizeof(horon_failure_t), 0, 0, -1, -1, "", "", "", 0}
/* clang-format on */

/* ---- The library -------------------------------------------------------------------------- */

/** @return the text of @p status from HORON_STATUS_MAP, or "unknown status". Static. */
HORON_API const char *horon_status_text(horon_status_t status);

/** @return the text of @p cause from HORON_CAUSE_MAP, or "unknown cause". Static. */
HORON_API const char *horon_cause_text(horon_cause_t cause);

/** @return "MAJOR.MINOR.PATCH" of the library in use. Static. */
HORON_API const char *horon_version(void);

/** @return MAJOR * 10000 + MINOR * 100 + PATCH of the library in use. */
HORON_API int32_t horon_version_number(void);

/**
 * Asks whether this library has a feature: "allreduce", "broadcast", "allgather", "barrier",
 * "alltoall", "gather", "scatter", "reducescatter", "reduce", "send", "recv", "persistent",
 * "in_order", "process_sets", "join", "shm", "tcp", "timeline", "cuda", and of
 * backends "native", "mpi", "gloo", "nccl".
 * @return 1 it has, 0 it has not, or the name is not known
 */
HORON_API int32_t horon_feature(const char *name);

/** @return bytes of one element, or 0 if @p dtype is no horon_dtype_t. */
HORON_API size_t horon_dtype_bytes(horon_dtype_t dtype);

/** @return "float32" and the like, or "unknown". Static. Likewise below. */
HORON_API const char *horon_dtype_name(horon_dtype_t dtype);
HORON_API const char *horon_verb_name(horon_verb_t verb);
HORON_API const char *horon_redop_name(horon_redop_t redop);

/* ---- A context ---------------------------------------------------------------------------- */

/**
 * Joins the job: learns rank and size, meets the other ranks, connects, starts the progress thread.
 * Every rank of the job calls it. Several contexts may live in one process.
 * @param options NULL for all defaults
 * @param ctx_out set on OK only; end it with horon_context_destroy()
 * @param error_text, error_bytes  NULL, 0 or where to put what went wrong, cut to fit; "" on OK
 * @return OK | ERR_CONFIG, a setting is wrong; named | ERR_TIMEOUT, ranks are missing after
 *         START_TIMEOUT; named | ERR_PEER_LOST, a rank has ended meanwhile | ERR_AUTH, a peer does
 *         not know the job key | ERR_MEMORY, heap or shared memory was refused | ERR_CANCELLED,
 *         interrupted() of this rank, or of one that is named, said so | ERR_SYSTEM | ERR_PROTO |
 *         ERR_INVALID
 * Blocks: until all ranks are here, at most START_TIMEOUT. If it fails, at most three seconds more,
 * and six besides where rank 0 serves the store, until the others know why. Names are looked up
 * besides.
 */
HORON_API horon_status_t horon_context_create(const horon_options_t *options,
                                              horon_context_t **ctx_out, char *error_text,
                                              size_t error_bytes);

/**
 * Leaves the job. Operations still pending here fail with ERR_CLOSED; on other ranks those that
 * need this rank do, with its name. Requests stay valid until released, in any order with this.
 * Blocks: until the other ranks have taken what this one sent, usually some milliseconds. It gives
 * up when they have taken nothing more of it for PEER_TIMEOUT, or for 1 s if the job has failed;
 * and after ten times that in any case.
 * Thread: any, but no other call on @p ctx may run or follow.
 * In a forked child it frees what the child holds and touches nothing of the parent's.
 */
HORON_API void horon_context_destroy(horon_context_t *ctx);

/**
 * Says that this process is about to exit, and why, before it does: the job fails on all ranks,
 * with ERR_PEER_LOST and a text that names this rank and @p reason. If it has failed already, for
 * another rank, waits until a rank has ended and, on this host, its parent has asked how, and half
 * a second more: the launcher then sees that rank fail first. The context stays as it is, and ends
 * with the process: horon_context_destroy() would tell the others so before that.
 * @param reason what the process exits with; cut to fit
 * @return OK | ERR_INVALID, an argument is NULL | ERR_CLOSED | ERR_FORKED
 * Where the program has begun MPI, of several ranks, and not ended it, that wait, but for 1 s,
 * comes when the process exits: the rank that failed may be in MPI_Finalize(), until this one comes
 * there.
 * Blocks: shortly, to tell the others; at most 10 s for the end of another, and 5 s for its parent,
 * of which it warns after 1 s. Thread: any.
 */
HORON_API horon_status_t horon_context_exit(horon_context_t *ctx, const char *reason);

/**
 * Leaves the job when the process exits: with status 0 as horon_context_destroy() does, else as
 * horon_context_exit() with that status. Operations still pending here fail at once. A binding
 * whose language has exit handlers of its own calls it there: exit() comes after them. But where an
 * MPI_Finalize() of several ranks is to come, as above, and the job has not failed, it leaves at
 * once: the others would wait for this rank, and it for them.
 * Blocks: as those two, within exit(). Thread: any, but no other call on @p ctx may run or follow.
 */
HORON_API void horon_context_destroy_at_exit(horon_context_t *ctx);

/** @return this rank, 0..size-1; -1 for NULL. The five below likewise; none can change. */
HORON_API int32_t horon_rank(const horon_context_t *ctx);
HORON_API int32_t horon_size(const horon_context_t *ctx);
/** Rank among the ranks of this host, in rank order. A host is what shares memory. */
HORON_API int32_t horon_local_rank(const horon_context_t *ctx);
HORON_API int32_t horon_local_size(const horon_context_t *ctx);
/** Rank among the ranks that have this local rank, in order of hosts; and how many they are. */
HORON_API int32_t horon_cross_rank(const horon_context_t *ctx);
HORON_API int32_t horon_cross_size(const horon_context_t *ctx);

/** @return hosts of the job, numbered by their lowest rank. */
HORON_API int32_t horon_host_count(const horon_context_t *ctx);
/** @return the host of @p rank, 0..horon_host_count()-1, or -1 if there is no such rank. */
HORON_API int32_t horon_host_of(const horon_context_t *ctx, int32_t rank);
/** @return the name of a host, valid while the context lives; NULL if there is no such host. */
HORON_API const char *horon_host_name(const horon_context_t *ctx, int32_t host);

/**
 * Tells a setting as this context has it: a binding looks here for what it leaves to the user.
 * @param name       a row of the option table, without HORON_
 * @param text_bytes of @p text, where the value is put as a user would write it, cut to fit; a
 *                   secret as "(set)"
 * @return OK | ERR_INVALID, there is no such row
 */
HORON_API horon_status_t horon_setting(const horon_context_t *ctx, const char *name, char *text,
                                       size_t text_bytes);

/**
 * Begins to write what happens to operations to a file, as a Chrome trace with Horovod's rows: for
 * each name NEGOTIATE_<VERB>, from its submission until the ranks have decided, and <VERB>, while
 * it runs. After each write the file is whole JSON, however the process ends; a copy that is made
 * during a write may not be. What comes too fast is counted in a mark, LOST_EVENTS. If the file
 * can be written no more, it ends there, with a warning.
 * @param path        replaced; "%r" stands for the rank, and without it rank 0 alone writes. Ends a
 *                    timeline in another file; one in this file goes on
 * @param mark_cycles 1: with marks, CYCLE_START, when negotiated batches are taken up
 * @return OK | ERR_INVALID, no such path | ERR_SYSTEM, it cannot be written; named with the reason
 *         | ERR_MEMORY | ERR_CLOSED | ERR_FORKED
 * Thread: any. Blocks: until the file is open.
 */
HORON_API horon_status_t horon_timeline_start(horon_context_t *ctx, const char *path,
                                              int32_t mark_cycles);
/** Ends the timeline with all that has happened, as horon_context_destroy() does. @return OK, also
 * if there is none | ERR_INVALID | ERR_CLOSED | ERR_FORKED. Blocks: until it is written. */
HORON_API horon_status_t horon_timeline_stop(horon_context_t *ctx);

/**
 * Tells which backend carries such an operation, as its ranks have agreed; before their first one
 * of that kind, named or in order, as this rank alone would have it.
 * @param desc verb, flags, dtype, redop, memory, count or shape, and process_set count
 * @return its name in the setting BACKEND, a constant; of a message "native" or "gloo"; NULL: none,
 *         also where the descriptor is wrong, or this rank has begun nothing in that process set
 * Thread: any, but no callback. Blocks: until another thread that makes progress gives way.
 */
HORON_API const char *horon_carrier(horon_context_t *ctx, const horon_descriptor_t *desc);

/* ---- Process sets ------------------------------------------------------------------------- */

/**
 * Adds a process set: ranks of the job that carry out operations together, beside the job and other
 * sets and independent of them; a set may share ranks with any others. Its ranks are numbered in
 * the order that they have in the job. Every rank of the job calls this, those outside of the set
 * too, with the same ranks in any order, and in the same sequence with all that it adds and
 * removes; of two threads that call at once one comes after the other. The set is there for all
 * ranks or for none. (A rank that is lost at the very end may leave it there for some of its
 * members only; it fails on those.)
 * @param ranks      [n] of the job, each once; copied
 * @param timeout_ms until all ranks have called
 * @param id_out     the same on all ranks, above 0; ids of removed sets are used again, the one
 *                   that is free for the longest time first
 * @return OK | ERR_INVALID, there is no such set of ranks, there is one of the same ranks, or
 *         DYNAMIC_PROCESS_SETS is 0; if that is so on one rank alone, the others fail with it |
 *         ERR_MISMATCH, ranks add or remove different sets; named | ERR_TIMEOUT, ranks have not
 *         called it; named | ERR_MEMORY, ERR_SYSTEM, a member lacks something; named |
 *         ERR_CLOSED, ERR_PEER_LOST, a rank has left or is lost | ERR_FORKED | what the job failed
 *         with
 * Thread: any, but no callback. Blocks: until all ranks have called and the members have met.
 * Source: process sets after Horovod; their ranks are numbered and their ids used as there.
 */
HORON_API horon_status_t horon_process_set_add(horon_context_t *ctx, const int32_t *ranks, size_t n,
                                               int64_t timeout_ms, int32_t *id_out);

/** What else may be said of a process set. Begin with HORON_PROCESS_SET_OPTIONS_INIT. */
typedef struct horon_process_set_options {
    size_t struct_bytes;
    /* What carries its operations, as the setting BACKEND says it, and of what that names for the
     * job ("native" is always there): BACKEND=native,mpi and "mpi" here leave the job to horon's
     * links and this set to MPI. NULL: as for the job */
    const char *backend;
} horon_process_set_options_t;
/* clang-format off */
#define HORON_PROCESS_SET_OPTIONS_INIT {sizeof(horon_process_set_options_t), NULL}
/* clang-format on */

/**
 * Adds a process set as horon_process_set_add() does, with options.
 * @param options that all ranks give alike; NULL: as without; copied
 * @return as horon_process_set_add(); a backend that the job does not have is ERR_INVALID, and
 *         ranks that give different ones are ERR_MISMATCH, named
 */
HORON_API horon_status_t horon_process_set_add_with(horon_context_t *ctx, const int32_t *ranks,
                                                    size_t n,
                                                    const horon_process_set_options_t *options,
                                                    int64_t timeout_ms, int32_t *id_out);

/**
 * Removes a process set, as every rank of the job does. What a member still has in flight then ends
 * there with ERR_CLOSED, also if others have completed it; a barrier on the set before leaves
 * nothing in flight. Requests stay valid until they are released; one that was prepared cannot be
 * started any more.
 * @param id of a set that horon_process_set_add() or the option PROCESS_SETS has made; 0 stays
 * @return OK | as horon_process_set_add()
 * Thread, Blocks: likewise; while a member on this host does not take what this rank has said to
 * it, or members open what carries an operation of the set, PEER_TIMEOUT at most besides.
 */
HORON_API horon_status_t horon_process_set_remove(horon_context_t *ctx, int32_t id,
                                                  int64_t timeout_ms);

/** @return this rank's number in a process set; -1: it is no member, or there is no such set, or
 * this is a forked child; likewise below. */
HORON_API int32_t horon_process_set_rank(const horon_context_t *ctx, int32_t id);

/** @return how many ranks a process set has; -1: there is no such set. */
HORON_API int32_t horon_process_set_size(const horon_context_t *ctx, int32_t id);

/**
 * Tells the ranks of a process set.
 * @param ranks [n] ranks of the job, in ascending order; as many as there is room for are set
 * @return as horon_process_set_size()
 */
HORON_API int32_t horon_process_set_ranks(const horon_context_t *ctx, int32_t id, int32_t *ranks,
                                          int32_t n);

/**
 * Tells the ids of all process sets, 0 among them.
 * @param ids [n] in ascending order; as many as there is room for are set
 * @return how many sets there are; -1 for NULL
 */
HORON_API int32_t horon_process_set_ids(const horon_context_t *ctx, int32_t *ids, int32_t n);

/* ---- Operations --------------------------------------------------------------------------- */

/**
 * Starts one operation; returns before it is done.
 * @param req_out set on OK only; end it with horon_release() exactly once
 * @return OK, queued | ERR_INVALID, the descriptor is wrong, or this rank is no member of its
 *         process set; the text of @p ctx says how, see horon_last_error | ERR_UNSUPPORTED, dtype
 *         has no such reduction | ERR_DUPLICATE, the name is in flight on this rank |
 *         ERR_MEMORY, INFLIGHT_MAX requests are pending | ERR_CLOSED, shut down | ERR_FORKED |
 *         what the process set failed with
 * Owner:  the caller keeps src and dst alive until the request has ended: horon_wait() returned
 *         other than IN_PROGRESS or ERR_TIMEOUT, or the callback was called.
 * Result: if the operation fails before every rank has begun it, src is unchanged, also in place.
 *         If a rank is lost later, an operation in place may have written over a part of src. dst
 *         is undefined after any failure.
 * Source: contract by name after Horovod; persistent requests after MPI.
 */
HORON_API horon_status_t horon_submit(horon_context_t *ctx, const horon_descriptor_t *desc,
                                      horon_request_t **req_out);

/**
 * Starts @p n operations that become ready together: none is begun anywhere before all of them are
 * ready everywhere. All named, or all in order; of one process set. Errors as horon_submit(); on
 * one, nothing is started.
 * @param descs    [n], one behind another as struct_bytes says, which all have alike
 * @param reqs_out [n] requests, set on OK only
 * Source: grouped operations after Horovod.
 */
HORON_API horon_status_t horon_submit_group(horon_context_t *ctx, const horon_descriptor_t *descs,
                                            size_t n, horon_request_t **reqs_out);

/**
 * Submits one operation and waits for it: the shortest way for a caller that blocks, as nobody else
 * is woken for it. Returns as horon_submit() and horon_wait(); on ERR_TIMEOUT a named operation is
 * withdrawn first, which may take longer than the limit if it has begun. One in order or a message
 * cannot be, nor one of which nothing moves for PEER_TIMEOUT after its limit (a rank was stopped):
 * ERR_TIMEOUT then fails the process set on all its ranks, with a text that says which rank gave up
 * and which it waited for. An operation whose output's size the ranks decide together needs dst or
 * alloc.
 * @param error_text, error_bytes  as in horon_context_create()
 * Blocks: until done or @p timeout_ms.
 */
HORON_API horon_status_t horon_run(horon_context_t *ctx, const horon_descriptor_t *desc,
                                   int64_t timeout_ms, char *error_text, size_t error_bytes);

/**
 * Runs messages: begins @p n HORON_SENDs and HORON_RECVs of one process set, and returns when all
 * have ended. None waits for another one of them, so ranks that send to each other in a ring, each
 * by one call, all get on. Returns as horon_run(); if several fail, what the first of them among
 * @p messages failed with. If one is refused none is begun. In any case the buffers are the
 * caller's again. None at all, n = 0, is OK.
 * @param messages  [n], one behind another as struct_bytes says, which all have alike
 * Blocks: until all are done or @p timeout_ms, after which it fails the process set, as
 * horon_run(). Cost: one send and one receive take less than a horon_submit() of each and a
 * horon_wait_all(). If they run at once, in this thread, they do not count for INFLIGHT_MAX.
 * Source: MPI_Sendrecv, for any number of messages.
 */
HORON_API horon_status_t horon_run_messages(horon_context_t *ctx,
                                            const horon_descriptor_t *messages, size_t n,
                                            int64_t timeout_ms, char *error_text,
                                            size_t error_bytes);

/**
 * Prepares an operation that will be started many times with the same buffers. Errors as
 * horon_submit() but ERR_DUPLICATE, which horon_start() reports.
 * @param req_out not started; end it with horon_release()
 * Owner:  the caller keeps src and dst alive until it is released and has ended.
 */
HORON_API horon_status_t horon_prepare(horon_context_t *ctx, const horon_descriptor_t *desc,
                                       horon_request_t **req_out);

/**
 * Starts a prepared request that is not in flight; about 100 ns of the caller's time on a core.
 * @return OK | ERR_INVALID, it is in flight, was not prepared, or was released (which a callback
 * may not know) | as horon_submit()
 */
HORON_API horon_status_t horon_start(horon_request_t *req);

/** Starts @p n prepared requests with one wake-up. On an error the ones before it are started, and
 * @p n_started_out (may be NULL) says how many. */
HORON_API horon_status_t horon_start_all(horon_request_t *const *reqs, size_t n,
                                         size_t *n_started_out);

/**
 * Asks whether the request has ended, without waiting; it makes progress only where MPI lets the
 * calling thread alone do that.
 * @return OK | IN_PROGRESS | the failure | ERR_INVALID, prepared but never started, or no such kind
 */
HORON_API horon_status_t horon_test(horon_request_t *req, horon_completion_t kind);

/**
 * Waits until the request has ended. May be called by several threads and again after the end. If
 * its callback starts it again, a thread that waited for the run that ended is told how that one
 * ended, also if up to eleven more have ended before that thread has looked.
 * @return OK | the failure | ERR_TIMEOUT, still in flight: it keeps its buffers, wait again or
 *         cancel | ERR_INVALID, prepared but never started, or called from a callback
 * Blocks: at most @p timeout_ms; spins briefly, then yields, then sleeps. The calling thread may
 * carry out any pending operation of the context meanwhile, but no callback.
 */
HORON_API horon_status_t horon_wait(horon_request_t *req, horon_completion_t kind,
                                    int64_t timeout_ms);

/** Waits for all of @p n requests; of one that its callback starts again, for the run that it is in
 * when this is called. @return OK if all ended well, else the first failure in the order of @p reqs
 * once all have ended | ERR_TIMEOUT. Blocks: as horon_wait(). */
HORON_API horon_status_t horon_wait_all(horon_request_t *const *reqs, size_t n,
                                        horon_completion_t kind, int64_t timeout_ms);

/**
 * Asks to withdraw a named operation that has not been begun by all ranks. The request then ends
 * with ERR_CANCELLED, once that is confirmed; or as usual, if it was too late. Wait for it. A run
 * that begins later is not withdrawn.
 * @return OK, asked | ERR_INVALID, not in flight | ERR_UNSUPPORTED, it is in order or a
 *         message: other ranks count on it
 */
HORON_API horon_status_t horon_cancel(horon_request_t *req);

/**
 * Gives the request back. One in flight is let go: it runs on, keeps its buffers, and is freed when
 * it ends; its callback is still called, and cannot start it again. NULL is a no-op.
 */
HORON_API void horon_release(horon_request_t *req);

/** @return why the request failed: rank, host, tensor and cause; "" if it did not. Valid until it
 * is started again or released. */
HORON_API const char *horon_request_error(const horon_request_t *req);

/**
 * Tells the same as data. If the job failed, it is that failure; ranks that each found one at the
 * same time may tell different ones.
 * @param failure_out its strings are valid as long as the text of horon_request_error()
 * @return OK, also if the request did not fail | ERR_INVALID, it has not ended, and
 * horon_last_error() says what it waits for, which other ranks are asked for 50 ms, unless in a
 * callback (horon_last_failure(): HORON_CAUSE_TIME_LIMIT, and the rank that is awaited); or
 * prepared but never started, or struct_bytes is no size of failure_out | ERR_FORKED
 */
HORON_API horon_status_t horon_request_failure(const horon_request_t *req,
                                               horon_failure_t *failure_out);

/**
 * The output of an ended request.
 * @param data_out  NULL or: dst, what alloc gave, or memory of the request (valid until it is
 *                  released or started again, and the caller's to write)
 * @param count_out NULL or elements; 0 on a rank that gets none
 * @param rows_out  NULL or [size of the process set] rows of the output that each of its
 *                  ranks gave, where they decide together how many come; else 0
 * @return OK | ERR_INVALID, it has not ended, or failed
 */
HORON_API horon_status_t horon_request_output(const horon_request_t *req, void **data_out,
                                              uint64_t *count_out, uint64_t *rows_out);

/**
 * This rank has no more data: the others go on without it until every rank has joined. It takes
 * effect once all that this rank has submitted to the process set before has ended; what it submits
 * behind it, another join included, ends with ERR_INVALID, until this join has ended.
 *
 * Meanwhile this rank carries out what the others submit by name, whether it knows the name or not,
 * and keeps nothing of it: it gives the neutral element to a reduction (0 to sums, 1 to products,
 * the greatest or least value to MIN and MAX, all bits to BIT_AND), no rows to HORON_ALLGATHER,
 * HORON_ALLTOALL, HORON_GATHER and HORON_SCATTER, drops its share of a HORON_REDUCESCATTER, and its
 * presence to HORON_BARRIER. An average is divided by all ranks all the same, unless JOIN_AVERAGE
 * says otherwise.
 *
 * What needs this rank's own data ends with ERR_MISMATCH on the others, and HORON_CAUSE_JOINED: an
 * operation of which it is root, a product or a BIT_AND with a prescale, which nothing is neutral
 * to, a HORON_REDUCESCATTER with splits that are not as equal as can be, one in order, and a change
 * of process sets while it has joined that of all ranks. One in order that was begun before its
 * rank heard of the join has broken the promise of one sequence: it fails the job, and names both
 * ranks.
 *
 * The request ends on all ranks once every rank has joined; see horon_join_last(). Then it is as if
 * nobody had, and all may go on, or join again. It fails as an operation does: with the job, or if
 * a rank that has not joined leaves. It can be withdrawn while it waits for what was submitted
 * before; later the others count on it. A limit on the time is that of horon_wait().
 * @param process_set that has no more data of this rank; other sets go on. 0: the set of all ranks
 * @param req_out     set on OK only; end it with horon_release()
 * @return OK | ERR_INVALID, there is no such process set | ERR_MEMORY, INFLIGHT_MAX requests are
 *         pending | ERR_CLOSED | ERR_FORKED | what the job failed with
 * Source: Horovod's join, which knows the set of all ranks only, and allreduce.
 */
HORON_API horon_status_t horon_join(horon_context_t *ctx, int32_t process_set,
                                    horon_request_t **req_out);

/** @return the rank in the process set that joined last, the same on all ranks; -1 if @p join is no
 * join, or has not ended well. */
HORON_API int32_t horon_join_last(const horon_request_t *join);

/** @return ranks that had joined and gave nothing to this operation, which has ended; else 0. */
HORON_API int32_t horon_request_joined(const horon_request_t *req);

/** @return why the last call on @p ctx by this thread was refused, or why what it ran failed;
 * "" if neither. Valid until this thread's next call on any context. */
HORON_API const char *horon_last_error(const horon_context_t *ctx);

/**
 * Tells the same as data.
 * @param ctx         that of the call; NULL after horon_context_create()
 * @param failure_out its strings are valid as long as the text of horon_last_error()
 * @return OK | ERR_INVALID, struct_bytes is no size of failure_out
 */
HORON_API horon_status_t horon_last_failure(const horon_context_t *ctx,
                                            horon_failure_t *failure_out);

#ifdef __cplusplus
}
#endif

#endif
