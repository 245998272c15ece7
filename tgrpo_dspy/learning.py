"""The stages of one step: explore a batch, improve the library, score it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import dspy

from tgrpo_dspy.evaluation.evaluate import evaluate
from tgrpo_dspy.library.guards import Guards
from tgrpo_dspy.library.library import Applied, ExperienceLibrary
from tgrpo_dspy.records import Advantage, Evaluation, Group
from tgrpo_dspy.reflection.reflector import Reflector
from tgrpo_dspy.reflection.trajectory import group_tokens
from tgrpo_dspy.runs.events import Announcer, Evaluated, GroupFinished, StepStarted
from tgrpo_dspy.sampling.examples import Item
from tgrpo_dspy.sampling.executor import task_group
from tgrpo_dspy.sampling.policy import Policy
from tgrpo_dspy.sampling.rollouts import Sampler
from tgrpo_dspy.settings import LibraryLimits, Reflection


@dataclass(frozen=True, slots=True)
class Exploration:
    """What a batch gave: its groups in batch order and in brief, and the advantages drawn from the informative ones."""

    groups: tuple[Group, ...]
    informative: int
    advantages: tuple[Advantage, ...]
    ran: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Learner:
    """Carries out the stages of a step for one student.

    Args:
        student: the program, without a library of its own.
        val: validation examples; may be empty.
        group_size: rollouts per example.
        min_spread: a group is informative when its spread is larger.
        reflection: how many groups one reflection call may see.
        limits, guards: what a library may hold.
    """

    student: dspy.Module
    val: Sequence[Item]
    group_size: int
    min_spread: float
    reflection: Reflection
    limits: LibraryLimits
    guards: Guards
    sampler: Sampler
    reflector: Reflector
    announce: Announcer
    _scored: dict[str, Evaluation] = field(default_factory=dict)

    async def explore(self, batch: Sequence[Item], library: ExperienceLibrary, step: int) -> Exploration:
        """Sample a group for every example and reflect on the informative ones as soon as their pool is full."""
        self.announce(StepStarted(step=step, examples=len(batch), group_size=self.group_size))
        policy = Policy.of(self.student, library)
        pooling = _Pooling(
            len(batch), self.reflection.groups_per_call, self.reflection.max_prompt_tokens, self.min_spread
        )
        advantages: dict[int, Advantage] = {}
        ran: set[str] = set()

        async with task_group() as tasks:

            async def reflect(number: int, groups: Sequence[Group]) -> None:
                advantages[number] = await self.reflector.advantage(groups, library)

            async def sample(lane: int, item: Item) -> None:
                group = await self.sampler.group(policy, item, size=self.group_size, step=step, lane=lane)
                ran.update(turn.name for rollout in group.rollouts for turn in rollout.turns)
                self.announce(GroupFinished(group=group, informative=group.spread > self.min_spread))
                for number, groups in pooling.add(lane, group):
                    tasks.start_soon(reflect, number, groups)

            for lane, item in enumerate(batch):
                tasks.start_soon(sample, lane, item)

        groups = tuple(group for group in pooling.groups if group.rollouts)
        return Exploration(
            groups=groups,
            informative=sum(group.spread > self.min_spread for group in groups),
            advantages=tuple(advantage for _, advantage in sorted(advantages.items())),
            ran=tuple(sorted(ran)),
        )

    async def improve(self, advantages: Sequence[Advantage], library: ExperienceLibrary, step: int) -> Applied:
        """Curate the edits of the step and carry them out together."""
        proposed = [edit for advantage in advantages for edit in advantage.edits or ()]
        edits, refused = await self.reflector.curate(proposed, library)
        applied = library.apply(edits, step=step, limits=self.limits, guards=self.guards)
        return replace(applied, refused=(*refused, *applied.refused))

    async def score(self, library: ExperienceLibrary, step: int) -> Evaluation | None:
        """The library's validation score; None without a validation set, or when the run stops before it is known.

        What was scored before is not run again.
        """
        if not self.val:
            return None
        policy = Policy.of(self.student, library)
        if policy.identity not in self._scored:
            evaluation = await evaluate(policy, self.val, self.sampler)
            if evaluation is None:
                return None
            self._scored[policy.identity] = evaluation
        self.announce(Evaluated(step=step, evaluation=self._scored[policy.identity]))
        return self._scored[policy.identity]

    def remember(self, library: ExperienceLibrary, evaluation: Evaluation | None) -> None:
        """Take over a score from an earlier run."""
        if evaluation is not None:
            self._scored[Policy.of(self.student, library).identity] = evaluation


class _Pooling:
    """Hands out informative groups in batch order, as soon as all before them are done.

    A pool is full with ``size`` groups or when the next group would not fit ``max_tokens`` beside it. The pools depend
    on the batch only, never on which group was done first.
    """

    def __init__(self, total: int, size: int, max_tokens: int, min_spread: float) -> None:
        self._total, self._size, self._max_tokens, self._min_spread = total, size, max_tokens, min_spread
        self._done: dict[int, Group] = {}
        self._next = 0
        self._pool: list[Group] = []
        self._tokens = 0
        self._handed_out = 0

    @property
    def groups(self) -> tuple[Group, ...]:
        return tuple(group for _, group in sorted(self._done.items()))

    def add(self, position: int, group: Group) -> Iterator[tuple[int, list[Group]]]:
        """Take a finished group; yields every pool that is full now, with its number."""
        self._done[position] = group
        while self._next in self._done:
            ready = self._done[self._next]
            self._done[self._next] = ready.brief()
            self._next += 1
            if ready.spread > self._min_spread:
                tokens = group_tokens(ready)
                if self._pool and self._tokens + tokens > self._max_tokens:
                    yield self._hand_out()
                self._pool.append(ready)
                self._tokens += tokens
            if len(self._pool) == self._size or (self._pool and self._next == self._total):
                yield self._hand_out()

    def _hand_out(self) -> tuple[int, list[Group]]:
        pool = (self._handed_out, self._pool)
        self._handed_out += 1
        self._pool, self._tokens = [], 0
        return pool
