/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is on this machine beside horon, or why not. Each question is answered by a child process,
 * so that a driver that crashes, hangs or starts threads when it is loaded harms nobody.
 */
#ifndef HORON_TOOLS_FOUND_H
#define HORON_TOOLS_FOUND_H

#include <stdbool.h>

#define HORON_FOUND_TEXT_BYTES 2048

struct horon_found {
    bool yes;
    char text[HORON_FOUND_TEXT_BYTES]; /* what was found, lines; or why nothing */
};

/* Blocks: each up to 10 s, if a library hangs. */

/** CUDA's driver library and its GPUs. */
void horon_found_cuda(struct horon_found *found);
void horon_found_nccl(struct horon_found *found);
/** MPI libraries: the one that the setting MPI_LIBRARY names, else all that the loader finds. */
void horon_found_mpi(struct horon_found *found);
/** A backend by its name, "native", "mpi", "gloo" or "nccl": is it in this horon, and its library
 * here? One line: which version, from where; or why not. */
void horon_found_backend(struct horon_found *found, const char *name);
/** What `PROGRAM --version` says, be it an error. */
void horon_found_version(struct horon_found *found, const char *program);
/** The Python modules of the python3 in PATH that horon can work with: "numpy torch ...". */
void horon_found_python(struct horon_found *found);

#endif
