/* SPDX-License-Identifier: Apache-2.0 */
/* MPI that the program begins itself, for calls of its main thread alone. */
#ifndef TEST_HOSTS_OWN_MPI_H
#define TEST_HOSTS_OWN_MPI_H

/** MPI_Init(), or MPI_Finalize(), of the library that VERIFY_MPI names; without it a no-op.
 * @return 0, or 1 with a text on standard error */
int own_mpi(const char *call);

#endif
