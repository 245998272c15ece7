"""Which groups are reflected on, and which of them together."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from tgrpo_dspy.records import Group
from tgrpo_dspy.reflection.trajectory import group_tokens
from tgrpo_dspy.sampling.curriculum import is_solved
from tgrpo_dspy.settings import Reflection, Sampling

Pool = list[Group]


@dataclass(frozen=True, slots=True)
class Teaching:
    """What a group has to teach.

    Args:
        sampling: when rewards differ, and when an example is solved.
        reflection: whether failures teach too.
        with_labels: whether right answers and feedback may be looked at.
        highest: the highest reward so far: not every metric ends at 1.
    """

    sampling: Sampling
    reflection: Reflection
    with_labels: bool
    highest: float = -math.inf

    def is_informative(self, group: Group) -> bool:
        """Whether the rewards of a group differ."""
        return group.spread > self.sampling.min_spread

    def teaches(self, group: Group) -> bool:
        """Whether to reflect on a group: it is informative, or fails throughout where it is known what is right.

        A single rollout has nothing to be compared with, so that it is shown whatever its reward (the paper's ablation
        without group computation).
        """
        return self.is_informative(group) or (len(group.rollouts) == 1 and bool(group.rewards)) or self.fails(group)

    def fails(self, group: Group) -> bool:
        """Whether a group without contrast is not solved, and has a label or feedback to be held against."""
        known = bool(group.labels) or any(rollout.feedback for rollout in group.rollouts)
        return (
            self._learns_from_labels
            and known
            and bool(group.rewards)
            and not self.is_informative(group)
            and not is_solved(group, self.right)
        )

    def is_never_right(self, group: Group) -> bool:
        """Whether labels may be learned from, and no rollout of a group earned what a right answer does."""
        return self._learns_from_labels and bool(group.rewards) and max(group.rewards) < self.right

    @property
    def right(self) -> float:
        """The reward of a right answer, as far as it is known."""
        return max(1.0 if self.sampling.solved_score is None else self.sampling.solved_score, self.highest)

    @property
    def _learns_from_labels(self) -> bool:
        return self.reflection.learn_from_failures and self.with_labels

    def likeness(self, group: Group) -> Hashable:
        """What groups that fail alike have in common: the fields that were wrong, and the kinds of failure."""
        if not (self.reflection.alike_together and self.with_labels):
            return ()
        wrong = {
            name
            for rollout in group.rollouts
            for name, right in group.labels.items()
            if rollout.outputs.get(name, right).strip() != right.strip()
        }
        return frozenset(wrong), frozenset(r.failure.kind for r in group.rollouts if r.failure)


@dataclass(slots=True)
class _Open:
    """A pool that is being filled: groups by their place in the batch."""

    groups: dict[int, Group] = field(default_factory=dict)
    tokens: int = 0


class Pooling:
    """Hands out the groups that teach, in batch order as far as they are alike, as soon as all before them are done.

    A pool is full with ``groups_per_call`` groups, or when the next group would not fit ``max_prompt_tokens`` beside
    them. What is left at the end is put together. The pools depend on the batch only, never on which group was done
    first.
    """

    def __init__(self, total: int, reflection: Reflection, teaching: Teaching) -> None:
        self._total, self._teaching = total, teaching
        self._size, self._max_tokens = reflection.groups_per_call, reflection.max_prompt_tokens
        self._done: dict[int, Group] = {}
        self._next = 0
        self._open: dict[Hashable, _Open] = {}
        self._handed_out = 0

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups so far in batch order, in brief where they were handed out."""
        return tuple(group for _, group in sorted(self._done.items()))

    def add(self, position: int, group: Group) -> Iterator[tuple[int, Pool]]:
        """Take a finished group; yields every pool that is full now, with its number."""
        self._done[position] = group
        while self._next in self._done:
            ready = self._done[self._next]
            self._done[self._next] = ready.brief()
            if self._teaching.teaches(ready):
                yield from self._put(self._teaching.likeness(ready), self._next, ready)
            self._next += 1
        if self._next == self._total:
            yield from self._rest()

    def _put(self, likeness: Hashable, position: int, group: Group) -> Iterator[tuple[int, Pool]]:
        pool, tokens = self._open.setdefault(likeness, _Open()), group_tokens(group)
        if pool.groups and pool.tokens + tokens > self._max_tokens:
            yield self._hand_out(likeness)
            pool = self._open.setdefault(likeness, _Open())
        pool.groups[position] = group
        pool.tokens += tokens
        if len(pool.groups) == self._size:
            yield self._hand_out(likeness)

    def _rest(self) -> Iterator[tuple[int, Pool]]:
        """Pools that are not full, put together; those that began first come first."""
        left = sorted((min(pool.groups), pool) for pool in self._open.values())
        self._open = {}
        for _, pool in left:
            for position, group in pool.groups.items():
                yield from self._put("rest", position, group)
        if self._open:
            yield self._hand_out("rest")

    def _hand_out(self, likeness: Hashable) -> tuple[int, Pool]:
        number, pool = self._handed_out, self._open.pop(likeness)
        self._handed_out += 1
        return number, [group for _, group in sorted(pool.groups.items())]
