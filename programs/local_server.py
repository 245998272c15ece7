"""A llama.cpp server in a child process that ends with the process that started it, however that ends."""

from __future__ import annotations

import atexit
import http.client
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from programs import llama_server

START_TIMEOUT = 300.0
"""Seconds a server may take to load its model on a busy machine."""

STOP_TIMEOUT = 5.0
POLL_SECONDS = 0.05
LOG_LINES = 15


class LocalRuntimeMissingError(ImportError):
    """The runtime of the local model is not installed."""


class LocalServerError(RuntimeError):
    """The local server did not start; the message has the last lines of its log."""


class LocalServer:
    """A llama.cpp server in a child process, on a free port of 127.0.0.1; use it with `with`, or `start` and `close`.

    `name` is the model's name in the API, `slots` how many requests are answered at once, `context` the tokens each of
    them may have (prompt and answer), `threads` defaults to the physical cores, `start_timeout` is in seconds. Raises
    `ValueError` for numbers below 1.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        name: str,
        threads: int | None = None,
        slots: int = 4,
        context: int = 4096,
        start_timeout: float = START_TIMEOUT,
    ) -> None:
        self.model = Path(model)
        self.name = name
        self.threads = available_cores() if threads is None else threads
        self.slots = slots
        self.context = context
        for setting in ("threads", "slots", "context"):
            if getattr(self, setting) < 1:
                raise ValueError(f"{setting} must be at least 1, got {getattr(self, setting)}")
        self._start_timeout = start_timeout
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._run_dir = Path()
        self._owner = 0
        self._url = ""

    @property
    def url(self) -> str:
        """The address without a path, such as `http://127.0.0.1:40645`. Raises `LocalServerError` when not running."""
        if not self.running:
            raise LocalServerError(f"The server of {self.name} is not running; call start().")
        return self._url

    @property
    def running(self) -> bool:
        """Whether the child process is alive and has been healthy once."""
        return bool(self._url) and self._process is not None and self._process.poll() is None

    def start(self) -> LocalServer:
        """Start the server and wait until it is healthy; a running one is left as it is.

        Raises `LocalRuntimeMissingError` without xllamacpp, `LocalServerError` when the child dies or is too slow.
        """
        with self._lock:
            if self.running:
                return self
            self.close()
            require_runtime()
            self._owner = os.getpid()
            self._run_dir = Path(tempfile.mkdtemp(prefix="tgrpo-server-"))
            self._process = self._spawn()
            atexit.register(self.close)
            try:
                self._url = self._wait_until_healthy(self._process)
            except BaseException:
                self.close()
                raise
        return self

    def close(self) -> None:
        """Stop the server and wait for its end; closing twice, or in a forked child, does nothing."""
        with self._lock:
            if self._process is None or self._owner != os.getpid():
                return
            process, self._process, self._url = self._process, None, ""
            atexit.unregister(self.close)
            if process.stdin:
                process.stdin.close()
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            shutil.rmtree(self._run_dir, ignore_errors=True)

    def __enter__(self) -> LocalServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, llama_server.__file__]
        settings = {"model": self.model, "name": self.name, "run-dir": self._run_dir}
        numbers = {"threads": self.threads, "slots": self.slots, "context": self.context}
        for option, value in {**settings, **numbers}.items():
            command += [f"--{option}", str(value)]
        # The script's own folder must not be searched for modules; Python 3.10 does not know the variable.
        environment = {**os.environ, "PYTHONSAFEPATH": "1"}
        with self._log_file.open("wb") as log:
            return subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, env=environment
            )

    def _wait_until_healthy(self, process: subprocess.Popen[bytes]) -> str:
        deadline = time.monotonic() + self._start_timeout
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise LocalServerError(self._failure(f"ended with code {process.returncode} while it started"))
            url = self._announced_url()
            if url and _is_healthy(url):
                return url
            time.sleep(POLL_SECONDS)
        raise LocalServerError(self._failure(f"was not ready after {self._start_timeout:g} s"))

    def _announced_url(self) -> str:
        try:
            return (self._run_dir / llama_server.ADDRESS_FILE).read_text()
        except FileNotFoundError:
            return ""

    @property
    def _log_file(self) -> Path:
        return self._run_dir / "server.log"

    def _failure(self, what: str) -> str:
        lines = self._log_file.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return f"The server of {self.name} on {self.model} {what}. Its last log lines:\n" + "\n".join(lines)


def require_runtime() -> None:
    """Raise `LocalRuntimeMissingError` when xllamacpp is not installed."""
    if not find_spec("xllamacpp"):
        raise LocalRuntimeMissingError(
            'The local model needs xllamacpp, which is not installed: pip install "tgrpo_dspy[local]". '
            "Or set TGRPO_LM to another model by its LiteLLM name."
        )


def available_cores() -> int:
    """The physical cores this process may use; logical ones where the system does not tell."""
    logical = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    siblings = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/thread_siblings_list")
    physical = len({file.read_text() for file in siblings})
    return min(physical, logical) if physical else logical


def _is_healthy(url: str) -> bool:
    # http.client and not urllib: a proxy of the environment must not be asked for a loopback address.
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
