"""Reads web pages for an agent: addresses that a model chose, answers that strangers wrote."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType

import httpx

from programs.web_search.addresses import named_hosts
from programs.web_search.charsets import declared_charsets, decode, is_wide
from programs.web_search.fetching import Answer, Visit
from programs.web_search.once import OnceCache
from programs.web_search.page_text import Contents, Link, contents
from programs.web_search.robots import Robots
from programs.web_search.unreadable import UnreadablePageError, quoted
from programs.web_search.visible import visible
from programs.web_search.web_address import web_address

__all__ = ["USER_AGENT", "Link", "Page", "PageReader", "UnreadablePageError"]

USER_AGENT = "tgrpo_dspy-web_search/0.1"

KEPT_PAGES = 100
"""Pages that a reader remembers: the rollouts of a group open the same ones again and again."""

_REASONS = {
    401: "it asks for a login",
    403: "the site refuses access",
    404: "there is no such page",
    410: "the page is gone",
    429: "the site has been asked too often; wait, or read another page",
    503: "the site is not available now; try later, or read another page",
}
_HTML = ("text/html", "application/xhtml+xml")
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_SNIFFED = 1445
_MOST_CONTROL = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page as it was read. `url` is where the redirects ended, `links` are in page order, at most 2000.

    `text` is Markdown where the page is HTML, else what was sent.
    """

    url: str
    title: str
    text: str
    links: tuple[Link, ...]


class PageReader:
    """Reads pages over HTTP; one reader serves many threads.

    `timeout` is in seconds, for all that a reading asks of the network, redirects included. `max_bytes` bounds what is
    received and what it unpacks to. `private_hosts` are `host:port` pairs that may be read although they are not on the
    public internet. `user_agent` should name someone to write to when many pages are read; some sites ask for that.
    Proxies of the environment are not used, since a proxy would decide which address is read; `SSL_CERT_FILE` is.

    `close`, or the end of `with`, forgets the pages read; between two readings nothing is open.

    Raises `ValueError` for a setting out of range.
    """

    def __init__(
        self,
        *,
        timeout: float = 10.0,
        max_bytes: int = 2_000_000,
        max_redirects: int = 5,
        private_hosts: Iterable[str] = (),
        respect_robots: bool = True,
        user_agent: str = USER_AGENT,
    ) -> None:
        for name, value, least in (("max_bytes", max_bytes, 1), ("max_redirects", max_redirects, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if timeout <= 0:
            raise ValueError(f"timeout must be above 0 seconds, got {timeout}")
        self._timeout = timeout
        self._max_bytes = max_bytes
        self._max_redirects = max_redirects
        self._private_hosts = named_hosts(private_hosts)
        self._user_agent = user_agent
        self._robots = Robots(user_agent) if respect_robots else None
        self._pages: OnceCache[str, Page] = OnceCache(KEPT_PAGES)

    def read(self, url: str) -> Page:
        """The page at `url`, or the same page again when it was read before.

        Raises `UnreadablePageError` whenever there is no text to give back.
        """
        address = web_address(url)
        return self._pages.get(str(address), lambda: self._read(address))

    def close(self) -> None:
        """Forget the pages and the robots.txt files."""
        self._pages.clear()
        if self._robots:
            self._robots.forget()

    def __enter__(self) -> PageReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, url: httpx.URL) -> Page:
        with Visit(
            timeout=self._timeout,
            max_redirects=self._max_redirects,
            private_hosts=self._private_hosts,
            user_agent=self._user_agent,
        ) as visit:

            def ask_robots(target: httpx.URL) -> None:
                if self._robots:
                    self._robots.check(target, visit)

            answer = visit.get(url, max_bytes=self._max_bytes, before=ask_robots)
        if not 200 <= answer.status < 300:
            reason = _REASONS.get(answer.status, "the site has an error" if answer.status >= 500 else "no page")
            raise UnreadablePageError(f"{quoted(answer.url)} answered HTTP {answer.status}: {reason}.")
        if not answer.complete:
            raise UnreadablePageError(f"{quoted(answer.url)} is too large: more than {self._max_bytes} bytes.")
        return _page(answer)


def _page(answer: Answer) -> Page:
    content_type = answer.headers.get("content-type", "")
    media_type = content_type.split(";")[0].strip().lower()
    if not _is_text(media_type) or _looks_binary(answer.content, content_type):
        raise UnreadablePageError(
            f"{quoted(answer.url)} is no page with text ({quoted(media_type) or 'no type declared'})."
        )
    text = decode(answer.content, content_type)
    if media_type in _HTML or (not media_type and text.lstrip().startswith("<")):
        found = contents(text, answer.url)
    else:
        found = Contents(title="", text=visible(text).strip(), links=())
    if not found.text:
        raise UnreadablePageError(f"{quoted(answer.url)} has no text; it may need JavaScript to show any.")
    return Page(url=str(answer.url), title=found.title, text=found.text, links=found.links)


def _is_text(media_type: str) -> bool:
    return (
        not media_type
        or media_type.startswith("text/")
        or media_type in ("application/json", "application/xml", "application/xhtml+xml")
        or media_type.endswith(("+json", "+xml"))
    )


def _looks_binary(content: bytes, content_type: str) -> bool:
    """Whether the beginning is no text in any encoding; a page in UTF-16 or UTF-32 may be full of zeros."""
    start = content[:_SNIFFED]
    if start.startswith((b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")):
        return False
    if any(map(is_wide, declared_charsets(b"", content_type))):
        return False
    return start.startswith(b"%PDF-") or len(_CONTROL.findall(start)) > _MOST_CONTROL * len(start)
