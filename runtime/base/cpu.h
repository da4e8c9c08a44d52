/* SPDX-License-Identifier: Apache-2.0 */
/* What differs between processors. */
#ifndef HORON_BASE_CPU_H
#define HORON_BASE_CPU_H

/** Tells the core that this is a spinning loop. */
static inline void horon_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
