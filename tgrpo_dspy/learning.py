"""The stages of one step: explore a batch, improve the library, score it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import dspy

from tgrpo_dspy.evaluation.choice import Offer, as_choices, decide, prompt_tokens
from tgrpo_dspy.evaluation.evaluator import Evaluator
from tgrpo_dspy.evaluation.exemplars import best_rollout, foremost, is_new, labelled, show
from tgrpo_dspy.evaluation.trial import Trial
from tgrpo_dspy.library.edits import Edit, Refusal
from tgrpo_dspy.library.experience import Experience
from tgrpo_dspy.library.guards import Guards
from tgrpo_dspy.library.library import Applied, ExperienceLibrary
from tgrpo_dspy.records import Advantage, Choice, Evaluation, Exemplar, Group, Measured, StepRecord
from tgrpo_dspy.reflection.pooling import Pooling, Teaching
from tgrpo_dspy.reflection.reflector import Reflector
from tgrpo_dspy.runs.events import Announcer, Evaluated, GroupFinished, StepStarted
from tgrpo_dspy.sampling.examples import Item
from tgrpo_dspy.sampling.executor import task_group
from tgrpo_dspy.sampling.policy import Policy
from tgrpo_dspy.sampling.rollouts import Sampler
from tgrpo_dspy.settings import LibraryLimits, Reflection

# A step keeps more exemplars than are shown in the end, since other steps may find better ones of the same examples.
_SPARE = 2


@dataclass(frozen=True, slots=True)
class Exploration:
    """What a batch gave: its groups in batch order and in brief, the advantages drawn from those that teach, the
    predictors that ran, and what may be shown as an exemplar.
    """

    groups: tuple[Group, ...]
    informative: int
    advantages: tuple[Advantage, ...]
    ran: tuple[str, ...]
    exemplars: tuple[Exemplar, ...]


_Said = tuple[str, tuple[str, ...], str, str | None]


def _said(edit: Edit) -> _Said:
    """What an edit does, whatever evidence it came with."""
    return edit.operation, edit.ids, edit.text, edit.target


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
        evaluator: scores libraries on the validation set, which may be empty.
        repeats: runs per validation example.
        group_size: rollouts per example.
        teaching: which groups are reflected on.
        trial: which experiences a rollout goes without, and what that shows.
        reflection: how many groups one reflection call may see.
        limits, guards: what a library may hold.
    """

    student: dspy.Module
    evaluator: Evaluator
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
    _failed: dict[tuple[Experience, ...], dict[_Said, int]] = field(default_factory=dict)

    async def explore(
        self, batch: Sequence[Item], library: ExperienceLibrary, step: int, *, highest: float
    ) -> Exploration:
        """Sample a group for every example and reflect on those that teach as soon as their pool is full.

        ``highest`` is the highest reward of the steps before.
        """
        self.announce(StepStarted(step=step, examples=len(batch), group_size=self.group_size))
        variants = self.trial.variants(partial(Policy.of, self.student), library, self.group_size, step)
        teaching = replace(self.teaching, highest=highest)
        pooling = Pooling(len(batch), self.reflection, teaching)
        advantages: dict[int, Advantage] = {}
        exemplars: dict[int, Exemplar] = {}
        ran: set[str] = set()

        async with task_group() as tasks:

            async def reflect(number: int, groups: Sequence[Group]) -> None:
                advantages[number] = await self.reflector.advantage(groups, library)

            async def sample(lane: int, item: Item) -> None:
                group = await self.sampler.group(variants(lane), item, step=step, lane=lane)
                ran.update(name for rollout in group.rollouts for name in rollout.ran)
                informative = teaching.is_informative(group)
                self.announce(GroupFinished(group=group, informative=informative))
                exemplar = self._exemplar(group, item, step, teaching)
                if exemplar is not None and is_new(exemplar, self.student):
                    exemplars[lane] = exemplar
                for number, groups in pooling.add(lane, group):
                    tasks.start_soon(reflect, number, groups)

            for lane, item in enumerate(batch):
                tasks.start_soon(sample, lane, item)

        groups = tuple(group for group in pooling.groups if group.rollouts)
        return Exploration(
            groups=groups,
            informative=sum(map(teaching.is_informative, groups)),
            advantages=tuple(advantage for _, advantage in sorted(advantages.items())),
            ran=tuple(sorted(ran)),
            exemplars=foremost((e for _, e in sorted(exemplars.items())), _SPARE * self.limits.exemplars),
        )

    def _exemplar(self, group: Group, item: Item, step: int, teaching: Teaching) -> Exemplar | None:
        """What to show of a group: its label where no rollout was right, or else its best rollout."""
        if not self.limits.exemplars:
            return None
        if teaching.is_never_right(group):
            shown = labelled(group, item, self.student, step, teaching.right)
            if shown is not None:
                return shown
        return best_rollout(group, step) if teaching.is_informative(group) else None

    async def improve(self, explored: Exploration, library: ExperienceLibrary, step: int) -> Improvement:
        """Curate the edits of the step, carry them out together, and drop what the trial has shown to do harm."""
        proposed = [edit for advantage in explored.advantages for edit in advantage.edits or ()]
        foreign = [refusal for advantage in explored.advantages for refusal in advantage.refused]
        edits, refused = await self.reflector.curate(proposed, library, explored.ran)
        edits, tried = self._untried(edits, library)
        applied = library.apply(edits, step=step, limits=self.limits, guards=self.guards)
        self.trial.observe(explored.groups, step)
        judged, dropped, effects = self.trial.judge(applied.library)
        return Improvement(
            replace(applied, library=judged, refused=(*foreign, *refused, *tried, *applied.refused)),
            dropped=dropped,
            effects=effects,
        )

    def roll_back(self, record: StepRecord) -> None:
        """Remember the edits of a step that made the library worse, so that they are not made again from there."""
        for edit in record.applied:
            self._failed.setdefault(record.before.experiences, {}).setdefault(_said(edit), record.step)

    def _untried(self, edits: Sequence[Edit], library: ExperienceLibrary) -> tuple[list[Edit], list[Refusal]]:
        failed = self._failed.get(library.experiences, {})
        untried = [edit for edit in edits if _said(edit) not in failed]
        refused = [
            Refusal(
                edit=edit, reason=f"was tried in step {failed[_said(edit)]}, which scored worse and was rolled back"
            )
            for edit in edits
            if _said(edit) in failed
        ]
        return untried, refused

    async def score(self, library: ExperienceLibrary, step: int) -> Evaluation | None:
        """The library's validation score; None without a validation set, or when the run stops before it is known."""
        if not self.evaluator.items:
            return None
        evaluation = await self.evaluator.evaluate(Policy.of(self.student, library), repeats=self.repeats)
        if evaluation is not None:
            self.announce(Evaluated(step=step, evaluation=evaluation))
        return evaluation

    async def choose(
        self,
        library: ExperienceLibrary,
        beside: ExperienceLibrary,
        exemplars: Sequence[Exemplar],
        student: Evaluation | None,
    ) -> tuple[Offer, tuple[Choice, ...]]:
        """What the compiled program is to carry, and what was measured to decide that (see ``decide``).

        Without a validation set it is the library with all exemplars.
        """
        if not (self.evaluator.items and exemplars):
            return Offer(library=library, exemplars=tuple(exemplars)), ()
        chosen, measured = await decide(library, beside, exemplars, student, self._measure)
        return chosen, as_choices(measured, chosen)

    async def _measure(self, offer: Offer) -> Offer:
        policy = Policy.of(show(self.student, offer.exemplars), offer.library)
        evaluation = await self.evaluator.evaluate(policy, repeats=self.repeats)
        return replace(offer, evaluation=evaluation, prompt_tokens=prompt_tokens(policy.program))

    def remember(self, record: StepRecord) -> None:
        """Take over what a step of an earlier run has measured."""
        self.trial.observe(record.groups, record.step)
        if record.evaluation is not None:
            self.evaluator.remember(Policy.of(self.student, record.after), record.evaluation)
