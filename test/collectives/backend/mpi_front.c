/* SPDX-License-Identifier: Apache-2.0 */
/* A profiler's: it has MPI's own call do the work. */
#pragma GCC visibility push(default)

int MPI_Init_thread(int *words, char ***word, int wanted, int *level_out);
int PMPI_Init_thread(int *words, char ***word, int wanted, int *level_out);

int MPI_Init_thread(int *words, char ***word, int wanted, int *level_out)
{
    return PMPI_Init_thread(words, word, wanted, level_out);
}
