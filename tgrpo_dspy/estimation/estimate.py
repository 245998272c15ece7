"""What a run will take, worked out before it starts and without an LM call."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import dspy

from tgrpo_dspy.cloning import require_predictors
from tgrpo_dspy.estimation.loads import Load, RunLoad, bare_prompt_tokens, call
from tgrpo_dspy.estimation.structure import loops
from tgrpo_dspy.library.limits import estimate_tokens
from tgrpo_dspy.records import Usage
from tgrpo_dspy.reflection.advantage import SemanticAdvantage
from tgrpo_dspy.reflection.trajectory import render_task
from tgrpo_dspy.sampling.examples import Item, items_of
from tgrpo_dspy.settings import Budget, LibraryLimits, Reflection

# Most tokens of an answer with lessons, and most clusters of overlapping edits one such answer gives rise to.
_LESSONS_TOKENS = 1200
_CLUSTERS = 4
_SHOWN_ATTEMPTS = 2


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a run takes. Ranges go from the fewest to the most.

    An empty cache and readable answers are assumed: what DSPy's cache answers is free, and repairs of answers that
    cannot be parsed come on top. So do an LM's hidden thoughts, and LM calls of the metric.

    Args:
        rollouts: most runs of the program to learn from; examples that are solved are skipped for a while.
        evaluations: runs of the program to score the student and the library of every step.
        steps: how often the library may change, at most.
        lm_calls: calls of the program and of the reflection.
        prompt_tokens, completion_tokens: estimated at four bytes each.
        cost: US dollars; None when the price of one of the LMs is not known.
        warnings: what makes the run pointless or the numbers guesses.
    """

    rollouts: int
    evaluations: int
    steps: int
    lm_calls: tuple[int, int]
    prompt_tokens: tuple[int, int]
    completion_tokens: tuple[int, int]
    cost: tuple[float, float] | None
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        rows = {
            "rollouts": f"{self.rollouts:,}",
            "evaluations": f"{self.evaluations:,}",
            "steps": f"{self.steps:,}",
            "LM calls": _between(self.lm_calls),
            "prompt tokens": _between(self.prompt_tokens),
            "completion tokens": _between(self.completion_tokens),
            "cost": "unknown" if self.cost is None else " to ".join(map(_dollars, self.cost)),
        }
        lines = [f"{name:<19}{value}" for name, value in rows.items()]
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])


def estimate(
    student: dspy.Module,
    *,
    trainset: Sequence[dspy.Example],
    valset: Sequence[dspy.Example] | None,
    group_size: int,
    epochs: int,
    batch_size: int | None,
    limits: LibraryLimits,
    reflection: Reflection,
    reflection_lm: dspy.BaseLM | None = None,
    eval_repeats: int = 1,
    budget: Budget | None = None,
) -> Estimate:
    """What ``compile`` with these arguments takes. No LM is called, and none has to be configured.

    Args:
        student, trainset, valset: as for ``compile``.
        group_size, epochs, batch_size, limits, reflection, reflection_lm: as for ``TrainingFreeGRPO``.
        eval_repeats: how often every validation example is run to score one library.
        budget: what the run may spend; a warning says when that is too little to learn anything.

    Raises:
        ConfigurationError: for a set or a program that ``compile`` refuses too.

    Example:
        >>> data = [dspy.Example(question=f"{i} + 1?", answer=str(i + 1)).with_inputs("question") for i in range(4)]
        >>> found = estimate(
        ...     dspy.Predict("question -> answer"), trainset=data, valset=data, group_size=5, epochs=3, batch_size=2,
        ...     limits=LibraryLimits(), reflection=Reflection(),
        ... )
        >>> found.rollouts, found.evaluations, found.steps, found.cost
        (60, 28, 6, None)
    """
    require_predictors(student)
    plan = _Plan(
        student=student,
        train=items_of(trainset, "trainset"),
        val=items_of(valset, "valset") if valset is not None else [],
        group_size=group_size,
        epochs=epochs,
        batch_size=batch_size or len(trainset),
        limits=limits,
        reflection=reflection,
        reflection_lm=reflection_lm or dspy.settings.lm or student.predictors()[0].lm,
        eval_repeats=eval_repeats,
    )
    whole = plan.whole
    return Estimate(
        rollouts=plan.rollouts,
        evaluations=plan.evaluations,
        steps=len(plan.batches),
        lm_calls=(whole.low.calls, whole.high.calls),
        prompt_tokens=(whole.low.prompt_tokens, whole.high.prompt_tokens),
        completion_tokens=(whole.low.completion_tokens, whole.high.completion_tokens),
        cost=None if whole.high.unpriced else (whole.low.cost, whole.high.cost),
        warnings=tuple(_warnings(plan, budget or Budget())),
    )


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """The work of a run."""

    student: dspy.Module
    train: Sequence[Item]
    val: Sequence[Item]
    group_size: int
    epochs: int
    batch_size: int
    limits: LibraryLimits
    reflection: Reflection
    reflection_lm: dspy.BaseLM | None
    eval_repeats: int

    @cached_property
    def batches(self) -> list[int]:
        """The number of examples of every step."""
        full, rest = divmod(len(self.train), self.batch_size)
        return self.epochs * [*full * [self.batch_size], *([rest] if rest else [])]

    @property
    def rollouts(self) -> int:
        return self.group_size * sum(self.batches)

    @property
    def scoring(self) -> int:
        """Runs that score one library."""
        return len(self.val) * self.eval_repeats

    @property
    def evaluations(self) -> int:
        return (len(self.batches) + 1) * self.scoring

    @property
    def whole(self) -> Load:
        """The whole run; at best no step finds a lesson, so that there is no other library to score."""
        return self._load(self.batches)

    @property
    def first_step(self) -> tuple[tuple[int, int], Load]:
        """Program runs and load up to the end of the first step: less teaches nothing."""
        rollouts = self.group_size * self.batches[0]
        return (rollouts + self.scoring, rollouts + 2 * self.scoring), self._load(self.batches[:1])

    def _load(self, batches: Sequence[int]) -> Load:
        rollouts = self.group_size * sum(batches)
        load = self._rollout.times(rollouts, rollouts)
        if self.val:
            load += self._evaluation.times(self.scoring, (len(batches) + 1) * self.scoring)
        return load + self._reflection_call.times(0, sum(map(self._reflection_calls, batches)))

    @cached_property
    def _rollout(self) -> Load:
        return self._runs(self.train).of(self.student)

    @cached_property
    def _evaluation(self) -> Load:
        return self._runs(self.val).of(self.student)

    def _runs(self, items: Sequence[Item]) -> RunLoad:
        return RunLoad(items, dspy.settings.adapter or dspy.ChatAdapter(), self.limits.tokens)

    @cached_property
    def _reflection_call(self) -> Load:
        predictor = SemanticAdvantage().revise
        around = bare_prompt_tokens(predictor, dspy.ChatAdapter(), {}) + estimate_tokens(render_task(self.student))
        most = around + self.limits.tokens + self.reflection.max_prompt_tokens
        return call(self.reflection_lm, (around, most), (0, _LESSONS_TOKENS))

    def _reflection_calls(self, batch: int) -> int:
        """Most calls that reflect on a batch, when every group can teach, and that curate what comes out of it."""
        reflections = math.ceil(batch / self._groups_per_call)
        return reflections * (self._asks + _CLUSTERS)

    @cached_property
    def _asks(self) -> int:
        module = self.reflection.advantage
        return self._runs(self.train).of(module).high.calls if module is not None else self.reflection.attempts

    @cached_property
    def _groups_per_call(self) -> int:
        """Groups that one call is shown at least: as many as fit when their attempts are long."""
        given = max(sum(map(estimate_tokens, [*item.inputs.values(), *item.labels.values()])) for item in self.train)
        group = given + _SHOWN_ATTEMPTS * self._rollout.high.completion_tokens
        return max(1, min(self.reflection.groups_per_call, self.reflection.max_prompt_tokens // max(1, group)))


def _warnings(plan: _Plan, budget: Budget) -> Iterator[str]:
    if not plan.val:
        yield "there is no valset, so no library is scored and the last one is returned"
    guessed = loops(plan.student)
    if guessed:
        yield f"{', '.join(guessed)} may call its parts in a loop, so the LM calls of a run are a guess"
    runs, load = plan.first_step
    if budget.max_cost is not None and load.high.unpriced:
        yield f"max_cost={budget.max_cost:g} cannot be kept, because the price of an LM is not known"
    low, high = load.low, load.high
    needed = {
        "max_rollouts": runs,
        "max_lm_calls": (low.calls, high.calls),
        "max_tokens": (_tokens(low), _tokens(high)),
        "max_cost": (low.cost, high.cost),
    }
    for name, (least, most) in needed.items():
        bound = getattr(budget, name)
        if bound is not None and bound < least:
            yield f"{name}={bound:g} is too little for scoring the student and one step: they take {least:g} or more"
        elif bound is not None and bound < most:
            yield f"{name}={bound:g} may end the run within its first step, which takes up to {most:g}"


def _tokens(usage: Usage) -> int:
    return usage.prompt_tokens + usage.completion_tokens


def _between(bounds: tuple[int, int]) -> str:
    low, high = bounds
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _dollars(amount: float) -> str:
    return f"${amount:,.2f}" if amount >= 0.1 else f"${amount:.2g}"
