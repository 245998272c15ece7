"""The local web under a name that stays: its port is another at every start, and what an agent saw must not change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import urlsplit

from programs.web_search.local_web.server import LocalWeb
from programs.web_search.pages import Page, PageReader
from programs.web_search.search import Hit

NAME = "http://encyclopedia.example"


class StableWeb:
    """Searches and reads the local web, and shows its addresses under ``NAME``.

    Runs that are kept, and answers of a model in a cache, hold for the next start too.

    Args:
        web: the local web, running.
        reader: reads its pages; it must be allowed to.
    """

    def __init__(self, web: LocalWeb, reader: PageReader) -> None:
        self._web, self._reader = web, reader

    def search(self, query: str, count: int) -> list[Hit]:
        """See ``SearchEngine.search``."""
        return [replace(hit, url=self._shown(hit.url)) for hit in self._web.engine.search(query, count)]

    def read(self, url: str) -> Page:
        """See ``PageReader.read``; an address that is not of this web is read, or refused, as it is."""
        page = self._reader.read(self._web.url + url.removeprefix(NAME) if url.startswith(NAME) else url)
        links = tuple(replace(link, url=self._shown(link.url)) for link in page.links)
        return replace(page, url=self._shown(page.url), text=page.text.replace(self._web.url, NAME), links=links)

    def _shown(self, url: str) -> str:
        return NAME + url.removeprefix(self._web.url) if url.startswith(self._web.url) else url


@contextmanager
def stable_web() -> Iterator[StableWeb]:
    """The local web, served for the length of the block."""
    with LocalWeb() as web, PageReader(private_hosts=[urlsplit(web.url).netloc]) as reader:
        yield StableWeb(web, reader)
