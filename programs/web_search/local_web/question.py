"""What a question is: its words, its one right answer, and the pages that show it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A page of the site and the words on it that matter for the answer."""

    path: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question with one right answer.

    Args:
        question: its words.
        answer: as the pages write it: a name, a number or a code.
        kind: what is asked for; questions of a kind differ only in the countries.
        hops: how many steps lead to the answer, 1 or 2.
        countries: codes of the countries it names, leads over or ends at.
        evidence: the pages in the order in which they are needed; the answer is on the last one.
    """

    question: str
    answer: str
    kind: str
    hops: int
    countries: frozenset[str]
    evidence: tuple[Evidence, ...]


def worded(wordings: Sequence[str], key: str, **names: str) -> str:
    """One of the wordings, the same at every run for a key, with the names put in."""
    return random.Random(key).choice(wordings).format(**names)
