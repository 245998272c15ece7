"""What a program does on a set of examples: scores, failures, tool calls, cost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import dspy

from tgrpo_dspy.evaluation.scorer import open_scorer
from tgrpo_dspy.evaluation.scores import PairedDifference, mean_score, over_examples, paired, pass_at
from tgrpo_dspy.records import Measured, Role, Rollout, Usage
from tgrpo_dspy.runs.events import Listener
from tgrpo_dspy.sampling.executor import run_anywhere
from tgrpo_dspy.sampling.jobs import Executor
from tgrpo_dspy.sampling.policy import Policy
from tgrpo_dspy.settings import Budget, Sampling, require


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a program on an example, in brief.

    Args:
        score: what the metric gave, or the failure's score; None when the LM or the metric failed.
        failure: the kind of its failure; "" when there was none.
        tool_calls: calls of tools, also those that ended in an error.
        seconds: wall time; 0 for a run that ``run_dir`` kept.
    """

    score: float | None
    failure: str
    tool_calls: int
    seconds: float

    @classmethod
    def of(cls, rollout: Rollout) -> Run:
        """What is kept of a rollout."""
        return cls(
            score=rollout.reward,
            failure=rollout.failure.kind if rollout.failure else "",
            tool_calls=sum(turn.kind == "tool" for turn in rollout.turns),
            seconds=rollout.seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Performance:
    """How a program did on a set of examples.

    Args:
        runs: per example, in the order of the set, its runs; fewer than asked for when the budget ended.
        usage: LM calls and tokens by role.
        seconds: wall time.
        stopped_by: what ended it early; None: nothing did.
    """

    runs: tuple[tuple[Run, ...], ...]
    usage: Mapping[Role, Usage]
    seconds: float
    stopped_by: str | None = None

    @property
    def scores(self) -> tuple[tuple[float | None, ...], ...]:
        """Per example the score of every run."""
        return tuple(tuple(run.score for run in runs) for runs in self.runs)

    @property
    def mean(self) -> Measured:
        """Mean@k over the k runs of every example, with its standard error over examples."""
        return mean_score(self.scores)

    def pass_at(self, k: int, *, success: float = 1.0) -> Measured:
        """Pass@k: the chance that one of k runs scores at least ``success`` (see ``pass_at`` in the scores)."""
        return pass_at(k, self.scores, success=success)

    @property
    def tool_calls(self) -> Measured:
        """Tool calls a run, as a mean over examples."""
        return over_examples([fmean(run.tool_calls for run in runs) for runs in self.runs if runs])

    @property
    def failures(self) -> Counter[str]:
        """How many runs failed, by kind."""
        return Counter(run.failure for runs in self.runs for run in runs if run.failure)

    def minus(self, other: Performance) -> PairedDifference:
        """The paired difference of the scores to those of another program on the same examples.

        Raises:
            ValueError: when the two were not run on equally many examples.
        """
        return paired(self.scores, other.scores)


def evaluate(
    program: dspy.Module,
    *,
    devset: Sequence[dspy.Example],
    metric: Callable[..., Any],
    repeats: int = 1,
    budget: Budget | None = None,
    num_threads: int | None = None,
    executor: str | Executor = "threads",
    seed: int = 0,
    sampling: Sampling | None = None,
    run_dir: str | Path | None = None,
    listeners: Sequence[Listener] = (),
) -> Performance:
    """Run a program on every example, as it is and with its own LM settings.

    Beside the mean that ``dspy.Evaluate`` gives, it tells Mean@k and Pass@k with standard errors, failures by kind,
    tool calls, and what it cost; a failure of the network is never scored as a wrong answer.

    Args:
        program: any DSPy program, compiled or not; never changed.
        devset: examples with ``with_inputs``.
        metric: as for ``compile``.
        repeats: runs per example; every run but the first has a rollout id of its own, so give the LM a temperature.
        budget: what it may spend.
        num_threads: runs at once; None: ``dspy.settings.num_threads``.
        executor: where the program and the metric run, as for ``TrainingFreeGRPO``.
        seed: makes the rollout ids of the repeats.
        sampling: failure score, deadline and retries; its temperature is not used.
        run_dir: folder that keeps every finished run, so that nothing is paid for twice; not that of ``compile``.
        listeners: called with every event (``tgrpo_dspy.runs.events``): a ``RolloutFinished`` for every run.

    Raises:
        ConfigurationError: for an argument that cannot work, or a ``run_dir`` that holds another run.
        MetricError: when the metric returns no reward, or raises on every run.
        LMUnavailableError: when the LM fails for good before anything was scored.
        RunDirError: when ``run_dir`` is in use by another process, or cannot be read or written.

    Example:
        >>> from tgrpo_dspy.testing import ScriptedEngine
        >>> examples = [dspy.Example(question=q, answer=q.upper()).with_inputs("question") for q in ("a", "b")]
        >>> with dspy.context(lm=ScriptedEngine(lambda call: {"answer": "A"}).lm()):
        ...     done = evaluate(
        ...         dspy.Predict("question -> answer"), devset=examples,
        ...         metric=lambda gold, pred, trace=None: gold.answer == pred.answer,
        ...     )
        >>> done.mean
        Measured(mean=0.5, standard_error=0.5, n=2)
    """
    return run_anywhere(
        partial(
            aevaluate,
            program,
            devset=devset,
            metric=metric,
            repeats=repeats,
            budget=budget,
            num_threads=num_threads,
            executor=executor,
            seed=seed,
            sampling=sampling,
            run_dir=run_dir,
            listeners=listeners,
        )
    )


async def aevaluate(
    program: dspy.Module,
    *,
    devset: Sequence[dspy.Example],
    metric: Callable[..., Any],
    repeats: int = 1,
    budget: Budget | None = None,
    num_threads: int | None = None,
    executor: str | Executor = "threads",
    seed: int = 0,
    sampling: Sampling | None = None,
    run_dir: str | Path | None = None,
    listeners: Sequence[Listener] = (),
) -> Performance:
    """``evaluate`` for asynchronous code; the same arguments, result and errors."""
    require(repeats >= 1, "repeats", repeats, "use 1 or more")
    started = time.monotonic()
    with open_scorer(
        program,
        evalset=devset,
        named="devset",
        metric=metric,
        budget=budget,
        num_threads=num_threads,
        executor=executor,
        seed=seed,
        sampling=sampling,
        run_dir=run_dir,
        listeners=listeners,
    ) as scorer:
        runs = await scorer.evaluator.runs(Policy.of(program), range(repeats))
        done = tuple(tuple(Run.of(run) for run in of_example if run is not None) for of_example in runs)
        error = scorer.spending.lm_error
        if error is not None and not any(run.score is not None for runs_of_one in done for run in runs_of_one):
            raise error
        return Performance(
            runs=done,
            usage=scorer.usage(),
            seconds=time.monotonic() - started,
            stopped_by=scorer.spending.stopped_by,
        )
