"""Which examples an epoch samples: all of them, less those that have nothing more to teach for now."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from tgrpo_dspy.records import Group
from tgrpo_dspy.sampling.batches import batches
from tgrpo_dspy.sampling.examples import Item

_AGAIN = "+"  # marks the further groups of one example in one epoch


@dataclass(slots=True)
class _Standing:
    """What is known of an example.

    Attributes:
        solved: in how many of its epochs in a row it was solved, up to now.
        due: the next epoch that samples it.
        sampled: the last epoch that did.
        rewards: those of all its rollouts in that epoch.
    """

    solved: int = 0
    due: int = 1
    sampled: int = 0
    rewards: list[float | None] = field(default_factory=list)

    @property
    def mixed(self) -> bool:
        """Whether its rollouts differed."""
        return len(set(self.rewards) - {None}) > 1


class Curriculum:
    """Batches of an epoch, by what earlier groups were like (dynamic sampling, as in DAPO, arXiv 2503.14476).

    An example that every rollout of an epoch solved is left out of the next epoch, then of the next two, then of four.
    With ``max_oversample`` above 1 its place goes to examples whose rollouts differed, which then get a further group.

    Args:
        items: the training set.
        batch_size: examples of a step; None: all of an epoch.
        seed: shuffles.
        solved_score: an example is solved when all its rewards of an epoch reach it, and the highest seen so far (not
            every metric ends at 1); None: nothing is ever left out.
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

    @property
    def largest_batch(self) -> int:
        """Examples of a full step."""
        return min(self._batch_size or len(self._items), len(self._items))

    @property
    def highest(self) -> float:
        """The highest reward so far; minus infinity before the first."""
        return self._highest

    def batches(self, epoch: int) -> list[list[Item]]:
        """The batches of an epoch; every example when all of them are left out. Ask for the epochs in order."""
        # Only now: what is the highest reward is not known before the last group of an epoch is done.
        for standing in self._standing.values():
            if standing.due == standing.sampled:
                self._settle(standing)
        due = [item for item in self._items if self._standing[item.key].due <= epoch]
        chosen = [*due, *self._further(epoch, len(self._items) - len(due))] if due else self._items
        return list(batches(chosen, size=self._batch_size, epoch=epoch, seed=self._seed))

    def observe(self, groups: Sequence[Group], epoch: int) -> None:
        """Take the groups of a step into account for later epochs."""
        for group in groups:
            standing = self._standing[example_of(group.key)]
            if standing.sampled != epoch:
                standing.rewards = []
            standing.rewards += [rollout.reward for rollout in group.rollouts]
            standing.due = standing.sampled = epoch
            self._highest = max([self._highest, *group.rewards])

    def _settle(self, standing: _Standing) -> None:
        """Decide when an example is due again that was sampled since its last turn."""
        pause = 0
        if self._solved_score is not None and set(standing.rewards) - {None}:
            solved = _reach(standing.rewards, max(self._solved_score, self._highest))
            pause = 2**standing.solved if solved else 0
            standing.solved = standing.solved + 1 if solved else 0
        standing.due = standing.sampled + 1 + pause

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


def example_of(key: str) -> str:
    """The key of the example that a group is about, also when it is a further group of it."""
    return key.partition(_AGAIN)[0]


def is_solved(group: Group, score: float) -> bool:
    """Whether every rollout of a group was scored, and reached ``score``."""
    return _reach([rollout.reward for rollout in group.rollouts], score)


def _reach(rewards: Sequence[float | None], score: float) -> bool:
    return bool(rewards) and all(reward is not None and reward >= score for reward in rewards)
