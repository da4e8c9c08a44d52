# SPDX-License-Identifier: Apache-2.0
"""Horovod's rendezvous server, as its workers see it: a stand-in, written from its contract (none
of its code), which writes down what it is asked. And the environment of horovodrun --gloo."""

import collections
import contextlib
import http.server
import threading

import jobs
import tap


class Handler(http.server.BaseHTTPRequestHandler):
    timeout = 3

    def log_message(self, *words):
        pass

    def answer(self, code, body=b""):
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def path_words(self):
        """The scope, and the key in it."""
        self.server.log.append((self.command, self.path))
        nothing, scope, key = self.path.split("/")
        assert not nothing
        return scope, key

    def do_GET(self):
        scope, key = self.path_words()
        value = self.server.scopes[scope].get(key)
        self.answer(404 if value is None else 200, value or b"")

    def do_PUT(self):
        scope, key = self.path_words()
        self.server.scopes[scope][key] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200)

    def do_DELETE(self):
        scope, key = self.path_words()
        size = self.server.sizes.get(scope)
        if size is None:
            self.server.scopes[scope].pop(key, None)
        else:
            self.server.finished[scope].append(key)
            if len(self.server.finished[scope]) == size:
                self.server.scopes[scope].clear()
                self.server.finished.clear()
        self.answer(200)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, handler=Handler, sizes=None, host="127.0.0.1"):
        super().__init__((host, 0), handler)
        self.port = self.server_address[1]
        self.sizes = sizes or {}
        self.scopes = collections.defaultdict(dict)
        self.finished = collections.defaultdict(list)
        self.log = []


@contextlib.contextmanager
def serve(*words, **more):
    server = Server(*words, **more)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def place(hosts, rank):
    """What horovodrun tells a rank of @p hosts, pairs of a name and how many ranks it has."""
    places = [(index, local) for index, (_, slots) in enumerate(hosts) for local in range(slots)]
    index, local = places[rank]
    name, slots = hosts[index]
    beside = [slots > local for _, slots in hosts]
    numbers = {
        "RANK": rank,
        "SIZE": len(places),
        "LOCAL_RANK": local,
        "LOCAL_SIZE": slots,
        "CROSS_RANK": sum(beside[:index]),
        "CROSS_SIZE": sum(beside),
    }
    return {f"HOROVOD_{key}": str(value) for key, value in numbers.items()} | {
        "HOROVOD_HOSTNAME": name
    }


@contextlib.contextmanager
def horovodrun(program, *words, hosts, port, **env):
    """Starts @p program as each rank, as horovodrun --gloo does. @return the jobs, one a rank"""
    tap.need(None not in (program, *words), "the rank program is not built")
    common = {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        **env,
    }
    size = sum(slots for _, slots in hosts)
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                jobs.Job(*words, program=program, env={**common, **place(hosts, rank)})
            )
            for rank in range(size)
        ]


if __name__ == "__main__":
    everywhere = Server(host="")
    print(everywhere.port, flush=True)
    everywhere.serve_forever()
