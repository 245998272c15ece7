"""An engine that fails one call in five, in every way: the run ends with a usable program and honest counts."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.utils.exceptions import LMAuthError, LMRateLimitError, LMServerError, LMTimeoutError, LMTransportError

from tests.scripted import RULE, Shouting, exact, examples, reflects
from tgrpo_dspy import LMUnavailableError, Sampling, TrainingFreeGRPO
from tgrpo_dspy.runs.events import Event, RolloutFinished
from tgrpo_dspy.testing import Call

PASSING = (LMRateLimitError, LMTimeoutError, LMTransportError, LMServerError)
KEY = "a-secret-without-a-shape"
STEPS, GROUPS, SIZE, VAL = 3, 4, 4, 3


class Faulty(Shouting):
    """Fails every fifth call on average; ``dies_at`` is the call from which on its key is refused."""

    def __init__(self, seed: int, dies_at: int) -> None:
        super().__init__()
        self.draw, self.dies_at, self.lock = random.Random(seed), dies_at, threading.Lock()
        self.failed = self.malformed = self.answered = 0

    def __call__(self, call: Call) -> Any:
        with self.lock:
            if call.number >= self.dies_at:
                self.failed += 1
                raise LMAuthError(f"the key {KEY} is refused")
            fate = self.draw.random()
            if fate < 0.16:
                self.failed += 1
                raise self.draw.choice(PASSING)("try again")
            self.answered += 1
            if fate < 0.20 and not reflects(call):
                self.malformed += 1
                return "I would rather talk about the weather."
        answer = super().__call__(call)
        is_student_on_val = call.fields.get("question", "").startswith("val") and RULE not in call.system
        return {"answer": "wrong"} if is_student_on_val else answer


@pytest.mark.parametrize("seed", range(20))
def test_every_run_ends_with_a_usable_program_and_no_failed_call_becomes_a_reward(seed: int) -> None:
    model, seen = Faulty(seed, dies_at=52), []
    optimizer = TrainingFreeGRPO(
        metric=exact,
        epochs=STEPS,
        group_size=SIZE,
        num_threads=4,
        sampling=Sampling(retry_delay=0.0, solved_score=None),
    )
    adapter = dspy.ChatAdapter(use_json_adapter_fallback=False)
    with dspy.context(lm=model.lm(), adapter=adapter):
        compiled = optimizer.compile(
            dspy.Predict("question -> answer"),
            trainset=examples(GROUPS),
            valset=examples(VAL, "val"),
            listeners=[seen.append],
            verbose=False,
        )
    report = optimizer.report
    assert report is not None
    assert report.stopped_by is not None and report.stopped_by.startswith("lm: ")
    assert RULE in compiled.signature.instructions
    with dspy.context(lm=Shouting().lm()):
        assert compiled(question="usable?").answer == "USABLE?"

    rollouts = [event.rollout for event in seen if isinstance(event, RolloutFinished)]
    for rollout in rollouts:
        if rollout.failure is None:
            assert rollout.reward in (0.0, 1.0)
        elif rollout.failure.kind == "parse":
            assert rollout.reward == 0.0 and "weather" in rollout.failure.completion
            assert rollout.failure.missing == ("answer",)
        else:
            assert rollout.failure.kind == "lm" and rollout.reward is None
    usage = report.usage.values()
    assert sum(u.calls for u in usage) == model.answered
    assert sum(u.failed for u in usage) == model.failed
    assert sum(r.failure is not None and r.failure.kind == "parse" for r in rollouts) == model.malformed


def test_an_lm_that_refuses_before_anything_was_learned_is_an_error_without_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_PROVIDER_API_KEY", KEY)
    events: list[Event] = []
    optimizer = TrainingFreeGRPO(metric=exact, num_threads=1)
    with dspy.context(lm=Faulty(0, dies_at=0).lm()), pytest.raises(LMUnavailableError, match="refused") as error:
        optimizer.compile(
            dspy.Predict("question -> answer"), trainset=examples(2), listeners=[events.append], verbose=False
        )
    chain: list[BaseException | None] = [error.value, error.value.__cause__]
    assert KEY not in "".join(map(repr, [*chain, *events]))


def test_an_lm_failure_that_passes_costs_no_rollout() -> None:
    class Hiccup(Shouting):
        def __call__(self, call: Call) -> Any:
            if call.number % 2 == 0 and not reflects(call):
                raise LMRateLimitError("slow down")
            return super().__call__(call)

    model = Hiccup()
    optimizer = TrainingFreeGRPO(
        metric=exact, epochs=1, num_threads=1, sampling=Sampling(retry_delay=0.0, lm_retries=1)
    )
    with dspy.context(lm=model.lm()):
        optimizer.compile(dspy.Predict("question -> answer"), trainset=examples(2), verbose=False)
    assert optimizer.report is not None
    rollouts = [r for group in optimizer.report.steps[0].groups for r in group.rollouts]
    assert [r.failure for r in rollouts] == [None] * 10
    assert optimizer.report.usage["rollout"].failed == 10 == optimizer.report.usage["rollout"].calls


def test_a_run_that_an_lm_stopped_goes_on_when_it_answers_again(tmp_path: Path) -> None:
    def learned(model: Shouting) -> tuple[dspy.Module, TrainingFreeGRPO]:
        dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
        optimizer = TrainingFreeGRPO(metric=exact, epochs=2, group_size=4, num_threads=1)
        with dspy.context(lm=model.lm()):
            program = optimizer.compile(
                dspy.Predict("question -> answer"), trainset=examples(3), run_dir=tmp_path, verbose=False
            )
        return program, optimizer

    class Dying(Shouting):
        def __call__(self, call: Call) -> Any:
            if call.number >= 17:
                raise LMAuthError("no credit left")
            return super().__call__(call)

    _, first = learned(Dying())
    assert first.report is not None and first.report.stopped_by is not None
    healthy = Shouting()
    _, second = learned(healthy)
    assert second.report is not None and second.report.stopped_by is None
    assert len(healthy.runs) == 2 * 3 * 4 - (17 - 1), "what was answered before is not asked again"
