"""What a person would see of a page: title, main text and links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice

import httpx

from programs.web_search.unreadable import UnreadablePageError
from programs.web_search.visible import visible
from programs.web_search.web_address import web_address

try:
    import trafilatura
    from lxml import etree, html
except ImportError as error:
    raise ImportError('Reading web pages needs trafilatura: pip install "tgrpo_dspy[web]"') from error

MAX_LINKS = 2000
"""Links of a page that are looked at; more are a list for machines."""

_UNSEEN = re.compile(
    r"display\s*:\s*none|visibility\s*:\s*hidden|(?<![\w-])(?:opacity|font-size)\s*:\s*0+(?:\.0*)?(?![\d.])",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link of a page: its text, empty where it shows only a picture, and its absolute http(s) address."""

    text: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What was found in a page; each part may be empty."""

    title: str
    text: str
    links: tuple[Link, ...]


def contents(source: str, url: httpx.URL) -> Contents:
    """Title, main text (Markdown) and links of the HTML read from `url`, without comments and hidden elements.

    Where the main text cannot be told from the rest, all that is visible is the text. What a style sheet hides is not
    known here, only what the elements themselves say.
    """
    parser = html.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True)
    try:
        tree = html.document_fromstring(visible(source).encode(), parser=parser)
    except etree.ParserError:  # nothing in it
        return Contents(title="", text="", links=())
    _clean_texts(tree)
    _drop_unseen(tree)
    title = _one_line(tree.findtext(".//title") or "")
    links = tuple(Link(text=text, url=address) for address, text in _links(tree, url).items())
    text = trafilatura.extract(tree, url=str(url), output_format="markdown", favor_recall=True)
    text = text or trafilatura.html2txt(tree, clean=False)
    return Contents(title=title, text=visible(text).strip(), links=links)


def _clean_texts(tree: html.HtmlElement) -> None:
    """Once more after parsing: `&#1;` is a control character by now, and lxml refuses to move one."""
    for element in tree.iter("*"):
        element.text = element.text and visible(element.text)
        element.tail = element.tail and visible(element.tail)


def _drop_unseen(tree: html.HtmlElement) -> None:
    for element in tree.xpath("//script | //style | //template"):
        element.drop_tree()
    for element in tree.xpath("//body//*[@hidden or @aria-hidden or @style]"):
        if _is_hidden(element):
            element.drop_tree()


def _is_hidden(element: html.HtmlElement) -> bool:
    return (
        element.get("hidden") is not None
        or element.get("aria-hidden", "").strip().lower() == "true"
        or _UNSEEN.search(element.get("style", "")) is not None
    )


def _links(tree: html.HtmlElement, url: httpx.URL) -> dict[str, str]:
    """The text of each address, in page order; the first text that is not empty counts."""
    base = _target(tree.xpath("string(//base/@href)"), url) or url
    found: dict[str, str] = {}
    for element in islice(tree.iter("a"), MAX_LINKS):
        address = _target(element.get("href", ""), base)
        if address is not None and address != url:
            key = str(address)
            found[key] = found.get(key) or _one_line(element.text_content())
    return found


def _target(href: str, base: httpx.URL) -> httpx.URL | None:
    try:
        return web_address(visible(href), base)
    except UnreadablePageError:
        return None


def _one_line(text: str) -> str:
    return " ".join(visible(text).split())
