"""The two tools of the agent: searching, and opening a page. What goes wrong comes back as a text."""

from __future__ import annotations

import re
from collections.abc import Sequence

import dspy

from programs.web_search.pages import Link, Page, PageReader, UnreadablePageError
from programs.web_search.search import SearchEngine, SearchError

_PAGE_CHARS = 2500
_LINKS = 12
_WORD = re.compile(r"[^\W_]{2,}")


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


def page_tool(reader: PageReader, *, page_chars: int = _PAGE_CHARS) -> dspy.Tool:
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
    """The passages of a text that hold most of the words of `find`, in their order; the beginning when none does.

    A text of at most `size` characters is returned whole.
    """
    if len(text) <= size:
        return text
    passages = [line for line in text.splitlines() if line.strip()]
    relevance = [_relevance(passage, find) for passage in passages]
    wanted = sorted(range(len(passages)), key=lambda i: (-relevance[i], i))
    kept: set[int] = set()
    left = size
    for index in wanted:
        if left < len(passages[index]) + 2 and kept:
            break
        kept.add(index)
        left -= len(passages[index]) + 2
    lines: list[str] = []
    for index in sorted(kept):
        if lines and index - 1 not in kept:
            lines.append("…")
        lines.append(passages[index][:size])
    return "\n".join(lines) + f"\n(from a page of {len(text)} characters; name other words in `find` to see others)"


def _relevance(passage: str, find: str) -> int:
    """How many of the words that are looked for stand in a passage, headings first among equals."""
    words = {_stem(word) for word in _WORD.findall(passage.casefold())}
    return 2 * len(words & {_stem(word) for word in _WORD.findall(find.casefold())}) + passage.startswith("#")


def _stem(word: str) -> str:
    """A word without the endings that searches stumble over."""
    return re.sub(r"(?:ies|es|s|y)$", "", word) if len(word) > 3 else word


def _links(page: Page, find: str) -> str:
    named: Sequence[Link] = [link for link in page.links if link.text]
    foremost = sorted(named, key=lambda link: -_relevance(link.text, find))[:_LINKS]
    return "Links: " + "; ".join(f"{link.text} <{link.url}>" for link in foremost) if foremost else ""
