"""The stages of one step: explore a batch, improve the library, score it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import dspy

from tgrpo_dspy.evaluation.evaluate import evaluate
from tgrpo_dspy.evaluation.trial import Trial
from tgrpo_dspy.library.experience import Experience
from tgrpo_dspy.library.guards import Guards
from tgrpo_dspy.library.library import Applied, ExperienceLibrary
from tgrpo_dspy.records import Advantage, Evaluation, Group, Measured, StepRecord
from tgrpo_dspy.reflection.pooling import Pooling, Teaching
from tgrpo_dspy.reflection.reflector import Reflector
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


@dataclass(frozen=True, slots=True)
class Improvement:
    """What a step made of the library: the edits carried out, and what the trial dropped and measured."""

    applied: Applied
    dropped: tuple[Experience, ...]
    effects: Mapping[str, Measured]


@dataclass(frozen=True, kw_only=True)
class Learner:
    """Carries out the stages of a step for one student.

    Args:
        student: the program, without a library of its own.
        val: validation examples; may be empty.
        repeats: runs per validation example.
        group_size: rollouts per example.
        teaching: which groups are reflected on.
        trial: which experiences a rollout goes without, and what that shows.
        reflection: how many groups one reflection call may see.
        limits, guards: what a library may hold.
    """

    student: dspy.Module
    val: Sequence[Item]
    repeats: int
    group_size: int
    teaching: Teaching
    trial: Trial
    reflection: Reflection
    limits: LibraryLimits
    guards: Guards
    sampler: Sampler
    reflector: Reflector
    announce: Announcer
    _scored: dict[str, Evaluation] = field(default_factory=dict)

    async def explore(self, batch: Sequence[Item], library: ExperienceLibrary, step: int) -> Exploration:
        """Sample a group for every example and reflect on those that teach as soon as their pool is full."""
        self.announce(StepStarted(step=step, examples=len(batch), group_size=self.group_size))
        variants = self.trial.variants(partial(Policy.of, self.student), library, self.group_size, step)
        pooling = Pooling(len(batch), self.reflection, self.teaching)
        advantages: dict[int, Advantage] = {}
        ran: set[str] = set()

        async with task_group() as tasks:

            async def reflect(number: int, groups: Sequence[Group]) -> None:
                advantages[number] = await self.reflector.advantage(groups, library)

            async def sample(lane: int, item: Item) -> None:
                group = await self.sampler.group(variants(lane), item, step=step, lane=lane)
                ran.update(turn.name for rollout in group.rollouts for turn in rollout.turns)
                self.announce(GroupFinished(group=group, informative=self.teaching.is_informative(group)))
                for number, groups in pooling.add(lane, group):
                    tasks.start_soon(reflect, number, groups)

            for lane, item in enumerate(batch):
                tasks.start_soon(sample, lane, item)

        groups = tuple(group for group in pooling.groups if group.rollouts)
        return Exploration(
            groups=groups,
            informative=sum(map(self.teaching.is_informative, groups)),
            advantages=tuple(advantage for _, advantage in sorted(advantages.items())),
            ran=tuple(sorted(ran)),
        )

    async def improve(self, explored: Exploration, library: ExperienceLibrary, step: int) -> Improvement:
        """Curate the edits of the step, carry them out together, and drop what the trial has shown to do harm."""
        proposed = [edit for advantage in explored.advantages for edit in advantage.edits or ()]
        edits, refused = await self.reflector.curate(proposed, library, explored.ran)
        applied = library.apply(edits, step=step, limits=self.limits, guards=self.guards)
        self.trial.observe(explored.groups, step)
        judged, dropped, effects = self.trial.judge(applied.library)
        return Improvement(
            replace(applied, library=judged, refused=(*refused, *applied.refused)), dropped=dropped, effects=effects
        )

    async def score(self, library: ExperienceLibrary, step: int) -> Evaluation | None:
        """The library's validation score; None without a validation set, or when the run stops before it is known.

        What was scored before is not run again.
        """
        if not self.val:
            return None
        policy = Policy.of(self.student, library)
        if policy.identity not in self._scored:
            evaluation = await evaluate(policy, self.val, self.sampler, repeats=self.repeats)
            if evaluation is None:
                return None
            self._scored[policy.identity] = evaluation
        self.announce(Evaluated(step=step, evaluation=self._scored[policy.identity]))
        return self._scored[policy.identity]

    def remember(self, record: StepRecord) -> None:
        """Take over what a step of an earlier run has measured."""
        self.trial.observe(record.groups, record.step)
        if record.evaluation is not None:
            self._scored[Policy.of(self.student, record.after).identity] = record.evaluation
