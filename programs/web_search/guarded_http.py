"""HTTP connections that lead to public addresses only and end at a deadline.

A page's address is chosen by a model, or by a stranger whose page the model has read, so it must not lead into the
network of the machine. A name is resolved once, its addresses are checked, and the connection is made to an address
that was checked: a name server that answers differently the next time changes nothing. The name stays in the Host
header and in TLS. A deadline holds for everything together, so that a server cannot win time by sending byte by byte.

Proxies of the environment are not used: a proxy resolves names itself, so that the check here would mean nothing.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent import futures
from functools import cache
from typing import Any

import httpcore
import httpx

from programs.web_search.addresses import is_public
from programs.web_search.unreadable import UnreadablePageError


class Deadline:
    """A moment, some seconds from now."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """The seconds that are left. Raises `httpcore.TimeoutException` when there are none."""
        seconds = self._end - time.monotonic()
        if seconds <= 0:
            raise httpcore.TimeoutException("the time is up")
        return seconds


class GuardedTransport(httpx.BaseTransport):
    """The transport of one `httpx.Client`. Raises `UnreadablePageError`, and the errors of httpcore as they are."""

    def __init__(self, deadline: Deadline, private_hosts: frozenset[tuple[str, int]]) -> None:
        backend = _GuardedBackend(deadline, private_hosts)
        self._pool = httpcore.ConnectionPool(ssl_context=tls(), network_backend=backend)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        response = self._pool.handle_request(
            httpcore.Request(
                request.method,
                httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                headers=request.headers.raw,
                content=request.read(),
                extensions=request.extensions,
            )
        )
        return httpx.Response(response.status, headers=response.headers, stream=_Body(response))

    def close(self) -> None:
        self._pool.close()


@cache
def tls() -> ssl.SSLContext:
    """The certificates to trust: made once, since reading them takes longer than many a request."""
    return httpx.create_ssl_context()


class _Body(httpx.SyncByteStream):
    def __init__(self, response: httpcore.Response) -> None:
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        return self._response.iter_stream()

    def close(self) -> None:
        self._response.close()


class _GuardedBackend(httpcore.NetworkBackend):
    def __init__(self, deadline: Deadline, private_hosts: frozenset[tuple[str, int]]) -> None:
        self._deadline = deadline
        self._private_hosts = private_hosts
        self._network = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        addresses = self._allowed(host, port)
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        for tried, address in enumerate(addresses):
            share = self._deadline.left() / (len(addresses) - tried)
            try:
                stream = self._network.connect_tcp(address, port, share, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
            else:
                return _DeadlineStream(stream, self._deadline)
        raise failure

    def _allowed(self, host: str, port: int) -> list[str]:
        addresses = _resolve(host, self._deadline.left())
        if (host.lower(), port) in self._private_hosts:
            return addresses
        public = [address for address in addresses if is_public(address)]
        if not public:
            raise UnreadablePageError(
                f"{host}:{port} is not on the public internet ({', '.join(addresses)}), so it is not read."
            )
        return public


def _resolve(host: str, timeout: float) -> list[str]:
    # The system's resolver knows no time-out; a thread that it holds on to ends by itself, later.
    answer: futures.Future[list[Any]] = futures.Future()

    def ask() -> None:
        try:
            answer.set_result(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name="resolve", daemon=True).start()
    try:
        found = answer.result(timeout)
    except futures.TimeoutError as error:
        raise httpcore.ConnectTimeout(f"no answer for the name {host}") from error
    except (OSError, UnicodeError) as error:
        raise UnreadablePageError(f"There is no host called {host}: {error}.") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class _DeadlineStream(httpcore.NetworkStream):
    """A connection whose every operation may take what is left of the deadline, whatever it is asked to wait."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._deadline.left())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._deadline.left())

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        stream = self._stream.start_tls(ssl_context, server_hostname, self._deadline.left())
        return _DeadlineStream(stream, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
