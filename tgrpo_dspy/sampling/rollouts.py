"""Drawing rollouts and scoring programs: what is run when, what is kept, and what ends the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from tgrpo_dspy.errors import MetricError
from tgrpo_dspy.records import Failure, Group, Role, Rollout
from tgrpo_dspy.runs.events import Announcer, RolloutFinished
from tgrpo_dspy.runs.retries import Retries
from tgrpo_dspy.runs.spending import Spending
from tgrpo_dspy.runs.usage import UsageLedger
from tgrpo_dspy.runs.work import Work
from tgrpo_dspy.sampling.agreement import with_agreement
from tgrpo_dspy.sampling.examples import Item
from tgrpo_dspy.sampling.executor import Slots, gather
from tgrpo_dspy.sampling.failures import is_permanent, is_scored
from tgrpo_dspy.sampling.jobs import Draw, Job, Runner
from tgrpo_dspy.sampling.policy import Policy, rollout_id
from tgrpo_dspy.sampling.rewards import Metric
from tgrpo_dspy.settings import Sampling

# A library is scored while the next step goes on from it. Its runs go first, so that the score is told no later than if
# the step waited for it.
_PRIORITIES: dict[Role, int] = {"evaluation": 1, "rollout": 2}


@dataclass(frozen=True, slots=True)
class Variant:
    """What one rollout of a group runs with: the policy, and which experiences it goes without."""

    policy: Policy
    left_out: tuple[str, ...] = ()


class Sampler:
    """Draws rollouts and scores them.

    Args:
        metric: the user's metric.
        sampling: temperature, failure reward, deadline, retries.
        slots: places to run in.
        work: keeps finished rollouts, and gives them back.
        spending: asked before a run starts.
        announce: told of every finished rollout.
        seed: makes the rollout ids.
        self_consistent: learn from the agreement inside a group; the metric only scores evaluations.
        keep_demonstrations: keep with every rollout of a group what it takes to show it to later runs.
        run: carries out the runs, see ``Executor``.
    """

    def __init__(
        self,
        *,
        metric: Metric,
        sampling: Sampling,
        slots: Slots,
        work: Work,
        spending: Spending,
        announce: Announcer,
        seed: int,
        run: Runner,
        self_consistent: bool = False,
        keep_demonstrations: bool = False,
    ) -> None:
        self._metric, self._sampling, self._slots = metric, sampling, slots
        self._run = run
        self._work, self._spending, self._announce, self._seed = work, spending, announce, seed
        self._self_consistent, self._keep_demonstrations = self_consistent, keep_demonstrations
        self._retries = Retries(sampling.lm_retries, sampling.retry_delay)
        self._lm_failures = 0
        self._metric_failures = 0
        self._metric_has_worked = False

    async def group(self, variants: Sequence[Variant], item: Item, *, step: int, lane: int) -> Group:
        """One rollout of an example for each variant, under its own rollout id; fewer when the run has to stop.

        ``lane`` is the example's place in the batch. A group whose rollouts are all the same is drawn once more at the
        ``resample_temperature``, where there is one.
        """
        temperature, hotter = self._sampling.temperature, self._sampling.resample_temperature
        group = await self._draw(variants, item, step=step, lane=lane, temperature=temperature)
        if hotter is not None and _all_the_same(group):
            more = await self._draw(variants, item, step=step, lane=lane, temperature=hotter, start=len(variants))
            group = replace(group, rollouts=(*group.rollouts, *more.rollouts))
        if self._self_consistent:
            return with_agreement(group, answer_field=self._sampling.answer_field)
        return group

    async def _draw(
        self, variants: Sequence[Variant], item: Item, *, step: int, lane: int, temperature: float, start: int = 0
    ) -> Group:
        async def draw(number: int, variant: Variant) -> Rollout | None:
            identity = rollout_id(self._seed, step, item.key, number)
            how = Draw(
                role="rollout",
                number=number,
                rollout_id=identity,
                temperature=temperature,
                scored=not self._self_consistent,
                keep_demonstrations=self._keep_demonstrations,
            )
            key = f"work/rollout/{variant.policy.identity}/{temperature!r}/{identity}"
            job = Job(variant.policy, item, how)
            rollout = await self._once(key, job, lane=lane, abort_after=len(variants))
            return rollout and replace(rollout, left_out=variant.left_out)

        drawn = await gather([partial(draw, number, variant) for number, variant in enumerate(variants, start)])
        rollouts = tuple(rollout for rollout in drawn if rollout is not None)
        return Group(key=item.key, inputs=item.inputs, labels=item.labels, rollouts=rollouts)

    async def evaluate(
        self, policy: Policy, item: Item, *, repeat: int = 0, abort_after: int, lane: int
    ) -> Rollout | None:
        """One run of the policy with the user's own LM settings; None when the run has to stop.

        Every ``repeat`` but the first, 0, has a rollout id of its own.
        """
        identity = rollout_id(self._seed, "evaluation", item.key, repeat) if repeat else None
        key = f"work/evaluation/{policy.identity}/{item.key}" + (f"/{identity}" if repeat else "")
        job = Job(policy, item, Draw(role="evaluation", number=repeat, rollout_id=identity))
        return await self._once(key, job, lane=lane, abort_after=abort_after)

    async def _once(self, key: str, job: Job, *, lane: int, abort_after: int) -> Rollout | None:
        """The rollout that is kept under ``key``, or a new one as soon as there is a place."""
        role = job.draw.role

        async def make(ledger: UsageLedger) -> Rollout | None:
            async with self._slots.place(priority=_PRIORITIES[role], lane=lane), self._spending.start(role) as may:
                if not may:
                    return None
                made, error = await self._retries.run(partial(self._rollout, job, ledger, abort_after))
            self._watch_the_lm(error)
            return made

        rollout = await self._work.once(key, Rollout, make, keep=_is_final)
        if rollout is not None:
            self._metric_has_worked |= rollout.reward is not None and rollout.failure is None
            self._announce(RolloutFinished(rollout=rollout, evaluation=role == "evaluation", example=job.item.key))
        return rollout

    async def _rollout(self, job: Job, ledger: UsageLedger, abort_after: int) -> tuple[Rollout, Exception | None]:
        """Carry out a job; with the error when it is the LM's. The metric's is a record, until it is systematic."""
        outcome = await self._run(job, ledger)
        failure = outcome.rollout.failure
        if failure is None or failure.kind != "metric":
            return outcome.rollout, outcome.error
        self._count_metric_failure(failure, outcome.error, abort_after)
        return outcome.rollout, None

    def _watch_the_lm(self, error: Exception | None) -> None:
        """Count what fails on the LM's side; when it fails for good, the run is to stop."""
        if error is None:
            self._lm_failures = 0
            return
        self._lm_failures += 1
        if is_permanent(error) or self._lm_failures >= self._sampling.max_lm_failures:
            times = "once" if self._lm_failures == 1 else f"{self._lm_failures} times in a row"
            self._spending.lm_failed(error, f"the language model failed {times}")

    def _count_metric_failure(self, failure: Failure, error: Exception | None, abort_after: int) -> None:
        self._metric_failures += 1
        if self._metric_failures >= abort_after and not self._metric_has_worked:
            raise MetricError(
                f"metric {self._metric.name!r} raised {failure.error} on each of the first "
                f"{self._metric_failures} predictions: {failure.message}"
            ) from error


def _all_the_same(group: Group) -> bool:
    """Whether every one of several rollouts gave the same outputs, or failed in the same way of the program's own."""
    told = [r for r in group.rollouts if r.failure is None or is_scored(r.failure)]
    made = {(tuple(sorted(r.outputs.items())), r.failure and r.failure.kind) for r in told}
    return len(told) > 1 and len(made) == 1


def _is_final(rollout: Rollout | None) -> bool:
    """Whether a rollout stays what it is: not when the LM or the metric failed, which may pass."""
    return rollout is not None and (rollout.failure is None or is_scored(rollout.failure))
