"""Running a program on an example and scoring the result; a failure becomes a record, never an exception."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import dspy
from dspy.utils.exceptions import (
    AdapterParseError,
    ContextWindowExceededError,
    LMAuthError,
    LMBillingError,
    LMError,
)

from tgrpo_dspy.errors import LMUnavailableError, MetricError
from tgrpo_dspy.records import Failure, Group, Role, Rollout
from tgrpo_dspy.runs.events import Announcer, RolloutFinished
from tgrpo_dspy.runs.usage import UsageLedger
from tgrpo_dspy.sampling.examples import Item
from tgrpo_dspy.sampling.executor import Slots, gather, is_async_only
from tgrpo_dspy.sampling.policy import Policy, rollout_id
from tgrpo_dspy.sampling.rewards import Metric
from tgrpo_dspy.sampling.traces import Recorder, outputs_of, shorten
from tgrpo_dspy.settings import Sampling

_PRIORITY = 1
_MAX_MESSAGE_CHARS = 2000


@dataclass(frozen=True, slots=True)
class _Run:
    """A program about to run once: a copy of it, the LM of its context, and the trace it will fill."""

    program: dspy.Module
    lm: dspy.BaseLM | None
    role: Role
    recorder: Recorder


class Sampler:
    """Draws rollouts and scores them.

    Args:
        metric: the user's metric.
        sampling: temperature and failure reward.
        slots: places to run in.
        ledger: counts LM usage.
        announce: told of every finished rollout.
        seed: makes the rollout ids.
    """

    def __init__(
        self, *, metric: Metric, sampling: Sampling, slots: Slots, ledger: UsageLedger, announce: Announcer, seed: int
    ) -> None:
        self._metric, self._sampling, self._slots = metric, sampling, slots
        self._ledger, self._announce, self._seed = ledger, announce, seed
        self._lm_failures = 0
        self._metric_failures = 0
        self._metric_has_worked = False

    async def group(self, policy: Policy, item: Item, *, size: int, step: int, lane: int) -> Group:
        """``size`` rollouts of one example, each under its own rollout id; ``lane`` is its place in the batch."""

        async def draw(number: int) -> Rollout:
            identity = rollout_id(self._seed, step, item.key, number)
            async with self._slots.place(priority=_PRIORITY, lane=lane):
                run = _run(*policy.sampled(identity, self._sampling.temperature), "rollout")
                rollout = await self._rollout(run, item, number, abort_after=size)
            self._announce(RolloutFinished(rollout=rollout, evaluation=False))
            return rollout

        rollouts = await gather([partial(draw, number) for number in range(size)])
        return Group(key=item.key, inputs=item.inputs, labels=item.labels, rollouts=tuple(rollouts))

    async def evaluate(self, policy: Policy, item: Item, *, abort_after: int, lane: int) -> Rollout:
        """One run of the policy with the user's own LM settings."""
        async with self._slots.place(priority=_PRIORITY, lane=lane):
            rollout = await self._rollout(_run(*policy.as_is(), "evaluation"), item, 0, abort_after=abort_after)
        self._announce(RolloutFinished(rollout=rollout, evaluation=True))
        return rollout

    async def _rollout(self, run: _Run, item: Item, number: int, *, abort_after: int) -> Rollout:
        """Run the program and score the result, on a place that is already held."""
        started = time.monotonic()
        prediction, failure = await self._predict(run, item)
        rollout = Rollout(
            number=number,
            outputs=outputs_of(prediction) if failure is None else {},
            turns=run.recorder.turns(),
            failure=failure,
        )
        if failure is None:
            rollout = await self._score(rollout, item, prediction, abort_after)
        elif failure.kind != "lm":
            rollout = replace(rollout, reward=self._sampling.failure_score)
        return replace(rollout, seconds=time.monotonic() - started)

    async def _predict(self, run: _Run, item: Item) -> tuple[Any, Failure | None]:
        inputs = item.example.inputs().toDict()
        call = partial(run.program.acall if is_async_only(run.program) else run.program, **inputs)
        try:
            prediction = await self._call(
                call,
                run.role,
                is_async=is_async_only(run.program),
                lm=run.lm,
                trace=run.recorder,
                callbacks=[*dspy.settings.callbacks, run.recorder.callback],
            )
        except Exception as error:  # any error of a user's program is a record
            failure = failure_of(error)
            if failure.kind == "lm":
                self._count_lm_failure(error)
            return None, failure
        self._lm_failures = 0
        return prediction, None

    async def _score(self, rollout: Rollout, item: Item, prediction: Any, abort_after: int) -> Rollout:
        call = partial(self._metric.call, item.example, prediction)
        try:
            result = await self._call(call, "metric", is_async=self._metric.is_async, trace=[])
        except Exception as error:  # any error of a user's metric is a record, until it is systematic
            self._count_metric_failure(error, abort_after)
            return replace(rollout, failure=failure_of(error, kind="metric"))
        reward = self._metric.interpret(result)
        self._metric_has_worked = True
        return replace(rollout, reward=reward.value, feedback=reward.feedback)

    async def _call(self, call: Callable[[], Any], role: Role, *, is_async: bool, **settings: Any) -> Any:
        """Run ``call`` under its own DSPy context, with its LM usage counted for ``role``."""

        @contextmanager
        def within() -> Iterator[None]:
            with dspy.context(**settings), self._ledger.count(role):
                yield

        return await self._slots.call(call, is_async=is_async, within=within)

    def _count_lm_failure(self, error: Exception) -> None:
        self._lm_failures += 1
        permanent = isinstance(error, LMAuthError | LMBillingError)
        if permanent or self._lm_failures >= self._sampling.max_lm_failures:
            raise LMUnavailableError(
                f"the language model failed {self._lm_failures} time(s) in a row, so no rollout can be scored: {error}"
            ) from error

    def _count_metric_failure(self, error: Exception, abort_after: int) -> None:
        self._metric_failures += 1
        if self._metric_failures >= abort_after and not self._metric_has_worked:
            raise MetricError(
                f"metric {self._metric.name!r} raised {type(error).__name__} on each of the first "
                f"{self._metric_failures} predictions: {error}"
            ) from error


def _run(program: dspy.Module, lm: dspy.BaseLM | None, role: Role) -> _Run:
    return _Run(program, lm, role, Recorder(program))


def failure_of(error: Exception, kind: str | None = None) -> Failure:
    """The record of an error: what kind it is decides whether it is scored."""
    completion = shorten(str(error.lm_response), _MAX_MESSAGE_CHARS) if isinstance(error, AdapterParseError) else ""
    if kind is None:
        if isinstance(error, AdapterParseError):
            kind = "parse"
        elif isinstance(error, LMError) and not isinstance(error, ContextWindowExceededError):
            kind = "lm"
        else:
            kind = "program"
    return Failure(
        kind=kind,  # type: ignore[arg-type]
        error=type(error).__name__,
        message=shorten(str(error), _MAX_MESSAGE_CHARS),
        completion=completion,
    )
