# SPDX-License-Identifier: Apache-2.0
"""A worker of Horovod's as its rendezvous sees it: asks in the order in which the real one connects
its first three meshes, and prints what it has asked; an argument says how often. It connects to
nobody: what it leaves in place of addresses is looked at instead. So nothing keeps it from the next
round while others are in this one, but the meeting of its host."""

import http.client
import os
import sys
import time

ADDRESS_BYTES = 136
HOST = os.environ["HOROVOD_HOSTNAME"]
SERVER = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]


def number(name):
    return int(os.environ[f"HOROVOD_{name}"])


def ask(method, path, body=None):
    """@return the code, and the value"""
    server = http.client.HTTPConnection(*SERVER, timeout=30)
    server.request(method, path, body, {"Content-Length": str(len(body or b""))})
    answer = server.getresponse()
    value = answer.read()
    server.close()
    assert answer.status in ((200, 404) if method == "GET" else (200,)), answer.status
    return answer.status, value


def told(method, path):
    print(method, path, flush=True)
    return path


def value_of(scope, rank, size):
    return f"{scope} {rank} ".encode().ljust(ADDRESS_BYTES, b"\0") * (size - 1)


def meet(scope, rank, size):
    ask("PUT", told("PUT", f"/{scope}/rank_{rank}"), HOST.encode())
    for other in range(rank):
        ask("GET", told("GET", f"/{scope}/rank_{other}"))
    ask("PUT", told("PUT", f"/{scope}/{rank}"), value_of(scope, rank, size))
    for other in range(size):
        if other == rank:
            continue
        path = told("GET", f"/{scope}/{other}")
        while ask("GET", path)[0] == 404:
            time.sleep(0.01)
        assert ask("GET", path) == (200, value_of(scope, other, size)), path
    ask("DELETE", told("DELETE", f"/{scope}/{rank}"))


for _ in range(int(sys.argv[1])):
    meet("global", number("RANK"), number("SIZE"))
    meet(f"local_{HOST}", number("LOCAL_RANK"), number("LOCAL_SIZE"))
    meet(f"cross_{number('LOCAL_RANK')}", number("CROSS_RANK"), number("CROSS_SIZE"))
