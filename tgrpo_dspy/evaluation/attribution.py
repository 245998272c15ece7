"""What each experience of a finished library is worth, measured by running the program without some of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import dspy

from tgrpo_dspy.cloning import require_predictors
from tgrpo_dspy.errors import ConfigurationError
from tgrpo_dspy.evaluation.effects import Plan, effects, plan, record
from tgrpo_dspy.evaluation.effects import prune as without_harmful
from tgrpo_dspy.evaluation.scorer import Scorer, open_scorer
from tgrpo_dspy.evaluation.scores import Judgement, judge
from tgrpo_dspy.library.experience import Experience
from tgrpo_dspy.library.instructions import read_library
from tgrpo_dspy.library.library import ExperienceLibrary
from tgrpo_dspy.records import Evaluation, Measured, Role, Usage
from tgrpo_dspy.runs.usage import difference
from tgrpo_dspy.sampling.executor import run_anywhere
from tgrpo_dspy.sampling.jobs import Executor
from tgrpo_dspy.settings import Budget, Sampling, require


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a library that was to be scored.

    Args:
        ids: the experiences that were in.
        evaluation: its scores; None when the measurement ended before all of them were known.
    """

    ids: frozenset[str]
    evaluation: Evaluation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """What ``attribute`` measured.

    Args:
        library: the library, with the effects written into its experiences.
        effects: by id, how much having the experience in raises the mean score, with its standard error over examples;
            infinite where it could not be told.
        method: ``leave_one_out``: what the full library loses without it; ``shapley``: what adding it gains on average,
            over the orders in which the library could be built up.
        parts: every part of the library that was planned to be scored, the full one first.
        usage: LM calls and tokens by role; of work that ``run_dir`` held, what it took then.
        seconds: wall time.
        stopped_by: what ended the measurement early (``budget: …`` or ``lm: …``); None: nothing did.
    """

    library: ExperienceLibrary
    effects: Mapping[str, Measured]
    method: Literal["leave_one_out", "shapley"]
    parts: tuple[Part, ...]
    usage: Mapping[Role, Usage]
    seconds: float
    stopped_by: str | None = None

    @property
    def full(self) -> Evaluation | None:
        """Scores of the whole library; None when they were not finished."""
        return self._evaluation(frozenset(self.effects))

    @property
    def empty(self) -> Evaluation | None:
        """Scores without any experience; None when they were not finished."""
        return self._evaluation(frozenset())

    @property
    def judgements(self) -> dict[str, Judgement]:
        """By id, whether the effect is clearly negative, clearly positive, or neither (``judge`` at level 0.05)."""
        return {i: judge(effect) for i, effect in self.effects.items()}

    def pruned(self, level: float = 0.05) -> tuple[ExperienceLibrary, tuple[Experience, ...]]:
        """The library without what was measured harmful, and what had to go; ``prune`` confirms it by running it.

        Args:
            level: chance, above 0 and below 0.5, at which an experience without effect is taken for harmful.
        """
        return without_harmful(self.library, self.effects, level=level)

    def to_markdown(self) -> str:
        """The scores and a table of the experiences, the most helpful first."""
        best_first = sorted(self.effects.items(), key=lambda item: (math.isinf(item[1].standard_error), -item[1].mean))
        lines = [
            f"Measured by {self.method.replace('_', ' ')}, {len(self.effects)} experiences: "
            f"all of them score {_score(self.full)}, none of them {_score(self.empty)}.",
            *([f"Ended early ({self.stopped_by})."] if self.stopped_by else []),
            "",
            "| id | effect | standard error | examples | | lesson |",
            "|---|---|---|---|---|---|",
            *(self._row(i, effect) for i, effect in best_first),
        ]
        return "\n".join(lines)

    def _row(self, identifier: str, effect: Measured) -> str:
        told = math.isfinite(effect.standard_error)
        numbers = (f"{effect.mean:+.3f}", f"{effect.standard_error:.3f}") if told else ("not measured", "")
        text = self.library[identifier].text.replace("|", "\\|")
        return "| " + " | ".join([identifier, *numbers, str(effect.n), judge(effect), text]) + " |"

    def _evaluation(self, ids: frozenset[str]) -> Evaluation | None:
        return next((part.evaluation for part in self.parts if part.ids == ids), None)


def attribute(
    program: dspy.Module,
    library: ExperienceLibrary | None = None,
    *,
    evalset: Sequence[dspy.Example],
    metric: Callable[..., Any],
    budget: Budget | None = None,
    repeats: int = 1,
    num_threads: int | None = None,
    executor: str | Executor = "threads",
    seed: int = 0,
    sampling: Sampling | None = None,
    run_dir: str | Path | None = None,
) -> Attribution:
    """Measure what each experience of a library does to the score, by running the program with parts of the library.

    ``budget.max_rollouts`` decides how. Without it every experience is left out once: for k experiences k + 2 parts of
    the library are scored, each on the whole evalset. A larger one buys Shapley values by sampled orders, which also
    tell the worth of two lessons that say the same. A smaller one measures as many experiences as it can, those with
    the lowest known effect first. A part that a bound of the budget leaves unfinished has no score, and ``stopped_by``
    says so.

    Leaving one out compares every part with the full library. So that one lucky run of that does not lift all effects,
    it is run √k times as often as the others (Dunnett 1955), as far as ``max_rollouts`` allows, unless all LMs are at
    temperature 0. Runs are answered by DSPy's cache and by ``run_dir`` where they can be.

    Args:
        program: the program, compiled or not; never changed. A library that it carries is taken out first.
        library: what is measured; None: the library that the program carries.
        evalset: examples with ``with_inputs``, best such that learning has not seen.
        metric: as for ``compile``.
        budget: what it may spend; None: as many runs of the program as leaving each experience out once takes.
        repeats: runs per example and part, for programs whose answers vary; 1 or more.
        num_threads: runs at once; None: ``dspy.settings.num_threads``.
        executor: where the program and the metric run, as for ``TrainingFreeGRPO``.
        seed: draws the orders, and makes the rollout ids of repeats.
        sampling: failure reward, deadline and retries; its temperature is not used.
        run_dir: folder that keeps every finished run, shared by ``attribute`` and ``prune``; not that of ``compile``.

    Raises:
        ConfigurationError: for an argument that cannot work, a library without experiences, a ``max_rollouts`` too
            small to score two parts, or a ``run_dir`` that holds another run; before any LM call.
        MetricError: when the metric returns no reward, or raises on every run.
        LMUnavailableError: when the LM fails for good before anything was measured.
        LibraryError: when an experience is for a predictor the program does not have.
        RunDirError: when ``run_dir`` is in use by another process, or cannot be read or written.

    Example:
        >>> from tgrpo_dspy.testing import ScriptedEngine
        >>> lessons = ExperienceLibrary((Experience(id="e1", text="Shout."), Experience(id="e2", text="Whisper.")))
        >>> def model(call):
        ...     return {"answer": "YES" if "Shout." in call.system and "Whisper." not in call.system else "yes"}
        >>> examples = [dspy.Example(question=q, answer="YES").with_inputs("question") for q in "abcde"]
        >>> with dspy.context(lm=ScriptedEngine(model).lm()):
        ...     measured = attribute(
        ...         dspy.Predict("question -> answer"), lessons, evalset=examples,
        ...         metric=lambda gold, pred, trace=None: gold.answer == pred.answer,
        ...     )
        >>> print(measured.to_markdown())
        Measured by shapley, 2 experiences: all of them score 0.000, none of them 0.000.
        <BLANKLINE>
        | id | effect | standard error | examples | | lesson |
        |---|---|---|---|---|---|
        | e1 | +0.500 | 0.000 | 5 | helpful | Shout. |
        | e2 | -0.500 | 0.000 | 5 | harmful | Whisper. |
    """
    return run_anywhere(
        partial(
            aattribute,
            program,
            library,
            evalset=evalset,
            metric=metric,
            budget=budget,
            repeats=repeats,
            num_threads=num_threads,
            executor=executor,
            seed=seed,
            sampling=sampling,
            run_dir=run_dir,
        )
    )


async def aattribute(
    program: dspy.Module,
    library: ExperienceLibrary | None = None,
    *,
    evalset: Sequence[dspy.Example],
    metric: Callable[..., Any],
    budget: Budget | None = None,
    repeats: int = 1,
    num_threads: int | None = None,
    executor: str | Executor = "threads",
    seed: int = 0,
    sampling: Sampling | None = None,
    run_dir: str | Path | None = None,
) -> Attribution:
    """``attribute`` for asynchronous code; the same arguments, result and errors."""
    require(repeats >= 1, "repeats", repeats, "use 1 or more")
    require_predictors(program)
    measured = read_library(program) if library is None else library
    if not len(measured):
        whose = "the program carries" if library is None else "the library has"
        raise ConfigurationError(f"{whose} no experiences, so there is nothing to measure")
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
        runs = budget.max_rollouts if budget else None
        return await measure(measured, scorer, max_rollouts=runs, repeats=repeats, seed=seed)


async def measure(
    library: ExperienceLibrary, scorer: Scorer, *, max_rollouts: int | None, repeats: int, seed: int
) -> Attribution:
    """``attribute`` with a scorer that is there already, which bounds what may be spent."""
    started, before = time.monotonic(), scorer.usage()
    ids = [e.id for e in sorted(library, key=lambda e: e.effect or 0.0)]
    planned, repeats_of = _plan(ids, scorer, max_rollouts=max_rollouts, repeats=repeats, seed=seed)
    parts = []
    for subset in planned.subsets:  # one after the other, so that what the budget pays for is finished
        evaluation = await scorer.score(library.only(subset), repeats=repeats_of(subset))
        parts.append(Part(ids=subset, evaluation=evaluation))
    scores = {part.ids: part.evaluation.scores for part in parts if part.evaluation is not None}
    measured = effects(scores, ids, planned)
    error = scorer.spending.lm_error
    if error is not None and not any(math.isfinite(effect.standard_error) for effect in measured.values()):
        raise error
    return Attribution(
        library=record(library, measured),
        effects=measured,
        method=planned.method,
        parts=tuple(parts),
        usage=difference(scorer.usage(), before),
        seconds=time.monotonic() - started,
        stopped_by=scorer.spending.stopped_by,
    )


def _plan(
    ids: Sequence[str], scorer: Scorer, *, max_rollouts: int | None, repeats: int, seed: int
) -> tuple[Plan, Callable[[frozenset[str]], int]]:
    """Which parts to score, and how often each example is run with a part."""
    size = len(scorer.evaluator.items) * repeats
    comparisons = math.ceil(math.sqrt(len(ids))) if _varies(scorer.student) else 1
    allowed = max_rollouts or size * (len(ids) + 1 + comparisons)
    require(allowed >= 2 * size, "max_rollouts", allowed, f"to compare two libraries takes {2 * size} runs")
    planned = plan(ids, runs_allowed=allowed, evalset_size=size, seed=seed)
    shared = planned.method == "leave_one_out"
    of_full = min(comparisons, 1 + allowed // size - len(planned.subsets)) if shared else 1
    return planned, lambda subset: repeats * (of_full if len(subset) == len(ids) else 1)


def _varies(program: dspy.Module) -> bool:
    """Whether a second run may come out differently: unless every LM answers at temperature 0."""
    predictors = [predictor for _, predictor in program.named_sub_modules(dspy.Predict)]
    kwargs = [
        {**getattr(predictor.lm or dspy.settings.lm, "kwargs", {}), **predictor.config} for predictor in predictors
    ]
    return any(settings.get("temperature") != 0 for settings in kwargs)


def _score(evaluation: Evaluation | None) -> str:
    return "unknown" if evaluation is None else f"{evaluation.mean:.3f}"
