"""Shuffled batches, the same for the same seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


def batches(items: Sequence[T], *, size: int | None, epoch: int, seed: int) -> Iterator[list[T]]:
    """The items of one epoch, shuffled, in batches of ``size`` (None: one batch); the last one may be shorter.

    Example:
        >>> [len(batch) for batch in batches(range(5), size=2, epoch=1, seed=0)]
        [2, 2, 1]
    """
    order = list(items)
    Random(f"{seed}/{epoch}").shuffle(order)
    size = size or len(order)
    for start in range(0, len(order), size):
        yield order[start : start + size]
