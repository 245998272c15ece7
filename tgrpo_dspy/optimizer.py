"""Training-Free GRPO as a DSPy optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dspy
from dspy.teleprompt import Teleprompter

from tgrpo_dspy.cloning import ProgramT, choices, held_lms, require_predictors
from tgrpo_dspy.errors import ConfigurationError
from tgrpo_dspy.estimation import Estimate, estimate
from tgrpo_dspy.evaluation.acceptance import acceptance_of, always_goes_on
from tgrpo_dspy.evaluation.choice import most_offers
from tgrpo_dspy.evaluation.evaluator import Evaluator
from tgrpo_dspy.evaluation.exemplars import show
from tgrpo_dspy.evaluation.scorer import lm_of, watch
from tgrpo_dspy.evaluation.trial import Trial
from tgrpo_dspy.learning import Learner
from tgrpo_dspy.library.codec import to_json
from tgrpo_dspy.library.guards import Guards
from tgrpo_dspy.library.instructions import inject, read_library, strip
from tgrpo_dspy.library.library import ExperienceLibrary
from tgrpo_dspy.loop import RESULT, Loop, Task
from tgrpo_dspy.records import CompileReport
from tgrpo_dspy.reflection.advantage import SemanticAdvantage
from tgrpo_dspy.reflection.asking import Asker
from tgrpo_dspy.reflection.curation import Curation
from tgrpo_dspy.reflection.curator import Curator
from tgrpo_dspy.reflection.pooling import Teaching
from tgrpo_dspy.reflection.reflector import Reflector
from tgrpo_dspy.reflection.trajectory import render_task
from tgrpo_dspy.runs.events import Announcer, Listener, RunStarted
from tgrpo_dspy.runs.folder import open_run
from tgrpo_dspy.runs.identity import (
    describe_adapter,
    describe_callable,
    describe_examples,
    describe_lm,
    describe_object,
    describe_program,
)
from tgrpo_dspy.runs.retries import Retries
from tgrpo_dspy.runs.secrets import Secrets
from tgrpo_dspy.runs.spending import Spending
from tgrpo_dspy.runs.usage import UsageLedger
from tgrpo_dspy.runs.work import Work
from tgrpo_dspy.sampling.curriculum import Curriculum
from tgrpo_dspy.sampling.examples import items_of
from tgrpo_dspy.sampling.executor import Slots, run_anywhere
from tgrpo_dspy.sampling.executors import executor_of
from tgrpo_dspy.sampling.jobs import Executor, Runner, Terms
from tgrpo_dspy.sampling.rewards import Metric
from tgrpo_dspy.settings import Budget, LibraryLimits, Reflection, Sampling, Validation, require
from tgrpo_dspy.views.otel import sampler_type
from tgrpo_dspy.views.progress import ProgressBar
from tgrpo_dspy.views.run_files import RunFiles
from tgrpo_dspy.views.tracking import tracked

_FORMAT = 1
_PATIENCE = ("lm_retries", "retry_delay", "max_lm_failures")
_OFF = {"exemplars": 0}  # what is not told, so that a folder from before there was such a setting is still the same run


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
        executor: where the program and the metric run: ``"threads"`` of this process, ``"ray"`` (tasks of a Ray
            cluster, for many machines; needs the extra ``ray``), a ``RayExecutor`` with settings of its own, or an
            object like theirs (``tgrpo_dspy.sampling.jobs.Executor``). It changes no result. Reflection runs here.
        reflection_lm: the LM that reflects; None: the one the student runs on.
        use_ground_truth: show the labels of training examples to the reflecting model.
        sampling: temperature while learning, failure reward, spread of an informative group.
        reflection: pooling, prompt bounds and retries of the reflection.
        limits: bounds of the library, and how many exemplars may stand beside it.
        validation: how libraries are scored, and which steps are accepted.

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
        executor: str | Executor = "threads",
        reflection_lm: dspy.BaseLM | None = None,
        use_ground_truth: bool = True,
        sampling: Sampling | None = None,
        reflection: Reflection | None = None,
        limits: LibraryLimits | None = None,
        validation: Validation | None = None,
    ) -> None:
        super().__init__()
        self._metric = Metric(metric)
        require(group_size >= 1, "group_size", group_size, "use 2 or more; 1 learns without comparing attempts")
        require(epochs >= 1, "epochs", epochs, "use 1 or more")
        require(batch_size is None or batch_size >= 1, "batch_size", batch_size, "use 1 or more, or None")
        require(num_threads is None or num_threads >= 1, "num_threads", num_threads, "use 1 or more, or None")
        self.metric = metric
        self.group_size, self.epochs, self.batch_size = group_size, epochs, batch_size
        self.seed, self.num_threads, self.executor = seed, num_threads, executor
        self.reflection_lm = reflection_lm
        self.use_ground_truth = use_ground_truth
        self.sampling = sampling or Sampling()
        self.reflection = reflection or Reflection()
        self.limits = limits or LibraryLimits()
        self.validation = validation or Validation()
        self._acceptance = acceptance_of(self.validation.acceptance)
        self._executor = executor_of(executor)
        self.report: CompileReport | None = None

    def get_params(self) -> dict[str, Any]:
        """The settings of the optimizer, as a new dict."""
        hidden = {"metric", "report", "reflection_lm"}
        return {k: v for k, v in vars(self).items() if k not in hidden and not k.startswith("_")}

    @tracked
    def compile(
        self,
        student: ProgramT,
        *,
        trainset: list[dspy.Example],
        teacher: dspy.Module | None = None,
        valset: list[dspy.Example] | None = None,
        initial_library: ExperienceLibrary | None = None,
        run_dir: str | Path | None = None,
        budget: Budget | None = None,
        listeners: Sequence[Listener] = (),
        verbose: bool = True,
    ) -> ProgramT:
        """Learn a library for the student and return a copy of it that carries the library in its instructions.

        Works inside a running event loop (a notebook) too. ``self.report`` tells afterwards what happened. When the
        budget is used up, or the LM fails for good after something was learned, the run ends with what it has:
        ``self.report.stopped_by`` says so. Ctrl-C finishes what is in flight and raises ``KeyboardInterrupt``.

        Args:
            student: any DSPy program; never changed. One that already carries a library goes on from it.
            trainset: examples with ``with_inputs``.
            teacher: not used by this method; must be None.
            valset: examples on which the student and every new library are scored; the best one is returned, never
                one that scored below the student. None: the last library is returned, as in the paper.
            initial_library: where learning starts; None: the library the student carries, if any.
            run_dir: folder that keeps everything paid for, beside the libraries, the events and the report. The same
                call with the same folder goes on where an earlier one ended, and makes no call when that had finished.
            budget: what the run may spend; None: no bound.
            listeners: called with every event of the run (``tgrpo_dspy.runs.events``).
            verbose: show progress on standard error.

        Raises:
            ConfigurationError: for a set or a program that cannot work, or a ``run_dir`` that holds another run; before
                any LM call.
            MetricError: when the metric returns no reward, or raises on every rollout.
            LMUnavailableError: when the LM fails for good before anything was learned.
            LibraryError: when ``initial_library`` has an experience for a predictor the student does not have.
            RunDirError: when ``run_dir`` is in use by another process, or cannot be read or written.
        """
        return run_anywhere(
            partial(
                self.acompile,
                student,
                trainset=trainset,
                teacher=teacher,
                valset=valset,
                initial_library=initial_library,
                run_dir=run_dir,
                budget=budget,
                listeners=listeners,
                verbose=verbose,
            )
        )

    @tracked
    async def acompile(
        self,
        student: ProgramT,
        *,
        trainset: list[dspy.Example],
        teacher: dspy.Module | None = None,
        valset: list[dspy.Example] | None = None,
        initial_library: ExperienceLibrary | None = None,
        run_dir: str | Path | None = None,
        budget: Budget | None = None,
        listeners: Sequence[Listener] = (),
        verbose: bool = True,
    ) -> ProgramT:
        """``compile`` for asynchronous code; the same arguments, result and errors."""
        if teacher not in (None, []):
            raise ConfigurationError(
                "teacher is not used by TrainingFreeGRPO: it learns from the student's own rollouts. To let a stronger "
                "model write the lessons, pass reflection_lm=dspy.LM(…)."
            )
        require_predictors(student)
        self._check_answer_field(student)
        task = Task(
            student=student,
            train=items_of(trainset, "trainset"),
            val=items_of(valset, "valset") if valset is not None else [],
            lm=lm_of(student),
            carried=read_library(student),
            initial=initial_library,
        )
        inject(student, task.library)  # an experience for a predictor that does not exist is an error before any call
        folder = None if run_dir is None else Path(run_dir)
        secrets = Secrets.of([*held_lms(student), task.lm, *([self.reflection_lm] if self.reflection_lm else [])])
        with open_run(folder, secrets.mask_in(self._describe(task)) if folder else {}) as store:
            work = Work(store, UsageLedger(), secrets)
            report: CompileReport | None = work.recall(RESULT, CompileReport)
            if report is None:
                slots = Slots(self.num_threads or dspy.settings.num_threads)
                terms = Terms(student=strip(student), metric=self._metric, sampling=self.sampling, slots=slots)
                with (
                    self._executor.open(terms) as runner,
                    self._announcing(folder, listeners, verbose=verbose) as announce,
                ):
                    announce(self._run_started(task))
                    report = await self._loop(task, work, budget or Budget(), announce, slots, runner).run()
        self.report = report
        kept = _unchanged(report.library, task.carried)
        others = dict.fromkeys(report.untouched, kept)
        return inject(show(student, report.exemplars), report.library, others=others)

    def estimate(
        self,
        student: dspy.Module,
        *,
        trainset: list[dspy.Example],
        valset: list[dspy.Example] | None = None,
        budget: Budget | None = None,
    ) -> Estimate:
        """What ``compile`` with the same arguments will take, before anything is spent: no LM is called.

        ``print`` it to read it. Its warnings say, among others, when the budget cannot cover the student's score and
        one step.

        Raises:
            ConfigurationError: for a set or a program that ``compile`` refuses too.
        """
        return estimate(
            student,
            trainset=trainset,
            valset=valset,
            group_size=self.group_size,
            epochs=self.epochs,
            batch_size=self.batch_size,
            limits=self.limits,
            reflection=self.reflection,
            reflection_lm=self.reflection_lm,
            eval_repeats=self.validation.repeats,
            budget=budget,
        )

    def _check_answer_field(self, student: dspy.Module) -> None:
        field = self.sampling.answer_field
        outputs = {name for _, predictor in student.named_predictors() for name in predictor.signature.output_fields}
        known = field is None or field in outputs
        require(known, "answer_field", field, f"the program's outputs are {', '.join(sorted(outputs))}")

    def _loop(
        self,
        task: Task,
        work: Work,
        budget: Budget,
        announce: Announcer,
        slots: Slots,
        runner: Runner,
    ) -> Loop:
        spending = watch(budget, work, announce)
        return Loop(
            task=task,
            learner=self._learner(task, work, spending, announce, slots, runner),
            curriculum=self._curriculum(task),
            acceptance=self._acceptance,
            work=work,
            spending=spending,
            announce=announce,
            epochs=self.epochs,
            exemplars=self.limits.exemplars,
            prune=self.validation.prune,
            prune_level=self.sampling.trial_level,
            seed=self.seed,
            waits=budget != Budget() or not always_goes_on(self._acceptance),
        )

    def _learner(
        self,
        task: Task,
        work: Work,
        spending: Spending,
        announce: Announcer,
        slots: Slots,
        runner: Runner,
    ) -> Learner:
        """The stages of a step, made for this student."""
        student = task.student
        retries = Retries(self.sampling.lm_retries, self.sampling.retry_delay)
        asker = Asker(self.reflection_lm or task.lm, slots, work, spending, retries, announce)
        sampler = sampler_type()(
            metric=self._metric,
            sampling=self.sampling,
            slots=slots,
            work=work,
            spending=spending,
            announce=announce,
            seed=self.seed,
            self_consistent=not self.use_ground_truth,
            keep_demonstrations=self.limits.exemplars > 0,
            run=runner,
        )
        return Learner(
            student=strip(student),
            evaluator=Evaluator(task.val, sampler),
            repeats=self.validation.repeats,
            group_size=self.group_size,
            teaching=Teaching(self.sampling, self.reflection, self.use_ground_truth),
            trial=Trial(self.sampling, self.seed, looks=self._planned_steps(task)),
            reflection=self.reflection,
            limits=self.limits,
            guards=Guards.for_examples(
                ((item.inputs, item.labels) for item in task.train), allowed=[*self.limits.allowed, *choices(student)]
            ),
            sampler=sampler,
            reflector=Reflector(
                advantage=self.reflection.advantage
                or SemanticAdvantage(self.reflection.attempts, with_labels=self.use_ground_truth),
                curator=Curator(self.reflection.curation or Curation(), asker, self.reflection),
                asker=asker,
                task="\n\n".join([render_task(student), *self._instructions(task)]),
                predictors=[name for name, _ in student.named_predictors()],
                settings=self.reflection,
                with_labels=self.use_ground_truth,
                announce=announce,
            ),
            announce=announce,
        )

    def _instructions(self, task: Task) -> Iterator[str]:
        """What the reflection is told beside the task."""
        if len(task.student.predictors()) > 1:
            yield (
                "Each lesson is for the predictor at fault: name it, or begin the lesson with its name and a colon. A "
                "lesson that all of them need names none."
            )
        if self.reflection.learning_objective:
            yield f"What the lessons are to achieve: {self.reflection.learning_objective}"
        if self.reflection.experiences_per_group is not None:
            yield f"Write at most {self.reflection.experiences_per_group} lessons for each example."
        if not self.use_ground_truth:
            yield (
                "Nobody knows the right answers. An attempt's agreement is the share of attempts at the same example "
                "that came to the same answer; what most of them agree on is more likely to be right."
            )

    @contextmanager
    def _announcing(self, folder: Path | None, listeners: Sequence[Listener], *, verbose: bool) -> Iterator[Announcer]:
        """Tells the listeners of the run, the progress bar and the run's files among them."""
        own: list[ProgressBar | RunFiles] = [ProgressBar()] if verbose else []
        try:
            own += [RunFiles(folder)] if folder else []
            yield Announcer([*listeners, *own])
        finally:
            for listener in own:
                listener.close()

    def _run_started(self, task: Task) -> RunStarted:
        steps = self._planned_steps(task)
        rollouts = self.epochs * len(task.train) * self.group_size
        scorings = steps + 1 + most_offers(self.limits.exemplars)
        return RunStarted(steps=steps, program_runs=rollouts + scorings * len(task.val) * self.validation.repeats)

    def _planned_steps(self, task: Task) -> int:
        return self.epochs * math.ceil(len(task.train) / (self.batch_size or len(task.train)))

    def _curriculum(self, task: Task) -> Curriculum:
        return Curriculum(
            task.train,
            batch_size=self.batch_size,
            seed=self.seed,
            solved_score=self.sampling.solved_score if self.use_ground_truth else None,
            max_oversample=self.sampling.max_oversample,
        )

    def _describe(self, task: Task) -> dict[str, Any]:
        """What the results of a run depend on, as data."""
        settings = {k: v for k, v in self.get_params().items() if k not in ("num_threads", "executor", "metric")}
        return {
            "format": _FORMAT,
            "program": describe_program(task.student),
            "lm": describe_lm(dspy.settings.lm),
            "adapter": describe_adapter(dspy.settings.adapter),
            "reflection_lm": describe_lm(self.reflection_lm),
            "metric": describe_callable(self.metric),
            "trainset": describe_examples([item.example for item in task.train]),
            "valset": describe_examples([item.example for item in task.val]),
            "library": to_json(task.library),
            "settings": {name: _setting(value) for name, value in settings.items()},
        }


def _setting(value: Any) -> Any:
    """A setting as data; how often and how patiently something is tried again changes no result."""
    if is_dataclass(value):
        told = {f.name: getattr(value, f.name) for f in fields(value) if f.name not in _PATIENCE}
        return {name: _setting(part) for name, part in told.items() if (name, part) not in _OFF.items()}
    if isinstance(value, dspy.Module):
        return describe_program(value)
    if isinstance(value, str | int | float | tuple | None):
        return value
    return describe_callable(value) if callable(value) else describe_object(value)


def _unchanged(library: ExperienceLibrary, carried: ExperienceLibrary) -> ExperienceLibrary:
    """What a library still has of the one that the student carries."""
    before = {(e.id, e.text, e.target) for e in carried}
    return library.only({e.id for e in library if (e.id, e.text, e.target) in before})
