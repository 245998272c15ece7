"""Keeping a library within its bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tgrpo_dspy.library.experience import Experience
from tgrpo_dspy.settings import LibraryLimits

_LINE_OVERHEAD = 4
_BLOCK_OVERHEAD = 40


def estimate_tokens(text: str) -> int:
    """Tokens of a text, estimated as its UTF-8 bytes over four: no tokenizer, never zero for a non-empty text."""
    return math.ceil(len(text.encode("utf-8", "replace")) / 4)


def too_long(text: str, limits: LibraryLimits) -> str | None:
    """The reason why a lesson is too long, or None."""
    words = len(text.split())
    return f"has {words} words, more than {limits.words}" if words > limits.words else None


def evict(
    experiences: Iterable[Experience], limits: LibraryLimits
) -> tuple[tuple[Experience, ...], tuple[Experience, ...]]:
    """Split into what stays and what goes first when the library is over its limits.

    The least valuable goes first: lowest measured effect (unmeasured counts as 0), then least often proposed, then
    oldest. What stays keeps its order.
    """
    kept = list(experiences)
    evicted: list[Experience] = []
    while len(kept) > limits.experiences or _rendered_tokens(kept) > limits.tokens:
        worst = min(kept, key=lambda e: (e.effect or 0.0, e.proposed - e.contradicted, e.number))
        kept.remove(worst)
        evicted.append(worst)
    return tuple(kept), tuple(evicted)


def _rendered_tokens(experiences: list[Experience]) -> int:
    """Tokens of the largest block that any one predictor would carry."""
    if not experiences:
        return 0
    targets = {e.target for e in experiences} - {None} or {None}
    return _BLOCK_OVERHEAD + max(
        sum(estimate_tokens(e.text) + _LINE_OVERHEAD for e in experiences if e.target in (None, target))
        for target in targets
    )
