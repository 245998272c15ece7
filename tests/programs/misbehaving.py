"""A local HTTP server that does what it is told for each path, however wrong, and writes down who asked for what."""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

PAUSE = 0.02
DRIPS = 150
"""A dripping server gives up after `DRIPS` times `PAUSE`, so that a client who waits for it fails its test."""

GZIP_BOMB = gzip.compress(b"word " * 4_000_000)
"""A few kilobytes that unpack to 20 MB."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request as it came in."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Handler(BaseHTTPRequestHandler):
    """One request, for a behaviour to answer as well or as badly as it likes."""

    protocol_version = "HTTP/1.1"
    server: Server

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # a client that has had enough
            super().handle()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked = Asked(method=self.command, path=self.path, headers=dict(self.headers), body=body)
        self.server.asked.append(asked)
        self.server.behaviours.get(self.path.partition("?")[0], answer(status=404))(self)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def pause(self) -> None:
        """Wait a little, or go on at once when the server is about to close."""
        self.server.closing.wait(PAUSE)


Behaviour = Callable[[Handler], None]


class Server(ThreadingHTTPServer):
    """Answers by `behaviours`, 404 for every other path; `asked` has the requests in the order they came."""

    daemon_threads = False

    def __init__(self, behaviours: Mapping[str, Behaviour] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behaviours = dict(behaviours or {})
        self.asked: list[Asked] = []
        self.closing = threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def host(self) -> str:
        """Such as `127.0.0.1:40645`."""
        return f"127.0.0.1:{self.server_address[1]}"

    def url(self, path: str = "/", *, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.server_address[1]}{path}"

    def paths(self) -> list[str]:
        return [asked.path for asked in self.asked]

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        self.shutdown()
        self._thread.join()
        self.server_close()


def answer(
    body: bytes | str = b"",
    *,
    status: int = 200,
    content_type: str | None = "text/html; charset=utf-8",
    headers: Mapping[str, str] | None = None,
) -> Behaviour:
    """Behaves well: one answer, whole."""
    content = body.encode() if isinstance(body, str) else body

    def behave(handler: Handler) -> None:
        handler.send_response(status)
        if content_type is not None:
            handler.send_header("Content-Type", content_type)
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    return behave


def json_answer(value: object, *, status: int = 200) -> Behaviour:
    return answer(json.dumps(value), status=status, content_type="application/json")


def redirect(target: str, *, status: int = 302, headers: Mapping[str, str] | None = None) -> Behaviour:
    return answer(status=status, headers={"Location": target, **(headers or {})})


@dataclass
class InTurn:
    """One behaviour after the other; the last one stays."""

    behaviours: list[Behaviour] = field(default_factory=list)

    def __call__(self, handler: Handler) -> None:
        behave = self.behaviours.pop(0) if len(self.behaviours) > 1 else self.behaviours[0]
        behave(handler)


def slow_headers(handler: Handler) -> None:
    """Sends the first line, then header after header without an end."""
    handler.close_connection = True
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(DRIPS):
        handler.wfile.write(b"X-%d: slow\r\n" % number)
        handler.pause()
    handler.wfile.write(b"Content-Type: text/html\r\nContent-Length: 11\r\n\r\n<p>late</p>")


def silent(handler: Handler) -> None:
    """Says nothing at all."""
    handler.close_connection = True
    handler.server.closing.wait(PAUSE * DRIPS)


def dripping(handler: Handler) -> None:
    """Sends a page byte by byte."""
    handler.close_connection = True
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n")
    for byte in b"<p>drop</p>".ljust(DRIPS):
        handler.wfile.write(bytes([byte]))
        handler.pause()


def endless(handler: Handler) -> None:
    """Sends words for as long as somebody takes them, up to 50 MB."""
    handler.close_connection = True
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n")
    for _ in range(5000):
        if handler.server.closing.is_set():
            return
        handler.wfile.write(b"word " * 2000)


def broken_off(handler: Handler) -> None:
    """Promises a thousand bytes, sends a few and hangs up."""
    handler.close_connection = True
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 1000\r\n\r\n<p>the begin")


def no_http(handler: Handler) -> None:
    """Answers in another language."""
    handler.close_connection = True
    handler.wfile.write(b"220 mail.example ESMTP\r\n")
