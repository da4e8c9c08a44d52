/* SPDX-License-Identifier: Apache-2.0 */
/* Built without a sanitizer: that of threads asks before it is ready to follow what is done. */
#include "told_cores.h"

#include <unistd.h>

long __real_sysconf(int name);
long __wrap_sysconf(int name);

long told_cores;

long __wrap_sysconf(int name)
{
    return told_cores && name == _SC_NPROCESSORS_ONLN ? told_cores : __real_sysconf(name);
}
