"""Full-text search over the pages of the site, in SQLite."""

from __future__ import annotations

import re
import sqlite3
import threading
from contextlib import closing
from types import TracebackType

from programs.web_search.local_web.site import Page, Site
from programs.web_search.search import Hit, SearchError

TITLE_WEIGHT = 3.0
"""How much the score of the title counts, compared with that of the content."""

SNIPPET_WORDS = 32
_MOST_WORDS = 64  # of a query; what comes behind them cannot change much, and every word costs time
_FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be by do does for from has have how in is it its of on or that the their there to was were "
        "what when where which who whose with",
    )
)

# Titles have an index of their own: a word that is on most pages, such as "population", says nothing there but much in
# a title. The content begins with the title, so that it matches whenever the title does.
_TOKENS = "porter unicode61 remove_diacritics 2"
_SCHEMA = f"""
CREATE TABLE pages (id INTEGER PRIMARY KEY, path TEXT NOT NULL, title TEXT NOT NULL);
CREATE VIRTUAL TABLE titles USING fts5(title, tokenize = '{_TOKENS}');
CREATE VIRTUAL TABLE contents USING fts5(content, tokenize = '{_TOKENS}');
"""
_QUERY = f"""
WITH scores AS (
    SELECT rowid AS id, {TITLE_WEIGHT} * bm25(titles) AS score FROM titles WHERE titles MATCH :words
    UNION ALL SELECT rowid, bm25(contents) FROM contents WHERE contents MATCH :words
), best AS (
    SELECT id, path, title, sum(score) AS score FROM scores JOIN pages USING (id)
    GROUP BY id ORDER BY sum(score), path LIMIT :count
)
SELECT title, path, snippet(contents, 0, '', '', ' … ', {SNIPPET_WORDS})
FROM best JOIN contents ON contents.rowid = best.id WHERE contents MATCH :words ORDER BY best.score, path
"""


class LocalIndex:
    """A search engine over a site: BM25 over stemmed words, any word may match. Safe to use from several threads.

    Args:
        site: the pages; all of them are made and indexed at once.
        url: what stands before their paths, such as ``http://127.0.0.1:40645``.
    """

    def __init__(self, site: Site, url: str) -> None:
        self._url = url.rstrip("/")
        self._lock = threading.Lock()
        self._open = True
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.executescript(_SCHEMA)
        for number, path in enumerate(site.paths):
            if page := site.page(path):
                self._add(number, page)

    def _add(self, number: int, page: Page) -> None:
        self._database.execute("INSERT INTO pages VALUES (?, ?, ?)", (number, page.path, page.title))
        self._database.execute("INSERT INTO titles (rowid, title) VALUES (?, ?)", (number, page.title))
        self._database.execute("INSERT INTO contents (rowid, content) VALUES (?, ?)", (number, page.text))

    @property
    def size(self) -> int:
        """Bytes of the index, the indexed text included."""
        with self._lock:
            (pages,), (bytes_each,) = (
                self._database.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size")
            )
        return int(pages) * int(bytes_each)

    def search(self, query: str, count: int) -> list[Hit]:
        """The hits of ``query``, best first, at most ``count``; none for a query without words.

        Raises:
            ValueError: when ``count`` is below 1.
            SearchError: when the index is closed.
        """
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        if not (words := _match_any(query)):
            return []
        with self._lock:
            if not self._open:
                raise SearchError("the local index is closed; search while the local web is running")
            with closing(self._database.execute(_QUERY, {"words": words, "count": count})) as rows:
                found = rows.fetchall()
        return [Hit(title=title, url=self._url + path, snippet=snippet) for title, path, snippet in found]

    def close(self) -> None:
        """Give the memory back; closing twice does nothing."""
        with self._lock:
            self._open = False
            self._database.close()

    def __enter__(self) -> LocalIndex:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _match_any(query: str) -> str:
    """The words of a query as an expression of FTS5: quoted and in small letters, so that none is an operator."""
    words = list(dict.fromkeys(re.findall(r"\w+", query.casefold())))
    telling = [word for word in words if word not in _FUNCTION_WORDS] or words
    return " OR ".join(f'"{word}"' for word in telling[:_MOST_WORDS])
