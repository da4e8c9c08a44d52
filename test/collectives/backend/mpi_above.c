/* SPDX-License-Identifier: Apache-2.0 */
/* Fortran's: it needs MPI's calls, here through a profiler's. */
#pragma GCC visibility push(default)

int MPI_Init_thread(int *words, char ***word, int wanted, int *level_out);
void mpi_init_thread_(int *wanted, int *level_out, int *code_out);

void mpi_init_thread_(int *wanted, int *level_out, int *code_out)
{
    *code_out = MPI_Init_thread((int *)0, (char ***)0, *wanted, level_out);
}
