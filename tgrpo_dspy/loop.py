"""The loop of Training-Free GRPO: step by step to a better library, and the report of it."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import dspy

from tgrpo_dspy.cloning import frozen_parts
from tgrpo_dspy.evaluation.acceptance import Acceptance
from tgrpo_dspy.evaluation.attribution import measure
from tgrpo_dspy.evaluation.choice import Offer
from tgrpo_dspy.evaluation.exemplars import foremost, show
from tgrpo_dspy.evaluation.pruning import confirm
from tgrpo_dspy.evaluation.scorer import Scorer
from tgrpo_dspy.evaluation.selection import Selection
from tgrpo_dspy.learning import Learner
from tgrpo_dspy.library.experience import Experience
from tgrpo_dspy.library.instructions import strip
from tgrpo_dspy.library.library import ExperienceLibrary
from tgrpo_dspy.records import CompileReport, Evaluation, Measured, StepRecord, Usage
from tgrpo_dspy.runs.events import Announcer, EditDecided, RunFinished, StepDecided, StepFinished, Warned
from tgrpo_dspy.runs.spending import Spending
from tgrpo_dspy.runs.usage import UsageLedger
from tgrpo_dspy.runs.work import Work
from tgrpo_dspy.sampling.curriculum import Curriculum
from tgrpo_dspy.sampling.examples import Item
from tgrpo_dspy.sampling.executor import Later, task_group

if TYPE_CHECKING:  # DSPy 3.4.0 loads anyio lazily, and its parts cannot be loaded before it
    from anyio.abc import TaskGroup

RESULT = "result"
"""Where the report of a finished run is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What there is to learn: for whom, from what, starting where."""

    student: dspy.Module
    train: list[Item]
    val: list[Item]
    lm: dspy.BaseLM
    carried: ExperienceLibrary
    initial: ExperienceLibrary | None

    @property
    def library(self) -> ExperienceLibrary:
        return self.carried if self.initial is None else self.initial


@dataclass(frozen=True, slots=True)
class _Learned:
    """A step whose library is to be scored, what it used so far, and when it began.

    ``used`` is None for a step that an earlier run has finished.
    """

    record: StepRecord
    used: UsageLedger | None = None
    started: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """One run of the method.

    Args:
        task: what there is to learn.
        learner: carries out the stages of a step.
        curriculum: which examples an epoch samples.
        acceptance: decides what becomes of a step.
        work: keeps finished steps, and gives them back.
        spending: says when to stop.
        announce: told of finished steps and of the end.
        epochs: passes over the training set.
        exemplars: most exemplars beside the library.
        prune: whether to measure and prune the library at the end.
        prune_level: chance at which an experience without effect is pruned.
        seed: draws what is measured then.
        waits: whether a step waits for the score of the one before, or goes on beside it.
    """

    task: Task
    learner: Learner
    curriculum: Curriculum
    acceptance: Acceptance
    work: Work
    spending: Spending
    announce: Announcer
    epochs: int
    exemplars: int
    prune: bool
    prune_level: float
    seed: int
    waits: bool

    async def run(self) -> CompileReport:
        """Go through the steps, and keep the best library, and the exemplars that are worth it."""
        started = time.monotonic()
        task, spending = self.task, self.spending
        frozen = tuple(frozen_parts(task.student))
        self._warn(frozen, "compiled before, and frozen since (_compiled is True)")
        steps: list[StepRecord] = []
        async with task_group() as tasks:
            start = Later(tasks, self._start)
            async for record in self._steps(tasks, start):
                steps.append(record)
                self._tell(record)
            selection = await start.get()
        if spending.lm_error is not None and not any(record.applied for record in steps):
            raise spending.lm_error
        exemplars = foremost((e for record in steps for e in record.exemplars), self.exemplars)
        best, student_score = selection.best, selection.student_score
        beside = best if len(best.library) else selection.current
        chosen, choices = await self.learner.choose(best.library, beside.library, exemplars, student_score)
        library, effects, pruned = await self._pruned(chosen)
        report = CompileReport(
            steps=tuple(steps),
            student=student_score,
            library=library,
            best_step=next((c.step for c in (best, beside) if c.library == chosen.library), 0),
            usage=self.work.ledger.total(),
            seconds=time.monotonic() - started,
            stopped_by=spending.stopped_by,
            frozen=frozen,
            untouched=_untouched(task.student, steps, student_score),
            exemplars=chosen.exemplars,
            choices=choices,
            effects=effects,
            pruned=pruned,
        )
        if report.stopped_by is None:
            self.work.keep(RESULT, CompileReport, report, {})
        self._warn(report.untouched, "never ran")
        self.announce(RunFinished(report=report))
        return report

    async def _start(self) -> Selection:
        """Score the student, and the library that learning starts from."""
        task, learner = self.task, self.learner
        selection = Selection(self.acceptance, task.carried, await learner.score(task.carried, step=0))
        self._set_aside()
        if task.library != task.carried:
            selection.start(task.library, await learner.score(task.library, step=0))
        return selection

    async def _steps(self, tasks: TaskGroup, start: Later[Selection]) -> AsyncIterator[StepRecord]:
        """The paper's algorithm, step by step.

        A step's library is scored while the next step goes on from it, unless where that starts depends on the score.
        """
        library = self.task.library
        scored: Later[StepRecord] | None = None
        if self.waits:
            await start.get()
        for step, epoch, batch in self._batches():
            learned = await self._learn(library, batch, step, epoch)
            if self.spending.stopped_by is not None and not learned.record.groups:
                break
            self.curriculum.observe(learned.record.groups, epoch)
            selection = await start.get()
            if scored is not None:
                yield self._decide(await scored.get(), selection)
            scored = Later(tasks, partial(self._score, learned))
            library = learned.record.after
            if self.waits or learned.used is None:
                yield self._decide(await scored.get(), selection)
                scored, library = None, selection.current.library
        if scored is not None:
            yield self._decide(await scored.get(), await start.get())

    def _batches(self) -> Iterator[tuple[int, int, list[Item]]]:
        """Number, epoch and batch of every step, until the run has to stop."""
        step = 0
        for epoch in range(1, self.epochs + 1):
            for batch in self.curriculum.batches(epoch):
                if self.spending.stopped_by is not None:
                    return
                step += 1
                yield step, epoch, batch

    async def _learn(self, library: ExperienceLibrary, batch: list[Item], step: int, epoch: int) -> _Learned:
        """Explore a batch and improve the library by what set its better runs apart.

        What an earlier run finished is taken over from it.
        """
        kept: StepRecord | None = self.work.recall(f"step/{step}", StepRecord)
        if kept is not None:
            self.learner.remember(kept)
            return _Learned(kept)
        started = time.monotonic()
        with self.work.part() as used:
            explored = await self.learner.explore(batch, library, step, highest=self.curriculum.highest)
            improved = await self.learner.improve(explored, library, step)
        record = StepRecord(
            step=step,
            epoch=epoch,
            groups=explored.groups,
            informative=explored.informative,
            advantages=explored.advantages,
            applied=improved.applied.applied,
            refused=improved.applied.refused,
            evicted=improved.applied.evicted,
            joined=improved.applied.joined,
            dropped=improved.dropped,
            effects=improved.effects,
            before=library,
            after=improved.applied.library,
            evaluation=None,
            ran=explored.ran,
            usage={},
            seconds=0.0,
            exemplars=explored.exemplars,
        )
        return _Learned(record, used, started)

    async def _score(self, learned: _Learned) -> StepRecord:
        """The record of a step with the score of its library, which makes it complete; it is kept then."""
        if learned.used is None:
            return learned.record
        with self.work.part() as used:
            evaluation = await self.learner.score(learned.record.after, learned.record.step)
        learned.used.add(used.total())
        record = replace(
            learned.record,
            evaluation=evaluation,
            usage=learned.used.total(),
            seconds=time.monotonic() - learned.started,
        )
        if self.spending.stopped_by is None:
            self.work.keep(f"step/{record.step}", StepRecord, record, record.usage)
        return record

    def _decide(self, record: StepRecord, selection: Selection) -> StepRecord:
        """Whether learning goes on from the step's library, or as if the step had not been."""
        accepted, verdict = selection.decide(record.step, record.after, record.evaluation)
        if not accepted:
            self.learner.roll_back(record)
        return replace(record, accepted=accepted, verdict=verdict)

    def _tell(self, record: StepRecord) -> None:
        """Announce a step, what became of its edits, and what is left of the budget."""
        decided = [(edit, None) for edit in record.applied] + [(r.edit, r.reason) for r in record.refused]
        for edit, refused in decided:
            self.announce(EditDecided(step=record.step, edit=edit, refused=refused))
        self.announce(StepDecided(step=record.step, accepted=record.accepted, verdict=record.verdict))
        self.announce(StepFinished(record=record))
        self.spending.tell()

    def _warn(self, parts: Sequence[str], why: str) -> None:
        """Announce what of the student got no experience."""
        if parts:
            self.announce(Warned(message=f"no experience goes to {', '.join(parts)}: {why}"))

    async def _pruned(self, chosen: Offer) -> tuple[ExperienceLibrary, Mapping[str, Measured], tuple[Experience, ...]]:
        """The library without what was measured harmful on the validation set, every effect, and what is gone."""
        if not (self.prune and self.task.val and len(chosen.library)) or self.spending.stopped_by is not None:
            return chosen.library, {}, ()
        scorer = Scorer(
            student=strip(show(self.task.student, chosen.exemplars)),
            evaluator=self.learner.evaluator,
            spending=self.spending,
            ledger=self.work.ledger,
        )
        repeats = self.learner.repeats
        attribution = await measure(chosen.library, scorer, max_rollouts=None, repeats=repeats, seed=self.seed)
        confirmed = await confirm(self.task.student, attribution, scorer, level=self.prune_level)
        return confirmed.library, attribution.effects, confirmed.dropped

    def _set_aside(self) -> None:
        """Reserve what scoring a library took, and what reflecting on a step will take at least."""
        settings, batch = self.learner.reflection, self.curriculum.largest_batch
        calls = math.ceil(batch / settings.groups_per_call)
        self.spending.reserve(
            evaluation=self.work.ledger.total().get("evaluation", Usage()),
            runs=len(self.task.val) * self.learner.repeats,
            reflection=Usage(calls=calls, prompt_tokens=calls * settings.max_prompt_tokens),
        )


def _untouched(student: dspy.Module, steps: Sequence[StepRecord], evaluation: Evaluation | None) -> tuple[str, ...]:
    """The predictors that never ran while others did."""
    evaluations = (evaluation, *(record.evaluation for record in steps))
    ran = {name for record in steps for name in record.ran} | {name for e in evaluations if e for name in e.ran}
    predictors = student.named_predictors()
    # A copy of a copied predictor cannot be told from the other copies.
    stages = Counter(predictor.stage for _, predictor in predictors)
    names = {name for name, _ in predictors}
    idle = (name for name, predictor in predictors if name not in ran and stages[predictor.stage] == 1)
    return tuple(idle) if ran & names else ()
