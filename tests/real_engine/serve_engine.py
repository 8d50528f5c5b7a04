"""Run llama.cpp's own HTTP server, out of the xllamacpp wheel, until SIGTERM, SIGINT or the end of the parent.

    python serve_engine.py tiny.gguf --parallel 4 --ctx 16384 --threads 1

Prints one line `LISTENING http://127.0.0.1:PORT` when the model is loaded; the engine's log goes to stderr, with
`print_timing` lines for each request. A process of its own, because the server's threads take whole cores.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading

import xllamacpp


def parameters(arguments: argparse.Namespace) -> xllamacpp.CommonParams:
    """What the server is started with."""
    params = xllamacpp.CommonParams()
    params.model.path = arguments.model
    params.model_alias = {"tiny"}
    params.port = 0  # the engine picks a free one
    params.n_parallel = arguments.parallel  # slots: the width of continuous batching
    params.n_ctx = arguments.ctx  # KV cells in all, shared by the slots
    params.kv_unified = True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = arguments.threads
    params.endpoint_metrics = params.endpoint_slots = True
    params.n_threads_http = 128
    params.cache_prompt = not arguments.no_cache
    params.cache_ram_mib = 0 if arguments.no_cache else 256
    params.verbosity = 3  # the least that logs each request's timing
    params.warmup = True
    return params


def main() -> None:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(
        description="llama.cpp's server on a free port of the loopback"
    )
    parser.add_argument("model")
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--ctx", type=int, default=16384)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-cache", action="store_true")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server = xllamacpp.Server(parameters(parser.parse_args()))
    print("LISTENING", server.listening_address, flush=True)
    parent = os.getppid()
    while not stop.wait(0.2) and os.getppid() == parent:  # never outlives the tests
        continue
    os._exit(0)  # the server's threads outlive an ordinary exit


if __name__ == "__main__":
    main()
