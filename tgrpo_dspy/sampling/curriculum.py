"""Which examples an epoch samples: all of them, less those that have nothing more to teach for now."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from tgrpo_dspy.records import Group
from tgrpo_dspy.sampling.batches import batches
from tgrpo_dspy.sampling.examples import Item

_AGAIN = "+"  # marks the further groups of one example in one epoch


@dataclass(slots=True)
class _Standing:
    """What is known of an example: how often in a row it was solved, when it is due again, whether it was mixed."""

    solved: int = 0
    due: int = 1
    mixed: bool = False


class Curriculum:
    """Batches of an epoch, by what earlier groups were like (dynamic sampling, as in DAPO, arXiv 2503.14476).

    An example that every rollout solved is left out of the next epoch, then of the next two, then of four. With
    ``max_oversample`` above 1 its place goes to examples whose rollouts differed, which then get a further group.

    Args:
        items: the training set.
        batch_size: examples of a step; None: all of an epoch.
        seed: shuffles.
        solved_score: a group is solved when all its rewards reach it, and the highest seen so far (not every metric
            ends at 1); None: nothing is ever left out.
        max_oversample: most groups of one example in an epoch, 1 or more.
    """

    def __init__(
        self,
        items: Sequence[Item],
        *,
        batch_size: int | None,
        seed: int,
        solved_score: float | None,
        max_oversample: int,
    ) -> None:
        self._items, self._batch_size, self._seed = list(items), batch_size, seed
        self._solved_score, self._max_oversample = solved_score, max_oversample
        self._highest = -math.inf
        self._standing = {item.key: _Standing() for item in items}

    def batches(self, epoch: int) -> list[list[Item]]:
        """The batches of an epoch; every example when all of them are left out."""
        due = [item for item in self._items if self._standing[item.key].due <= epoch]
        chosen = [*due, *self._further(epoch, len(self._items) - len(due))] if due else self._items
        return list(batches(chosen, size=self._batch_size, epoch=epoch, seed=self._seed))

    def observe(self, groups: Sequence[Group], epoch: int) -> None:
        """Take the groups of a step into account for later epochs."""
        for group in groups:
            standing = self._standing[group.key.partition(_AGAIN)[0]]
            standing.mixed = group.spread > 0
            self._highest = max([self._highest, *group.rewards])
            if self._solved_score is not None and is_solved(group, max(self._solved_score, self._highest)):
                standing.due = epoch + 1 + 2**standing.solved
                standing.solved += 1
            else:
                standing.due, standing.solved = epoch + 1, 0

    def _further(self, epoch: int, places: int) -> list[Item]:
        """Further groups of mixed examples for the places of those that are left out."""
        mixed = [item for item in self._items if self._standing[item.key].mixed]
        Random(f"{self._seed}/{epoch}/further").shuffle(mixed)
        again = [
            replace(item, key=f"{item.key}{_AGAIN}{number}")
            for number in range(1, self._max_oversample)
            for item in mixed
        ]
        return again[:places]


def is_solved(group: Group, score: float) -> bool:
    """Whether every rollout of a group was scored, and reached ``score``."""
    return len(group.rewards) == len(group.rollouts) > 0 and min(group.rewards) >= score
