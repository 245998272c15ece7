"""What can be measured: ways to make a program out of a student, all given the same examples and models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import dspy
from dspy.teleprompt import Teleprompter

from programs.task import Sizes, Splits, Task
from tgrpo_dspy import (
    CompileReport,
    LibraryLimits,
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

_SETTINGS = {"sampling": Sampling, "reflection": Reflection, "limits": LibraryLimits, "validation": Validation}


class UnfinishedError(RuntimeError):
    """A cell could not be measured to its end, so it has no result. What is paid for is kept; start it again."""


class MissingFeatureError(RuntimeError):
    """This version of the package does not have what a variant needs."""


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
    """

    task: Task
    data: Splits
    seed: int
    sizes: Sizes
    lm: dspy.BaseLM
    reflection_lm: dspy.BaseLM | None
    threads: int
    run_dir: Path


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
            MissingFeatureError: when the package is too old.
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
        settings: what differs from its defaults; a settings object is a mapping of its fields.
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
        program = optimizer.compile(
            bench.task.student(),
            trainset=bench.data.train,
            valset=bench.data.val if self.validates else None,
            run_dir=bench.run_dir,
            verbose=False,
        )
        report = optimizer.report
        assert report is not None
        if report.stopped_by is not None:
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
        library, usage = _counted("reflection", lambda: generate_library(student, lm=lm, **self.settings))
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
        program, usage = _counted("rollout", lambda: optimizer.compile(bench.task.student(), trainset=bench.data.train))
        return Learned(program=program, settings=self.settings, usage=usage)


def _counted(role: Role, make: Callable[[], Any]) -> tuple[Any, Mapping[Role, Usage]]:
    """What ``make`` makes, with its LM calls counted by the meter that counts ours.

    DSPy's optimizers learn from less when calls fail, and say nothing; that would be no fair comparison.
    """
    ledger = UsageLedger()
    with ledger.count(role):
        made = make()
    failed = sum(usage.failed for usage in ledger.total().values())
    if failed:
        raise UnfinishedError(f"{failed} LM calls failed while it learned")
    return made, ledger.total()


def _made(name: str, value: Any) -> Any:
    """A settings object from its fields; any other setting as it is."""
    if name not in _SETTINGS:
        return value
    try:
        return _SETTINGS[name](**value)
    except TypeError as error:
        raise MissingFeatureError(f"this version of tgrpo_dspy cannot be set so: {error}") from error


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: asdict(value) if name in _SETTINGS else value for name, value in settings.items()}
