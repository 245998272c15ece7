"""One visit to the web: requests that share a deadline, with redirects, size and compression kept in bounds."""

from __future__ import annotations

import ssl
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType

import httpcore
import httpx

from programs.web_search.guarded_http import Deadline, GuardedTransport
from programs.web_search.retry_after import seconds_to_wait
from programs.web_search.unreadable import UnreadablePageError, quoted
from programs.web_search.web_address import web_address

LONGEST_WAIT = 5.0
"""Seconds of Retry-After that are waited; who asks for more is not asked again."""

_HEADERS = {
    "Accept": "text/html,application/xhtml+xml,text/plain;q=0.9,*/*;q=0.5",
    "Accept-Encoding": "gzip",  # the one that is unpacked here, within the limit
    "Accept-Language": "en,*;q=0.5",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the last server said. `content` is empty unless `status` is 2xx, and cut off when not `complete`."""

    url: httpx.URL
    status: int
    headers: httpx.Headers
    content: bytes
    complete: bool


class Visit:
    """All requests of one reading: they share the deadline, the connections and the cookies; use it with `with`."""

    def __init__(
        self, *, timeout: float, max_redirects: int, private_hosts: frozenset[tuple[str, int]], user_agent: str
    ) -> None:
        self._timeout = timeout
        self._max_redirects = max_redirects
        self._deadline = Deadline(timeout)
        self._client = httpx.Client(
            transport=GuardedTransport(self._deadline, private_hosts),
            headers={**_HEADERS, "User-Agent": user_agent},
            timeout=None,  # the transport holds the deadline
            trust_env=False,
        )

    def get(self, url: httpx.URL, *, max_bytes: int, before: Callable[[httpx.URL], None] = lambda url: None) -> Answer:
        """Follow redirects from `url` to an answer that is none; `before` is called with each address on the way.

        Raises `UnreadablePageError` when there is no such answer, and whatever `before` raises.
        """
        way = [url]
        while len(way) <= self._max_redirects + 1:
            before(way[-1])
            answer = self._patiently(way[-1], max_bytes)
            target = answer.headers.get("location")
            if answer.status not in (301, 302, 303, 307, 308) or target is None:
                return answer
            way.append(_redirected(answer.url, target))
        circle = "in a circle" if len(set(way)) < len(way) else f"more than {self._max_redirects} times"
        raise UnreadablePageError(f"{quoted(url)} redirects {circle}.")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> Visit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _patiently(self, url: httpx.URL, max_bytes: int) -> Answer:
        """The answer, after one more attempt when the server asks for a short wait."""
        answer = self._once(url, max_bytes)
        wait = seconds_to_wait(answer.headers.get("retry-after"))
        if answer.status not in (429, 503) or wait is None or wait > LONGEST_WAIT:
            return answer
        with self._network_errors(url):
            if wait >= self._deadline.left():
                return answer
        time.sleep(wait)
        return self._once(url, max_bytes)

    def _once(self, url: httpx.URL, max_bytes: int) -> Answer:
        with self._network_errors(url), self._client.stream("GET", url) as response:
            content, complete = _content(response, max_bytes) if response.is_success else (b"", True)
            return Answer(
                url=url, status=response.status_code, headers=response.headers, content=content, complete=complete
            )

    @contextmanager
    def _network_errors(self, url: httpx.URL) -> Iterator[None]:
        try:
            yield
        except httpcore.TimeoutException as error:
            raise UnreadablePageError(f"{quoted(url)} was not read within {self._timeout:g} s.") from error
        except httpcore.ConnectError as error:
            what = "secure connection" if error.args and isinstance(error.args[0], ssl.SSLError) else "connection"
            raise UnreadablePageError(f"There is no {what} to {url.netloc.decode()}: {error}.") from error
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            raise UnreadablePageError(f"The connection broke while {quoted(url)} was read: {error}.") from error


def _redirected(url: httpx.URL, target: str) -> httpx.URL:
    try:
        return web_address(target, url)
    except UnreadablePageError as error:
        raise UnreadablePageError(f"{quoted(url)} redirects to what is not read. {error}") from error


def _content(response: httpx.Response, max_bytes: int) -> tuple[bytes, bool]:
    """The unpacked body and whether this is all of it; what was received and what it unpacks to are both bounded."""
    gzip = _gzip(response)
    content = bytearray()
    received = 0
    try:
        for chunk in response.iter_raw():
            received += len(chunk)
            content += gzip.decompress(chunk, max_bytes + 1 - len(content)) if gzip else chunk
            if len(content) > max_bytes or received > max_bytes:
                return bytes(content[:max_bytes]), False
    except zlib.error as error:
        raise UnreadablePageError(f"{quoted(response.url)} is damaged: it cannot be unpacked ({error}).") from error
    if gzip and received and not gzip.eof:
        raise UnreadablePageError(f"{quoted(response.url)} is damaged: its end is missing.")
    return bytes(content), True


def _gzip(response: httpx.Response) -> zlib._Decompress | None:
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return None
    if encoding not in ("gzip", "x-gzip"):
        # Stacked encodings, too: each layer multiplies what a few bytes unpack to.
        raise UnreadablePageError(f"{quoted(response.url)} came packed as {quoted(encoding)}, which was not asked for.")
    return zlib.decompressobj(zlib.MAX_WBITS | 16)
