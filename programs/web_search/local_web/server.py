"""The site on a free port of the loopback address."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

from programs.web_search.local_web.index import LocalIndex
from programs.web_search.local_web.markup import document
from programs.web_search.local_web.site import Site

_HTML = "text/html; charset=utf-8"
_ROBOTS = "User-agent: *\nAllow: /\n"
_NOT_FOUND = (
    '<h1>Page not found</h1>\n<p>There is no page at this address. The <a href="/">first page</a> leads to all.</p>'
)
_SILENCE = 10.0
"""Seconds after which a client that sends nothing is let go."""

_log = logging.getLogger(__name__)


class LocalWeb:
    """The site, served on 127.0.0.1; use it with ``with``, or ``start`` and ``close``.

    Args:
        site: what is served; by default the site of the installed Factbook.
    """

    def __init__(self, site: Site | None = None) -> None:
        self.site = site or Site()
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self._engine: LocalIndex | None = None

    @property
    def url(self) -> str:
        """The address without a path, such as ``http://127.0.0.1:40645``.

        Raises:
            RuntimeError: when the server is not running.
        """
        if self._server is None:
            raise RuntimeError("the local web is not running; use it in a with statement or call start()")
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def engine(self) -> LocalIndex:
        """A search engine over the pages, with their addresses on this server; made at the first use.

        Raises:
            RuntimeError: when the server is not running.
        """
        with self._lock:
            if self._engine is None:
                self._engine = LocalIndex(self.site, self.url)
            return self._engine

    def start(self) -> LocalWeb:
        """Serve until ``close``; a running server is left as it is."""
        with self._lock:
            if self._server is None:
                self._server = _Server(self.site)
                self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="local-web")
                self._thread.start()
        return self

    def close(self) -> None:
        """Stop serving, hang up on whoever is connected, and wait for the end; closing twice does nothing."""
        with self._lock:
            server, thread, engine = self._server, self._thread, self._engine
            self._server = self._thread = self._engine = None
        if server and thread:
            server.shutdown()
            thread.join()
            server.hang_up()
            server.server_close()
        if engine:
            engine.close()

    def __enter__(self) -> LocalWeb:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # so that server_close waits for them

    def __init__(self, site: Site) -> None:
        self.site = site
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """Wake the threads that wait for a client to say something."""
        for request in tuple(self._open):
            try:
                request.shutdown(socket.SHUT_RDWR)
            except OSError:  # it has hung up itself
                continue

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error; anything else is one of this program."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            _log.exception("a request from %s failed", client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _SILENCE
    server_version = "LocalWeb"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        status, content_type, text = self._find(unquote(urlsplit(self.path).path))
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def _find(self, path: str) -> tuple[HTTPStatus, str, str]:
        if path == "/robots.txt":
            return HTTPStatus.OK, "text/plain; charset=utf-8", _ROBOTS
        if page := self.server.site.page(path):
            return HTTPStatus.OK, _HTML, page.html
        return HTTPStatus.NOT_FOUND, _HTML, document("Page not found", _NOT_FOUND)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""
