/* SPDX-License-Identifier: Apache-2.0 */
/* Of an MPI that has a name of its own and has begun: as much as test_mpi_open.c looks for. */
#pragma GCC visibility push(default)

int MPI_Init_thread(int *words, char ***word, int wanted, int *level_out);
int PMPI_Init_thread(int *words, char ***word, int wanted, int *level_out);
int MPI_Initialized(int *flag);

int PMPI_Init_thread(int *words, char ***word, int wanted, int *level_out)
{
    (void)words;
    (void)word;
    *level_out = wanted;
    return 0;
}

int MPI_Init_thread(int *words, char ***word, int wanted, int *level_out)
{
    return PMPI_Init_thread(words, word, wanted, level_out);
}

int MPI_Initialized(int *flag)
{
    *flag = 1;
    return 0;
}
