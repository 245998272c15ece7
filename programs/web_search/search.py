"""What a search engine is to the agent: a query goes in, the best hits come out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One page that a search engine found."""

    title: str
    url: str
    snippet: str


class SearchError(RuntimeError):
    """The engine gave no answer; the message says why and what to do."""


class SearchEngine(Protocol):
    """Anything that finds pages."""

    def search(self, query: str, count: int) -> list[Hit]:
        """The hits of `query`, best first, at most `count` (1 or more), none where nothing was found.

        Raises `SearchError` when the engine gives no answer.
        """
        ...
