"""The two tools of the agent: searching, and opening a page. What goes wrong comes back as a text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import dspy

from programs.web_search.pages import Link, Page, UnreadablePageError
from programs.web_search.search import SearchEngine, SearchError

_PAGE_CHARS = 2500
_LINKS = 12
_WORD = re.compile(r"[^\W_]{2,}")


class Reader(Protocol):
    """Anything that reads pages, such as a `PageReader`."""

    def read(self, url: str) -> Page:
        """The page at an address. Raises `UnreadablePageError` when there is no text to give back."""
        ...


def search_tool(engine: SearchEngine, *, hits: int = 5) -> dspy.Tool:
    """The tool `search(query)`: title, address and snippet of the best `hits` pages, or "error: …"."""

    def search(query: str) -> str:
        try:
            found = engine.search(query, hits)
        except SearchError as error:
            return f"error: {error}"
        lines = [f"{n}. {hit.title}\n   {hit.url}\n   {hit.snippet}" for n, hit in enumerate(found, start=1)]
        return "\n".join(lines) or "Nothing was found; try other words."

    return dspy.Tool(
        search,
        name="search",
        desc="Finds web pages; returns title, address and a snippet of each.",
        arg_desc={"query": "a few words to look for"},
    )


def page_tool(reader: Reader, *, page_chars: int = _PAGE_CHARS) -> dspy.Tool:
    """The tool `open_page(url, find)`: up to `page_chars` characters of the page, those about `find`, or "error: …"."""

    def open_page(url: str, find: str = "") -> str:
        try:
            page = reader.read(url.strip())
        except UnreadablePageError as error:
            return f"error: {error}"
        return "\n\n".join(filter(None, (f"# {page.title}", excerpt(page.text, find, page_chars), _links(page, find))))

    return dspy.Tool(
        open_page,
        name="open_page",
        desc="Reads a web page. Of a long page it returns the passages about the words in `find`, and links.",
        arg_desc={"url": "an address that search or another page gave", "find": "what to look for on the page"},
    )


def excerpt(text: str, find: str, size: int) -> str:
    """The passages of a text that hold most of the words of `find`, in their order, under their headings.

    A text of at most `size` characters is returned whole, and the beginning of one that has none of the words.
    """
    if len(text) <= size:
        return text
    passages = _passages(text)
    relevance = [_relevance(f"{passage.heading} {passage.text}", find) for passage in passages]
    found = [index for index in range(len(passages)) if relevance[index]] or list(range(len(passages)))
    kept: list[_Passage] = []
    for index in sorted(found, key=lambda index: (-relevance[index], index)):
        if kept and sum(len(passage.text) + len(passage.heading) + 2 for passage in (*kept, passages[index])) > size:
            break
        kept.append(passages[index])
    lines: list[str] = []
    for passage in sorted(kept, key=lambda passage: passage.number):
        lines += [line for line in (passage.heading, passage.text[:size]) if line and line not in lines]
    return "\n".join(lines) + f"\n(from a page of {len(text)} characters; name other words in `find` to see others)"


class _Passage(NamedTuple):
    """A line of a page, its number, and the heading it stands under."""

    number: int
    heading: str
    text: str


def _passages(text: str) -> list[_Passage]:
    passages, heading = [], ""
    for number, line in enumerate(text.splitlines()):
        if line.startswith("#"):
            heading = line
        elif _WORD.search(line):
            passages.append(_Passage(number, heading, line))
    return passages


def _relevance(text: str, find: str) -> int:
    """How many of the words that are looked for stand in a text."""
    wanted = {_stem(word) for word in _WORD.findall(find.casefold())}
    return len(wanted & {_stem(word) for word in _WORD.findall(text.casefold())})


def _stem(word: str) -> str:
    """A word without the endings that searches stumble over."""
    return re.sub(r"(?:ies|es|s|y)$", "", word) if len(word) > 3 else word


def _links(page: Page, find: str) -> str:
    named: Sequence[Link] = [link for link in page.links if link.text]
    foremost = sorted(named, key=lambda link: -_relevance(link.text, find))[:_LINKS]
    return "Links: " + "; ".join(f"{link.text} <{link.url}>" for link in foremost) if foremost else ""
