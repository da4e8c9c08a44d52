/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Agrees with the other ranks on what is ready everywhere, and in which order it runs. Sans-I/O: it
 * takes submissions and messages, and gives messages and batches; it has no thread, clock or
 * socket.
 *
 * Ranks form a tree (topology.h). A rank tells its parent about a tensor once its whole subtree has
 * it; the root decides batches and sends them down; every rank sees the same batches in the same
 * order. A tensor that was decided once has a small id (the cache); from then on ids travel.
 * Mismatches travel up as an error and come down as a batch that fails. Members of a group are
 * submitted without a flush between them.
 *
 * A rank that has joined has no more data. Until all ranks have joined, the others decide without
 * it; it sees the same batches, and is told what the tensors are.
 *
 * The owner's turn: submit, cancel and receive what there is; flush; take all messages and send
 * each to its neighbour, in order and without loss; take all batches.
 *
 * Thread: the one that holds the progress token. Blocks: never. A neighbour's message that makes no
 * sense (ERR_PROTO) and a refused allocation while a message is handled (ERR_MEMORY) end the
 * coordinator: the job must fail, and receive, flush and submit keep returning that status.
 */
#ifndef HORON_COORDINATOR_COORDINATOR_H
#define HORON_COORDINATOR_COORDINATOR_H

#include "operation.h"
#include "status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct horon_coordinator;

/** No message is longer. */
#define HORON_COORDINATOR_MESSAGE_BYTES_MAX 65536
/** The sequence of a batch that was made here alone: a submission that was taken back. */
#define HORON_SEQUENCE_LOCAL UINT64_MAX

struct horon_coordinator_options {
    int rank, size;
    int parent;          /* -1: this is the root */
    const int *children; /* [child_count]; copied */
    int child_count;
    size_t cache_entries; /* ids at most, 0: no cache; the same on all ranks */
    uint64_t
        fusion_bytes; /* a batch of several has at most this payload; 0: no fusion. Root decides */
    const char *const
        *rank_names; /* [size] "rank 3 (host-b)" for texts; must outlive it; or NULL */
};

/** What a rank that has joined is to carry out with the others, and has submitted nothing of: the
 * tensors of a batch. */
struct horon_absent {
    struct horon_signature agreed; /* of the first, whose kind is that of all; not if it fails */
    uint64_t elements;             /* payload of all, as far as the signatures tell */
    uint64_t name_hash;            /* of the first */
    uint32_t name_bytes;
    char name[]; /* ends with 0 */
};

/** A decision. Valid until the next call on the coordinator. */
struct horon_batch {
    /* 0, 1, 2, ... the same on all ranks; or HORON_SEQUENCE_LOCAL for a tensor that this rank took
     * back: no other rank sees that */
    uint64_t sequence;
    /* OK: run it. ERR_MISMATCH: every tensor of it fails with `text`; with a local sequence: a
     * tensor whose group failed. ERR_CANCELLED: withdrawn as asked, one tensor */
    horon_status_t status;
    const char *text;
    struct horon_blame blame; /* its ranks are those of the team */
    const uint64_t *tokens;   /* [count] what submit() was given, in the agreed order */
    size_t count;
    const struct horon_absent *absent; /* instead of tokens, if this rank has joined; else NULL */
    /* -1; or this is no batch: from now on the others decide without this rank, which has done
     * `ordered` operations in order. After the last one nobody has joined any more. */
    int joined;
    uint64_t ordered;
};

/** @return OK | ERR_INVALID, no such tree | ERR_MEMORY */
horon_status_t horon_coordinator_create(const struct horon_coordinator_options *options,
                                        struct horon_coordinator **coordinator_out);
/** NULL is a no-op. Tokens still pending are forgotten. */
void horon_coordinator_destroy(struct horon_coordinator *coordinator);

/**
 * Interns a tensor that will be submitted often (persistent requests): later submissions by the
 * handle cost no look-up of the name. Handles live until dropped; a tensor of the same content may
 * be interned more than once, and a name with several contents.
 * @param op valid and canonical; its signature and name are copied
 * @return OK | ERR_MEMORY
 */
horon_status_t horon_coordinator_intern(struct horon_coordinator *coordinator,
                                        const struct horon_operation *op, uint32_t *handle_out);
/** Gives a handle back; a submission by it that is in flight goes on. */
void horon_coordinator_drop(struct horon_coordinator *coordinator, uint32_t handle);

/**
 * This rank has the tensor that an operation is about.
 * @param op valid and canonical; its signature and name are copied
 * @param token comes back in a batch exactly once; tokens in flight on a rank must differ
 * @return OK | ERR_DUPLICATE, its name is in flight here | ERR_INVALID, no such handle, or this
 * rank has joined | ERR_MEMORY, nothing changed
 */
horon_status_t horon_coordinator_submit(struct horon_coordinator *coordinator,
                                        const struct horon_operation *op, uint64_t token);
horon_status_t horon_coordinator_submit_handle(struct horon_coordinator *coordinator,
                                               uint32_t handle, uint64_t token);

/**
 * Withdraws a submission if no batch has it yet. It comes back in a local batch with ERR_CANCELLED
 * once that is certain, which may be at once; or in an ordinary one if it was too late. Until then
 * its name is in flight. Other ranks go on waiting for this one. A token that is not pending is
 * ignored.
 */
void horon_coordinator_cancel(struct horon_coordinator *coordinator, uint64_t token);

/**
 * This rank has no more data: its seat in what the others submit is void, until all have joined.
 * @param ordered in-order operations that it has done
 * @return OK | ERR_INVALID, something is pending here, or it has joined already | ERR_MEMORY: the
 * job must fail
 */
horon_status_t horon_coordinator_join(struct horon_coordinator *coordinator, uint64_t ordered);
/** Which ranks have not joined, while this one waits for them: "waiting for rank 3 (b) to join". */
void horon_coordinator_explain_join(const struct horon_coordinator *coordinator, char *text,
                                    size_t text_bytes);
/** @return the first rank that it names, or -1 */
int horon_coordinator_awaited_join(const struct horon_coordinator *coordinator);

/**
 * A message from parent or child @p from; read during the call only.
 * @return OK | ERR_PROTO, it makes no sense; names the peer | ERR_MEMORY: the job must fail, see
 * error
 */
horon_status_t horon_coordinator_receive(struct horon_coordinator *coordinator, int from,
                                         const void *bytes, size_t byte_count,
                                         struct horon_error *error);

/**
 * Turns what has gathered into messages and, on the root if @p decide, into batches: all that is
 * ready everywhere. The caller makes @p decide false while enough batches are on the wire, so that
 * the next one can grow.
 * @return OK | ERR_MEMORY: the job must fail
 */
horon_status_t horon_coordinator_flush(struct horon_coordinator *coordinator, bool decide);

/** Takes the next outgoing message. @return false if there is none; bytes valid until the next call
 */
bool horon_coordinator_next_message(struct horon_coordinator *coordinator, int *to_out,
                                    const void **bytes_out, size_t *byte_count_out);

/** Is there a decision that was not taken yet? */
bool horon_coordinator_has_batch(const struct horon_coordinator *coordinator);
/** Takes the next decision; to be called until there is none. @return false if there is none */
bool horon_coordinator_next_batch(struct horon_coordinator *coordinator,
                                  struct horon_batch *batch_out);

/** @return tensors submitted here and not yet in a batch; a join that is not over counts as one */
size_t horon_coordinator_pending(const struct horon_coordinator *coordinator);

/** @return decisions that this rank has seen, well or ill; the same ones in order on every rank */
uint64_t horon_coordinator_decisions(const struct horon_coordinator *coordinator);

/**
 * Asks the other ranks which of them lack a pending tensor, for explain(): the answers take a flush
 * and some messages. For a request that has waited long, well before its time is up; asking again
 * begins anew. A token that is not pending is ignored.
 */
void horon_coordinator_ask(struct horon_coordinator *coordinator, uint64_t token);

/**
 * One line about a pending tensor for a timeout's text: "tensor 'x': waiting for rank 3 (b)".
 * Without an answer to ask() it says what this rank knows by itself: a child that it names may in
 * turn wait for a rank below it, and a rank that has reported knows nothing of the others.
 * @return false if @p token is not pending
 */
bool horon_coordinator_explain(const struct horon_coordinator *coordinator, uint64_t token,
                               char *text, size_t text_bytes);
/** @return the first rank that it names, or -1 */
int horon_coordinator_awaited(const struct horon_coordinator *coordinator, uint64_t token);

#endif
