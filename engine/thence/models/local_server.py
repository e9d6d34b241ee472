"""The child process of :class:`~thence.models.local.LocalModel`: llama.cpp's own OpenAI-compatible server (§12).

Started as ``python -m thence.models.local_server``. One line of JSON on standard input says what to serve; one line on
standard output says where, once it answers. It lives exactly as long as its parent: standard input stays open and is
never written again, so its end means that the parent closed it, or is gone by whatever means.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from importlib import import_module, resources
from typing import Any

_PARENT_CHECK_S = 1.0


def main() -> None:
    """Serve until standard input ends or the parent process is another one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches the whole group: the parent decides
    parent = os.getppid()
    ready = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever the native code says must not pass for our line
    settings = json.loads(sys.stdin.readline())
    threading.Thread(target=_exit_at_end_of_input, daemon=True).start()
    server = _start(settings["weights"], settings["api_key"], settings["context_tokens"], settings["threads"])
    ready.write(json.dumps({"address": server.listening_address}) + "\n")
    ready.close()
    # A forked copy of the parent may hold our standard input open after the parent's death.
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    os._exit(0)


def _start(weights: str, api_key: str, context_tokens: int, threads: int) -> Any:
    xllamacpp = import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = weights
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [api_key]
    params.n_ctx = context_tokens
    params.n_parallel = 1
    # More threads than free cores wait for each other by spinning: far slower than one.
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.use_jinja = True
    params.chat_template = resources.files("thence.models").joinpath("local_chat.jinja").read_text("utf-8")
    # A prompt continued from a cached one is rounded otherwise, and the answer at temperature 0 then depends on what
    # was asked before.
    params.cache_prompt = False
    params.cache_ram_mib = 0
    params.ui = False
    params.offline = True
    params.warmup = False
    params.verbosity = 0
    return xllamacpp.Server(params)


def _exit_at_end_of_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
