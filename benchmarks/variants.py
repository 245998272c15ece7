"""What can be measured: ways to make a program out of a student, all given the same examples and models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import dspy
from dspy.teleprompt import Teleprompter

from benchmarks.charging import refused
from programs.task import Sizes, Splits, Task
from tgrpo_dspy import (
    Budget,
    CompileReport,
    LibraryLimits,
    LMUnavailableError,
    Reflection,
    Sampling,
    TrainingFreeGRPO,
    Usage,
    Validation,
    generate_library,
    inject,
)
from tgrpo_dspy.records import Role
from tgrpo_dspy.runs.usage import UsageLedger

PAPER: Mapping[str, Any] = {
    "sampling": {"solved_score": None},
    "reflection": {"learn_from_failures": False, "alike_together": False, "groups_per_call": 1},
    "validation": {"acceptance": "last"},
}
"""What makes the loop the paper's."""

_SETTINGS = {"sampling": Sampling, "reflection": Reflection, "limits": LibraryLimits, "validation": Validation}


class UnfinishedError(RuntimeError):
    """A cell could not be measured to its end, so it has no result. What is paid for is kept; start it again."""


class MissingFeatureError(RuntimeError):
    """What a variant needs is not there: a package, a feature of a package, a budget that is large enough."""


class FailedError(RuntimeError):
    """An optimizer ended without a program, and not because of the LM: the result of its cell, not the lack of one."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What every variant of a task is given.

    Args:
        task: the task.
        data: its examples; a variant sees the training and validation examples only.
        seed: of the splits and of the rollouts.
        sizes: how much is learned from the examples.
        lm: the model the program runs on.
        reflection_lm: the model that reflects; None: the same.
        threads: calls at once.
        run_dir: where an optimizer that can be resumed keeps its work.
        budget: LM calls that may be spent while learning; None: no bound.
    """

    task: Task
    data: Splits
    seed: int
    sizes: Sizes
    lm: dspy.BaseLM
    reflection_lm: dspy.BaseLM | None
    threads: int
    run_dir: Path
    budget: int | None = None


@dataclass(frozen=True, kw_only=True)
class Learned:
    """A program, how it was made, and what that took."""

    program: dspy.Module
    settings: Mapping[str, Any] = field(default_factory=dict)
    usage: Mapping[Role, Usage] = field(default_factory=dict)
    report: CompileReport | None = None


class Variant(Protocol):
    """One way to make a program."""

    @property
    def about(self) -> str:
        """What it is, in a sentence."""
        ...

    def learn(self, bench: Bench) -> Learned:
        """Make the program.

        Raises:
            UnfinishedError: when the LM failed on the way.
            MissingFeatureError: when something it needs is not there.
            FailedError: when it ended without a program.
        """
        ...


@dataclass(frozen=True)
class Student:
    """The student as it is."""

    about: str

    def learn(self, bench: Bench) -> Learned:
        return Learned(program=bench.task.student())


@dataclass(frozen=True)
class Ours:
    """``TrainingFreeGRPO``.

    Args:
        about: what it is, in a sentence.
        settings: what differs from its defaults; a settings object is a mapping of its fields, or makes one.
        validates: whether it is given the validation set.
    """

    about: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    validates: bool = True

    def optimizer(self, bench: Bench) -> TrainingFreeGRPO:
        """The optimizer, not run."""
        sizes = bench.sizes
        scale = {"group_size": sizes.group_size, "epochs": sizes.epochs, "batch_size": sizes.batch_size}
        limits = {"allowed": bench.task.allowed, **self.settings.get("limits", {})}
        given = {name: _made(name, value) for name, value in {**self.settings, "limits": limits}.items()}
        return TrainingFreeGRPO(
            bench.task.metric,
            seed=bench.seed,
            num_threads=bench.threads,
            reflection_lm=bench.reflection_lm,
            **{**scale, **given},
        )

    def learn(self, bench: Bench) -> Learned:
        optimizer = self.optimizer(bench)
        try:
            program = optimizer.compile(
                bench.task.student(),
                trainset=bench.data.train,
                valset=bench.data.val if self.validates else None,
                run_dir=bench.run_dir,
                budget=Budget(max_lm_calls=spare_calls(bench.budget, bench)),
                verbose=False,
            )
        except LMUnavailableError as error:
            if refused():
                raise FailedError(str(error)) from error
            raise
        report = optimizer.report
        assert report is not None
        if report.stopped_by is not None and not (report.stopped_by.startswith("budget") or refused()):
            raise UnfinishedError(f"the run stopped early ({report.stopped_by}); it goes on from {bench.run_dir}")
        return Learned(program=program, settings=_plain(optimizer.get_params()), usage=report.usage, report=report)


@dataclass(frozen=True)
class Direct:
    """A library that the reflecting model writes from the task's description alone, without a rollout."""

    about: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def learn(self, bench: Bench) -> Learned:
        student = bench.task.student()
        lm = bench.reflection_lm or bench.lm
        library, usage = counted("reflection", lambda: generate_library(student, lm=lm, **self.settings))
        return Learned(program=inject(student, library), settings=self.settings, usage=usage)


@dataclass(frozen=True)
class Demonstrations:
    """One of DSPy's few-shot optimizers.

    Args:
        about: what it is, in a sentence.
        kind: its class.
        settings: its arguments.
        scored: whether it takes the metric.
    """

    about: str
    kind: Callable[..., Teleprompter]
    settings: Mapping[str, Any]
    scored: bool = False

    def optimizer(self, bench: Bench) -> Teleprompter:
        """The optimizer, not run."""
        return self.kind(**self.settings, **({"metric": bench.task.metric} if self.scored else {}))

    def learn(self, bench: Bench) -> Learned:
        optimizer = self.optimizer(bench)
        program, usage = counted("rollout", lambda: optimizer.compile(bench.task.student(), trainset=bench.data.train))
        return Learned(program=program, settings=self.settings, usage=usage)


def spare_calls(budget: int | None, bench: Bench) -> int | None:
    """A bound for ours that keeps it within a budget: it is looked at before a run starts, so others are in flight."""
    if budget is None:
        return None
    return max(1, budget - (bench.threads - 1) * len(bench.task.student().predictors()))


def counted(role: Role, make: Callable[[], Any]) -> tuple[Any, Mapping[Role, Usage]]:
    """What ``make`` makes, with its LM calls counted by the meter that counts ours.

    DSPy's optimizers learn from less when calls fail, and say nothing; that would be no fair comparison. Calls that
    fail because the budget is spent are part of it.

    Raises:
        UnfinishedError: when a call failed for another reason.
        FailedError: when ``make`` failed by itself.
    """
    ledger, refused_before = UsageLedger(), refused()
    failure: Exception | None = None
    made = None
    with ledger.count(role):
        try:
            made = make()
        except MissingFeatureError:
            raise
        except Exception as error:
            failure = error
    failed = sum(usage.failed for usage in ledger.total().values()) - (refused() - refused_before)
    if failed > 0:
        raise UnfinishedError(f"{failed} LM calls failed while it learned") from failure
    if failure is not None:
        raise FailedError(f"{type(failure).__name__}: {failure}") from failure
    return made, ledger.total()


def _made(name: str, value: Any) -> Any:
    """A settings object from its fields; any other setting as it is."""
    if name not in _SETTINGS:
        return value
    try:
        return _SETTINGS[name](**(value() if callable(value) else value))
    except TypeError as error:
        raise MissingFeatureError(f"this version of tgrpo_dspy cannot be set so: {error}") from error


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: asdict(value) if name in _SETTINGS else value for name, value in settings.items()}
