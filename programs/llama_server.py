"""Serves a model with llama.cpp for the process that started this one, and ends with it.

`programs.local_lm` runs this file as a child process, by its path. It imports nothing of this project and not DSPy, so
that the start is quick. The address is written to a file in the run's folder once the model is loaded.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ADDRESS_FILE = "address"
PARENT_CHECK_SECONDS = 0.5
PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve until the parent closes our stdin or is gone."""
    options = _options()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for the parent, which may go on
    watchers = [_wait_for_closed_stdin]
    if os.name == "posix":
        watchers.append(_wait_for_new_parent)
    for watch in watchers:
        threading.Thread(target=_end_after, args=(watch, options.run_dir), daemon=True).start()
    # Loading a model holds Python's lock for seconds, so the watchers cannot act: the kernel watches meanwhile. Not
    # longer, because to the kernel the parent is the *thread* that started us, and that one ends after the start.
    _let_kernel_end_us(signal.SIGTERM)
    server = _start(options)
    _let_kernel_end_us(0)
    _write_whole(options.run_dir / ADDRESS_FILE, server.listening_address)
    threading.Event().wait()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    return parser.parse_args()


def _start(options: argparse.Namespace) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.model_alias = {options.name}
    params.hostnames = ["127.0.0.1"]
    params.port = 0  # the system gives a free port, so that no other process can take it in between
    params.cors_origins = "null"  # else any web page open in a browser could use the server
    params.ui = False
    params.n_parallel = options.slots
    params.n_ctx = options.slots * options.context
    params.kv_unified = False  # else one long prompt could take the context of the other slots
    params.cache_prompt = True
    params.warmup = True
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    return xllamacpp.Server(params)


def _write_whole(file: Path, text: str) -> None:
    temporary = file.with_suffix(".tmp")
    temporary.write_text(text)
    os.replace(temporary, file)


def _end_after(watch: Callable[[], None], run_dir: Path) -> None:
    watch()
    shutil.rmtree(run_dir, ignore_errors=True)
    os._exit(0)


def _wait_for_closed_stdin() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass


def _wait_for_new_parent() -> None:
    """Return when the parent is gone, also if a forked sibling still holds the other end of our stdin."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)


def _let_kernel_end_us(number: int) -> None:
    """Ask Linux to send this signal when the thread that started us ends; 0 takes that back."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


if __name__ == "__main__":
    main()
