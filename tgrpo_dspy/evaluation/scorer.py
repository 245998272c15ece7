"""Scoring libraries outside of a run of ``compile``, under the same checks and bounds, with a store of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy

from tgrpo_dspy.cloning import held_lms, require_predictors
from tgrpo_dspy.errors import ConfigurationError
from tgrpo_dspy.evaluation.evaluator import Evaluator
from tgrpo_dspy.library.instructions import strip
from tgrpo_dspy.library.library import ExperienceLibrary
from tgrpo_dspy.records import Evaluation, Role, Usage
from tgrpo_dspy.runs.events import Announcer, Listener
from tgrpo_dspy.runs.folder import open_run
from tgrpo_dspy.runs.identity import describe_adapter, describe_callable, describe_lm, describe_program
from tgrpo_dspy.runs.secrets import Secrets
from tgrpo_dspy.runs.spending import Spending
from tgrpo_dspy.runs.usage import UsageLedger
from tgrpo_dspy.runs.work import Work
from tgrpo_dspy.sampling.examples import items_of
from tgrpo_dspy.sampling.executor import Slots
from tgrpo_dspy.sampling.executors import executor_of
from tgrpo_dspy.sampling.jobs import Executor, Terms
from tgrpo_dspy.sampling.policy import Policy
from tgrpo_dspy.sampling.rewards import Metric
from tgrpo_dspy.sampling.rollouts import Sampler
from tgrpo_dspy.settings import Budget, Sampling, require

_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """Scores libraries of one program on one set of examples, with the user's own LM settings.

    Args:
        student: the program, without a library of its own.
        evaluator: runs it on the examples.
        spending: what is asked before a run starts.
        ledger: counts what the runs use.
    """

    student: dspy.Module
    evaluator: Evaluator
    spending: Spending
    ledger: UsageLedger

    async def score(self, library: ExperienceLibrary, *, repeats: int) -> Evaluation | None:
        """The library's scores; None when the run had to stop before all of them were known."""
        return await self.evaluator.evaluate(Policy.of(self.student, library), repeats=repeats)

    def usage(self) -> Mapping[Role, Usage]:
        """What was used so far."""
        return self.ledger.total()


@contextmanager
def open_scorer(
    program: dspy.Module,
    *,
    evalset: Sequence[dspy.Example],
    metric: Callable[..., Any],
    budget: Budget | None,
    num_threads: int | None,
    executor: str | Executor,
    seed: int,
    sampling: Sampling | None,
    run_dir: str | Path | None,
    named: str = "evalset",
    listeners: Sequence[Listener] = (),
) -> Iterator[Scorer]:
    """A scorer for a program, whatever library it carries; everything that can be checked is, before any LM call.

    A ``run_dir`` belongs to a program, its LMs, a metric and how failures are scored. Any library may be scored in it,
    on any examples; ``named`` is what the caller calls them.

    Raises:
        ConfigurationError: for an argument that cannot work, or a ``run_dir`` that holds another run.
        RunDirError: when ``run_dir`` is in use by another process, or cannot be read or written.
    """
    require(num_threads is None or num_threads >= 1, "num_threads", num_threads, "use 1 or more, or None")
    require_predictors(program)
    items, lm, asked = items_of(evalset, named), lm_of(program), Metric(metric)
    student, sampling = strip(program), sampling or Sampling()
    secrets = Secrets.of([*held_lms(student), lm])
    folder = None if run_dir is None else Path(run_dir)
    description = secrets.mask_in(_describe(student, metric, sampling)) if folder else {}
    slots = Slots(num_threads or dspy.settings.num_threads)
    terms = Terms(student=program, metric=asked, sampling=sampling, slots=slots)
    with open_run(folder, description) as store, executor_of(executor).open(terms) as runner:
        work, announce = Work(store, UsageLedger(), secrets), Announcer(listeners)
        spending = watch(budget or Budget(), work, announce)
        sampler = Sampler(
            metric=asked,
            sampling=sampling,
            slots=slots,
            work=work,
            spending=spending,
            announce=announce,
            seed=seed,
            run=runner,
        )
        yield Scorer(student=student, evaluator=Evaluator(items, sampler), spending=spending, ledger=work.ledger)


def lm_of(program: dspy.Module) -> dspy.BaseLM:
    """The LM that answers for the program.

    Raises:
        ConfigurationError: when one of its predictors has none.
    """
    default = dspy.settings.lm
    lms = {name: predictor.lm or default for name, predictor in program.named_predictors()}
    missing = [name for name, lm in lms.items() if not isinstance(lm, dspy.BaseLM)]
    if missing:
        raise ConfigurationError(
            f"no LM is configured for predictor {', '.join(missing)} (found {lms[missing[0]]!r}): call "
            "dspy.configure(lm=dspy.LM('provider/model')) first, or give the program one with program.set_lm(…)"
        )
    return default or next(iter(lms.values()))


def watch(budget: Budget, work: Work, announce: Announcer) -> Spending:
    """Watches the budget, with what the store holds counted as spent."""
    before, runs = work.spent_before() if budget != Budget() else (Usage(), 0)
    return Spending(budget, work.fresh.total, announce, work.secrets, before=before, runs=runs)


def _describe(student: dspy.Module, metric: Callable[..., Any], sampling: Sampling) -> dict[str, Any]:
    """What the score of a library on an example depends on, as data."""
    return {
        "format": _FORMAT,
        "program": describe_program(student),
        "lm": describe_lm(dspy.settings.lm),
        "adapter": describe_adapter(dspy.settings.adapter),
        "metric": describe_callable(metric),
        "failure_score": sampling.failure_score,
        "rollout_timeout": sampling.rollout_timeout,
    }
