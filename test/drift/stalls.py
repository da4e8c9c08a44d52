# SPDX-License-Identifier: Apache-2.0
"""How long something took while this machine ran. A virtual machine stands still for seconds now
and then, with all that is in it, and its clock goes on; a busy one may let a process wait: within
that time nothing can be promised. So a process beside the test sleeps a moment, again and again,
and what it overslept by much is left out. A hang is none of that, nor is what the test itself is
busy with: that process wakes all along. What it has seen lies in memory that both share."""

import mmap
import os
import struct
import time

SLEEP_S = 0.01
STALL_S = 0.25  # a busy machine lets a process wait for a tenth of that
MOST = 4096  # stalls; more of them are not left out
HEAD = struct.Struct("=dQ")  # when it woke last; stalls
STALL = struct.Struct("=dd")  # from, to, of the monotonic clock


def look(memory, test):
    awake, count = time.monotonic(), 0
    while os.getppid() == test:
        time.sleep(SLEEP_S)
        now = time.monotonic()
        if now - awake > STALL_S and count < MOST:
            STALL.pack_into(memory, HEAD.size + count * STALL.size, awake, now)
            count += 1
        awake = now
        HEAD.pack_into(memory, 0, awake, count)


class Watch:
    def __init__(self):
        self.memory = mmap.mmap(-1, HEAD.size + MOST * STALL.size)
        self.told = 0
        test = os.getpid()
        if os.fork() == 0:
            try:
                look(self.memory, test)
            finally:
                os._exit(0)

    def took(self, begun, ended):
        """@return the seconds between two moments of the monotonic clock, without the stalls"""
        while HEAD.unpack_from(self.memory)[0] < ended:  # it notes a stall once it is over
            time.sleep(SLEEP_S)
        count = HEAD.unpack_from(self.memory)[1]
        stalls = [STALL.unpack_from(self.memory, HEAD.size + i * STALL.size) for i in range(count)]
        for since, to in stalls[self.told :]:
            print(f"the machine stood still for {to - since:.2f} s")
        self.told = count
        within = (min(to, ended) - max(since, begun) for since, to in stalls)
        return ended - begun - sum(part for part in within if part > 0)
