"""Dropping the experiences that were measured harmful, once a run without them has confirmed it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic

import dspy

from tgrpo_dspy.cloning import ProgramT, require_predictors
from tgrpo_dspy.evaluation.attribution import Attribution
from tgrpo_dspy.evaluation.scorer import Scorer, open_scorer
from tgrpo_dspy.evaluation.scores import paired
from tgrpo_dspy.library.experience import Experience
from tgrpo_dspy.library.instructions import inject, read_library
from tgrpo_dspy.library.library import ExperienceLibrary
from tgrpo_dspy.records import Evaluation, Role, Usage
from tgrpo_dspy.runs.usage import difference
from tgrpo_dspy.sampling.executor import run_anywhere
from tgrpo_dspy.sampling.jobs import Executor
from tgrpo_dspy.settings import Budget, Sampling, require

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned(Generic[ProgramT]):
    """What ``prune`` made of a library.

    Args:
        program: a copy of the program that carries ``library``.
        library: the library without what was measured harmful; the one that was measured, when that is not worse.
        dropped: the experiences that are gone.
        before, after: scores of the measured and of the pruned library; None: not run, or not finished.
        usage: LM calls and tokens by role.
        stopped_by: what ended the comparison early; None: nothing did.
    """

    program: ProgramT
    library: ExperienceLibrary
    dropped: tuple[Experience, ...]
    before: Evaluation | None
    after: Evaluation | None
    usage: Mapping[Role, Usage]
    stopped_by: str | None = None


def prune(
    program: ProgramT,
    attribution: Attribution,
    *,
    evalset: Sequence[dspy.Example],
    metric: Callable[..., Any],
    level: float = 0.05,
    budget: Budget | None = None,
    repeats: int | None = None,
    num_threads: int | None = None,
    executor: str | Executor = "threads",
    seed: int = 0,
    sampling: Sampling | None = None,
    run_dir: str | Path | None = None,
) -> Pruned[ProgramT]:
    """Drop the experiences that were measured harmful, unless the program scores worse without them.

    Both libraries are run and compared example by example. On the evalset of ``attribute`` the runs of the measured
    library are in DSPy's cache or in ``run_dir``; examples it has not seen make the comparison independent of the
    measurement. Without anything harmful nothing is run.

    Args:
        program: the program that was measured; never changed.
        attribution: what ``attribute`` measured.
        evalset, metric: as for ``attribute``.
        level: chance, above 0 and below 0.5, at which an experience without effect is taken for harmful.
        repeats: runs per example; None: as many as ``attribute`` made of the full library.
        budget, num_threads, executor, seed, sampling, run_dir: as for ``attribute``. When a bound of the budget ends
            the comparison early, nothing is dropped.

    Raises:
        ConfigurationError, MetricError, LMUnavailableError, LibraryError, RunDirError: as ``attribute``.
    """
    return run_anywhere(
        partial(
            aprune,
            program,
            attribution,
            evalset=evalset,
            metric=metric,
            level=level,
            budget=budget,
            repeats=repeats,
            num_threads=num_threads,
            executor=executor,
            seed=seed,
            sampling=sampling,
            run_dir=run_dir,
        )
    )


async def aprune(
    program: ProgramT,
    attribution: Attribution,
    *,
    evalset: Sequence[dspy.Example],
    metric: Callable[..., Any],
    level: float = 0.05,
    budget: Budget | None = None,
    repeats: int | None = None,
    num_threads: int | None = None,
    executor: str | Executor = "threads",
    seed: int = 0,
    sampling: Sampling | None = None,
    run_dir: str | Path | None = None,
) -> Pruned[ProgramT]:
    """``prune`` for asynchronous code; the same arguments, result and errors."""
    require(0 < level < 0.5, "level", level, "use a chance above 0 and below 0.5")
    require(repeats is None or repeats >= 1, "repeats", repeats, "use 1 or more, or None")
    require_predictors(program)
    with open_scorer(
        program,
        evalset=evalset,
        metric=metric,
        budget=budget,
        num_threads=num_threads,
        executor=executor,
        seed=seed,
        sampling=sampling,
        run_dir=run_dir,
    ) as scorer:
        return await confirm(program, attribution, scorer, level=level, repeats=repeats)


async def confirm(
    program: ProgramT, attribution: Attribution, scorer: Scorer, *, level: float, repeats: int | None = None
) -> Pruned[ProgramT]:
    """``prune`` with a scorer that is there already, which bounds what may be spent."""
    used = scorer.usage()
    library, dropped = attribution.pruned(level)
    runs = repeats or _repeats(attribution.full)
    before = await scorer.score(attribution.library, repeats=runs) if dropped else None
    after = await scorer.score(library, repeats=runs) if before else None
    if scorer.spending.lm_error is not None and after is None:
        raise scorer.spending.lm_error
    if before is None or after is None or _is_worse(after, before):
        library, dropped = attribution.library, ()
    return Pruned(
        program=inject(program, library, others=_kept_apart(program, attribution.library, library)),
        library=library,
        dropped=dropped,
        before=before,
        after=after,
        usage=difference(scorer.usage(), used),
        stopped_by=scorer.spending.stopped_by,
    )


def _kept_apart(
    program: dspy.Module, measured: ExperienceLibrary, left: ExperienceLibrary
) -> dict[str, ExperienceLibrary]:
    """By predictor, what is left of the lessons that it carries: ``compile`` leaves those alone that never ran."""
    if _texts(read_library(program)) != _texts(measured):
        return {}
    carried = {name: _texts(read_library(predictor)) for name, predictor in program.named_predictors()}
    return {name: left.only(ids) for name, ids in carried.items()}


def _texts(library: ExperienceLibrary) -> dict[str, str]:
    return {e.id: e.text for e in library}


def _repeats(evaluation: Evaluation | None) -> int:
    return max(map(len, evaluation.repeats)) if evaluation is not None else 1


def _is_worse(after: Evaluation, before: Evaluation) -> bool:
    """Whether it scores below on the examples both have a score for, or there is none; a tie goes to the shorter."""
    change = paired(after.repeats, before.repeats)
    return change.n == 0 or change.mean < -_ROUNDING
