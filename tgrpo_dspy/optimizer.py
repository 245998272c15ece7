"""Training-Free GRPO as a DSPy optimizer."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import dspy
from dspy.teleprompt import Teleprompter

from tgrpo_dspy.cloning import ProgramT, choices, require_predictors
from tgrpo_dspy.errors import ConfigurationError
from tgrpo_dspy.learning import Exploration, Learner
from tgrpo_dspy.library.guards import Guards
from tgrpo_dspy.library.instructions import inject, read_library, strip
from tgrpo_dspy.library.library import Applied, ExperienceLibrary
from tgrpo_dspy.records import CompileReport, Evaluation, Role, StepRecord, Usage
from tgrpo_dspy.reflection.advantage import SemanticAdvantage
from tgrpo_dspy.reflection.asking import Asker
from tgrpo_dspy.reflection.curation import Curation
from tgrpo_dspy.reflection.curator import Curator
from tgrpo_dspy.reflection.reflector import Reflector
from tgrpo_dspy.reflection.trajectory import render_task
from tgrpo_dspy.runs.events import Announcer, Listener, RunFinished, RunStarted, StepFinished
from tgrpo_dspy.runs.usage import UsageLedger, difference
from tgrpo_dspy.sampling.batches import batches
from tgrpo_dspy.sampling.examples import Item, items_of
from tgrpo_dspy.sampling.executor import Slots, run_anywhere
from tgrpo_dspy.sampling.rewards import Metric
from tgrpo_dspy.sampling.rollouts import Sampler
from tgrpo_dspy.settings import LibraryLimits, Reflection, Sampling, require
from tgrpo_dspy.views.progress import ProgressBar


class TrainingFreeGRPO(Teleprompter):
    """Improve a program by lessons distilled from groups of its own rollouts (Training-Free GRPO, arXiv 2510.08191).

    For every example of a batch the program runs ``group_size`` times with the current library of experiences in its
    instructions. Where the rewards of a group differ, a language model says what set the better runs apart and
    proposes edits to the library. The edits of all groups together make the next library. No weights change.

    Args:
        metric: ``(gold, pred, trace=None, pred_name=None, pred_trace=None)`` returning a bool, a number, or
            ``dspy.Prediction(score=…, feedback=…)``; feedback is shown to the reflecting model. May be async.
        group_size: rollouts per example and step, 2 or more (paper: 5).
        epochs: passes over the trainset, 1 or more (paper: 3).
        batch_size: examples per step; None: the whole trainset, as in the paper. The last batch may be shorter.
        seed: fixes the batches and the rollout ids.
        num_threads: runs and LM calls at once; None: ``dspy.settings.num_threads``.
        reflection_lm: the LM that reflects; None: the one the student runs on.
        use_ground_truth: show the labels of training examples to the reflecting model.
        sampling: temperature while learning, failure reward, spread of an informative group.
        reflection: pooling, prompt bounds and retries of the reflection.
        limits: bounds of the library.
        listeners: called with every event of a run.

    Raises:
        ConfigurationError: for an argument that cannot work.

    Example:
        >>> optimizer = TrainingFreeGRPO(metric=lambda gold, pred, trace=None: gold.answer == pred.answer, epochs=2)
        >>> TrainingFreeGRPO(metric=len, group_size=1)
        Traceback (most recent call last):
        ...
        tgrpo_dspy.errors.ConfigurationError: metric 'len' has the signature (obj, /), but is called as (gold, pred) ...
    """

    def __init__(
        self,
        metric: Callable[..., Any],
        *,
        group_size: int = 5,
        epochs: int = 3,
        batch_size: int | None = None,
        seed: int = 0,
        num_threads: int | None = None,
        reflection_lm: dspy.BaseLM | None = None,
        use_ground_truth: bool = True,
        sampling: Sampling | None = None,
        reflection: Reflection | None = None,
        limits: LibraryLimits | None = None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        super().__init__()
        self._metric = Metric(metric)
        require(group_size >= 2, "group_size", group_size, "a group needs 2 or more rollouts to be compared")
        require(epochs >= 1, "epochs", epochs, "use 1 or more")
        require(batch_size is None or batch_size >= 1, "batch_size", batch_size, "use 1 or more, or None")
        require(num_threads is None or num_threads >= 1, "num_threads", num_threads, "use 1 or more, or None")
        self.metric = metric
        self.group_size, self.epochs, self.batch_size = group_size, epochs, batch_size
        self.seed, self.num_threads = seed, num_threads
        self.reflection_lm = reflection_lm
        self.use_ground_truth = use_ground_truth
        self.sampling = sampling or Sampling()
        self.reflection = reflection or Reflection()
        self.limits = limits or LibraryLimits()
        self.listeners = list(listeners)
        self.report: CompileReport | None = None

    def get_params(self) -> dict[str, Any]:
        """The settings of the optimizer, as a new dict."""
        hidden = {"metric", "listeners", "report", "reflection_lm"}
        return {k: v for k, v in vars(self).items() if k not in hidden and not k.startswith("_")}

    def compile(
        self,
        student: ProgramT,
        *,
        trainset: list[dspy.Example],
        teacher: dspy.Module | None = None,
        valset: list[dspy.Example] | None = None,
        initial_library: ExperienceLibrary | None = None,
        verbose: bool = True,
    ) -> ProgramT:
        """Learn a library for the student and return a copy of it that carries the library in its instructions.

        Works inside a running event loop (a notebook) too. ``self.report`` tells afterwards what happened.

        Args:
            student: any DSPy program; never changed. One that already carries a library goes on from it.
            trainset: examples with ``with_inputs``.
            teacher: not used by this method; must be None.
            valset: examples on which the student and every new library are scored; the best one is returned, never
                one that scored below the student. None: the last library is returned, as in the paper.
            initial_library: where learning starts; None: the library the student carries, if any.
            verbose: show progress on standard error.

        Raises:
            ConfigurationError: for a set or a program that cannot work, before any LM call.
            MetricError: when the metric returns no reward, or raises on every rollout.
            LMUnavailableError: when the LM fails for good.
            LibraryError: when ``initial_library`` has an experience for a predictor the student does not have.
        """
        return run_anywhere(
            partial(
                self.acompile,
                student,
                trainset=trainset,
                teacher=teacher,
                valset=valset,
                initial_library=initial_library,
                verbose=verbose,
            )
        )

    async def acompile(
        self,
        student: ProgramT,
        *,
        trainset: list[dspy.Example],
        teacher: dspy.Module | None = None,
        valset: list[dspy.Example] | None = None,
        initial_library: ExperienceLibrary | None = None,
        verbose: bool = True,
    ) -> ProgramT:
        """``compile`` for asynchronous code; the same arguments, result and errors."""
        if teacher not in (None, []):
            raise ConfigurationError(
                "teacher is not used by TrainingFreeGRPO: it learns from the student's own rollouts. To let a stronger "
                "model write the lessons, pass reflection_lm=dspy.LM(…)."
            )
        require_predictors(student)
        started = time.monotonic()
        train = items_of(trainset, "trainset")
        val = items_of(valset, "valset") if valset is not None else []
        bar = ProgressBar() if verbose else None
        ledger, announce = UsageLedger(), Announcer([*self.listeners, *([bar] if bar else [])])
        learner = self._learner(student, train, val, ledger, announce)
        carried = read_library(student)
        library = carried if initial_library is None else initial_library
        inject(student, library)  # an experience for a predictor that does not exist is an error before any LM call
        try:
            announce(self._run_started(train, val))
            student_score = await learner.score(carried, step=0)
            best = _Best(carried, student_score)
            if library != carried:
                best = best.or_better(library, await learner.score(library, step=0), step=0)
            steps: list[StepRecord] = []
            async for record in self._steps(learner, library, train, ledger):
                steps.append(record)
                announce(StepFinished(record=record))
                best = best.or_better(record.after, record.evaluation, record.step)
            self.report = CompileReport(
                steps=tuple(steps),
                student=student_score,
                library=best.library,
                best_step=best.step,
                usage=ledger.total(),
                seconds=time.monotonic() - started,
            )
            announce(RunFinished(report=self.report))
        finally:
            if bar:
                bar.close()
        return inject(student, best.library)

    async def _steps(
        self, learner: Learner, library: ExperienceLibrary, train: list[Item], ledger: UsageLedger
    ) -> AsyncIterator[StepRecord]:
        """The paper's algorithm: explore a batch, improve the library by what set its better runs apart, go on."""
        step = 0
        for epoch in range(1, self.epochs + 1):
            for batch in batches(train, size=self.batch_size, epoch=epoch, seed=self.seed):
                step, clock = step + 1, _Clock(ledger)
                explored = await learner.explore(batch, library, step)
                applied = await learner.improve(explored.advantages, library, step)
                evaluation = await learner.score(applied.library, step)
                yield _record(step, epoch, explored, library, applied, evaluation, clock)
                library = applied.library

    def _learner(
        self, student: dspy.Module, train: list[Item], val: list[Item], ledger: UsageLedger, announce: Announcer
    ) -> Learner:
        """The stages of a step, made for this student."""
        slots = Slots(self.num_threads or dspy.settings.num_threads)
        student_lm = _lm_of(student)
        asker = Asker(self.reflection_lm or student_lm, slots, ledger)
        return Learner(
            student=strip(student),
            val=val,
            group_size=self.group_size,
            min_spread=self.sampling.min_spread,
            reflection=self.reflection,
            limits=self.limits,
            guards=Guards.for_examples(
                ((item.inputs, item.labels) for item in train), allowed=[*self.limits.allowed, *choices(student)]
            ),
            sampler=Sampler(
                metric=self._metric,
                sampling=self.sampling,
                slots=slots,
                ledger=ledger,
                announce=announce,
                seed=self.seed,
            ),
            reflector=Reflector(
                advantage=self.reflection.advantage or SemanticAdvantage(self.reflection.attempts),
                curator=Curator(self.reflection.curation or Curation(), asker, self.reflection),
                asker=asker,
                task=render_task(student),
                predictors=[name for name, _ in student.named_predictors()],
                settings=self.reflection,
                with_labels=self.use_ground_truth,
                announce=announce,
            ),
            announce=announce,
        )

    def _run_started(self, train: list[Item], val: list[Item]) -> RunStarted:
        per_epoch = math.ceil(len(train) / (self.batch_size or len(train)))
        steps = self.epochs * per_epoch
        rollouts = self.epochs * len(train) * self.group_size
        return RunStarted(steps=steps, program_runs=rollouts + (steps + 1) * len(val))


@dataclass(frozen=True, slots=True)
class _Best:
    """The library to return: the best on the validation set, or the last where there is none."""

    library: ExperienceLibrary
    evaluation: Evaluation | None
    step: int = 0

    def or_better(self, library: ExperienceLibrary, evaluation: Evaluation | None, step: int) -> _Best:
        if evaluation is None or self.evaluation is None or evaluation.mean > self.evaluation.mean:
            return _Best(library, evaluation, step)
        return self


class _Clock:
    """Usage and seconds since it was made."""

    def __init__(self, ledger: UsageLedger) -> None:
        self._ledger, self._usage, self._started = ledger, ledger.total(), time.monotonic()

    def usage(self) -> Mapping[Role, Usage]:
        return difference(self._ledger.total(), self._usage)

    def seconds(self) -> float:
        return time.monotonic() - self._started


def _record(
    step: int,
    epoch: int,
    explored: Exploration,
    before: ExperienceLibrary,
    applied: Applied,
    evaluation: Evaluation | None,
    clock: _Clock,
) -> StepRecord:
    return StepRecord(
        step=step,
        epoch=epoch,
        groups=explored.groups,
        informative=explored.informative,
        advantages=explored.advantages,
        applied=applied.applied,
        refused=applied.refused,
        evicted=applied.evicted,
        joined=applied.joined,
        before=before,
        after=applied.library,
        evaluation=evaluation,
        usage=clock.usage(),
        seconds=clock.seconds(),
    )


def _lm_of(student: dspy.Module) -> dspy.BaseLM:
    """The LM that answers for the student; an error when one of its predictors has none."""
    default = dspy.settings.lm
    lms = {name: predictor.lm or default for name, predictor in student.named_predictors()}
    missing = [name for name, lm in lms.items() if not isinstance(lm, dspy.BaseLM)]
    if missing:
        raise ConfigurationError(
            f"no LM is configured for predictor {', '.join(missing)} (found {lms[missing[0]]!r}): call "
            "dspy.configure(lm=dspy.LM('provider/model')) first, or give the program one with program.set_lm(…)"
        )
    return default or next(iter(lms.values()))
