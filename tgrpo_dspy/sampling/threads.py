"""The executor that needs nothing: programs run in threads of this process, async-only ones on its event loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback

from tgrpo_dspy.records import Role, Rollout
from tgrpo_dspy.runs.usage import UsageLedger
from tgrpo_dspy.sampling.executor import DeadlinePassed, Slots, is_async_only
from tgrpo_dspy.sampling.failures import ParseWatcher, failure_of, is_scored
from tgrpo_dspy.sampling.jobs import Draw, Job, Outcome, Runner, Terms
from tgrpo_dspy.sampling.rewards import Metric
from tgrpo_dspy.sampling.traces import Recorder, outputs_of
from tgrpo_dspy.settings import Sampling


class ThreadExecutor:
    """Runs programs in this process."""

    @contextmanager
    def open(self, terms: Terms) -> Iterator[Runner]:
        """Nothing needs to be made ready."""
        yield ThreadRunner(terms.metric, terms.sampling, terms.slots).run


@dataclass(frozen=True, slots=True)
class _Run:
    """A program about to run once: a copy of it, the LM of its context, and what is recorded of it."""

    program: dspy.Module
    lm: dspy.BaseLM | None
    draw: Draw
    example: dspy.Example
    ledger: UsageLedger
    recorder: Recorder
    watcher: ParseWatcher = field(default_factory=ParseWatcher)

    @classmethod
    def of(cls, job: Job, ledger: UsageLedger) -> _Run:
        program, lm = job.program()
        recorder = Recorder(program, keep_demonstrations=job.draw.keep_demonstrations)
        return cls(program, lm, job.draw, job.item.example, ledger, recorder)


@dataclass(frozen=True, slots=True)
class ThreadRunner:
    """Runs a program on an example and scores the result; a failure becomes a record, never an exception.

    Args:
        metric: the user's metric.
        sampling: reward of a failure, and the deadline.
        slots: the threads to run in.
    """

    metric: Metric
    sampling: Sampling
    slots: Slots

    async def run(self, job: Job, ledger: UsageLedger) -> Outcome:
        """Carry out a job."""
        run, started = _Run.of(job, ledger), time.monotonic()
        outcome = await self._outcome(run)
        return replace(outcome, rollout=replace(outcome.rollout, seconds=time.monotonic() - started))

    async def _outcome(self, run: _Run) -> Outcome:
        number = run.draw.number
        try:
            prediction = await self._predict(run)
        except Exception as error:  # any error of a user's program is a record
            failure = failure_of(error, run.watcher)
            rollout = Rollout(number=number, turns=run.recorder.turns(), failure=failure)
            if is_scored(failure):
                return Outcome(replace(rollout, reward=self.sampling.failure_score))
            return Outcome(rollout, error)
        rollout = Rollout(
            number=number,
            outputs=outputs_of(prediction),
            turns=run.recorder.turns(),
            demonstrations=run.recorder.demonstrations(),
        )
        return await self._score(rollout, run, prediction) if run.draw.scored else Outcome(rollout)

    async def _predict(self, run: _Run) -> Any:
        is_async = is_async_only(run.program)
        call = partial(run.program.acall if is_async else run.program, **run.example.inputs())
        watching = (run.recorder.callback, run.watcher)
        settings = {"lm": run.lm, "trace": run.recorder}
        return await self._call(call, run.ledger, run.draw.role, watching, is_async=is_async, **settings)

    async def _score(self, rollout: Rollout, run: _Run, prediction: Any) -> Outcome:
        call = partial(self.metric.call, run.example, prediction)
        try:
            result = await self._call(call, run.ledger, "metric", is_async=self.metric.is_async, trace=[])
        except Exception as error:  # any error of a user's metric is a record
            return Outcome(replace(rollout, failure=failure_of(error, kind="metric")), error)
        reward = self.metric.interpret(result)
        return Outcome(replace(rollout, reward=reward.value, feedback=reward.feedback))

    async def _call(
        self,
        call: Callable[[], Any],
        ledger: UsageLedger,
        role: Role,
        watching: Sequence[BaseCallback] = (),
        *,
        is_async: bool,
        **settings: Any,
    ) -> Any:
        """Run ``call`` under its own DSPy context, with its LM usage counted for ``role``, as long as it may take."""
        meters = []

        @contextmanager
        def within() -> Iterator[None]:
            with dspy.context(**settings), ledger.count(role, watching) as meter:
                meters.append(meter)
                yield

        try:
            return await self.slots.call(call, is_async=is_async, within=within, timeout=self.sampling.rollout_timeout)
        except DeadlinePassed:
            for meter in meters:
                meter.stop()
            raise
