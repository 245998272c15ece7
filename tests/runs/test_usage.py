"""Calls, tokens and dollars are counted once each, also for a run that was given up."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import dspy
import pytest

from tgrpo_dspy.records import Usage
from tgrpo_dspy.runs.prices import price
from tgrpo_dspy.runs.usage import Meter, Stopped, UsageLedger, difference
from tgrpo_dspy.testing import ScriptedEngine

PROGRAM = dspy.Predict("question -> answer")


def scripted(model: str = "test/scripted", **kwargs: Any) -> dspy.LM:
    return ScriptedEngine(lambda call: {"answer": "yes"}).lm(model, **kwargs)


def ask(lm: dspy.LM, ledger: UsageLedger, *questions: str) -> None:
    with dspy.context(lm=lm), ledger.count("rollout"):
        for question in questions:
            PROGRAM(question=question)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """LiteLLM's table of prices, as if LiteLLM had been imported: importing it takes seconds."""
    table: dict[str, Any] = {}
    monkeypatch.setitem(sys.modules, "litellm", SimpleNamespace(model_cost=table))
    return table


def rates(provider: str, **more: float) -> dict[str, Any]:
    return {"input_cost_per_token": 1e-3, "output_cost_per_token": 2e-3, "litellm_provider": provider, **more}


def test_a_call_of_a_known_model_has_a_price() -> None:
    ledger = UsageLedger()
    ask(scripted("openai/gpt-4o-mini"), ledger, "priced?", "how?")
    usage = ledger.total()["rollout"]
    assert (usage.calls, usage.unpriced) == (2, 0)
    assert usage.cost == pytest.approx(usage.prompt_tokens * 0.15e-6 + usage.completion_tokens * 0.6e-6)
    assert usage.cost > 0


def test_a_call_of_an_unknown_model_is_unpriced_and_litellm_is_not_imported_for_it() -> None:
    before = "litellm" in sys.modules
    ledger = UsageLedger()
    ask(scripted(), ledger, "unknown?")
    usage = ledger.total()["rollout"]
    assert (usage.calls, usage.unpriced, usage.cost) == (1, 1, 0.0)
    assert ("litellm" in sys.modules) == before


def test_an_answer_from_the_cache_costs_nothing() -> None:
    first, again = UsageLedger(), UsageLedger()
    lm = scripted("openai/gpt-4o-mini")
    ask(lm, first, "cached or not?")
    ask(lm, again, "cached or not?")
    assert first.total()["rollout"].cost > 0
    assert again.total() == {"rollout": Usage(cached=1)}


def test_a_failed_call_is_counted_as_failed() -> None:
    def refuse(call: object) -> str:
        raise RuntimeError("no")

    ledger = UsageLedger()
    with pytest.raises(dspy.LMError):
        ask(ScriptedEngine(refuse).lm(), ledger, "failed?")
    assert ledger.total() == {"rollout": Usage(failed=1)}


def test_calls_that_the_program_tracks_itself_are_counted_here_and_outside() -> None:
    ledger = UsageLedger()
    with dspy.track_usage() as outside, dspy.context(lm=scripted()), ledger.count("rollout"):
        with dspy.track_usage() as own:
            PROGRAM(question="tracked twice?")
        PROGRAM(question="tracked once?")
    usage = ledger.total()["rollout"]
    assert (usage.calls, usage.cached) == (2, 0)
    assert len(own.usage_data["test/scripted"]) == 1
    assert outside.get_total_tokens()["test/scripted"]["prompt_tokens"] == usage.prompt_tokens > 0


def test_calls_of_many_threads_are_all_counted() -> None:
    ledger, lm = UsageLedger(), scripted("openai/gpt-4o-mini")
    parallel = dspy.Parallel(num_threads=8, disable_progress_bar=True)
    with dspy.context(lm=lm), ledger.count("rollout"):
        parallel([(PROGRAM, {"question": f"thread {i}?"}) for i in range(40)])
    assert ledger.total()["rollout"].calls == 40
    assert ledger.total()["rollout"].unpriced == 0


def test_what_a_ledger_counts_its_parents_count_too() -> None:
    whole = UsageLedger()
    run = UsageLedger(whole)
    first, second = UsageLedger(run), UsageLedger(run)
    ask(scripted(), first, "first of two?")
    ask(scripted(), second, "second of two?", "third?")
    assert first.total()["rollout"].calls == 1
    assert run.total() == whole.total()
    assert whole.total()["rollout"] == first.total()["rollout"] + second.total()["rollout"]


def test_usage_of_an_earlier_run_is_added_to_the_ledger_and_its_parents() -> None:
    whole = UsageLedger()
    part = UsageLedger(whole)
    paid: dict[Any, Usage] = {"rollout": Usage(calls=2, cost=0.5), "metric": Usage()}
    part.add(paid)
    part.add(paid)
    assert part.total() == whole.total() == {"rollout": Usage(calls=4, cost=1.0)}


def test_the_difference_of_two_totals_leaves_out_what_did_not_change() -> None:
    earlier = {"rollout": Usage(calls=1, cost=0.25), "metric": Usage(calls=1)}
    later = {"rollout": Usage(calls=3, cost=0.75), "metric": Usage(calls=1), "reflection": Usage(failed=1)}
    assert difference(later, earlier) == {  # type: ignore[arg-type]
        "rollout": Usage(calls=2, cost=0.5),
        "reflection": Usage(failed=1),
    }


class Abandoned:
    """A program in a thread of its own that never ends by itself; it waits in its first LM call for ``go_on``."""

    def __init__(self, run: Callable[[], object]) -> None:
        self.engine = ScriptedEngine(self.answer)
        self.waiting, self.go_on = threading.Event(), threading.Event()
        self.ledger = UsageLedger()
        self.ended_by: type[BaseException] | None = None
        self._run = run
        self._meters: list[Meter] = []
        self.thread = threading.Thread(target=self.body, daemon=True)

    def answer(self, call: object) -> dict[str, str]:
        self.waiting.set()
        assert self.go_on.wait(10)
        return {"answer": "late"}

    def body(self) -> None:
        try:
            with dspy.context(lm=self.engine.lm()), self.ledger.count("rollout") as meter:
                self._meters.append(meter)
                while True:
                    try:
                        self._run()
                    except Exception:
                        continue
        except BaseException as error:
            self.ended_by = type(error)

    def give_up(self) -> None:
        self.thread.start()
        assert self.waiting.wait(10)
        self._meters[0].stop()
        self.go_on.set()
        self.thread.join(10)
        assert not self.thread.is_alive()


def test_a_run_that_was_given_up_ends_after_the_call_it_is_in_and_that_call_counts_once() -> None:
    done = []
    run = Abandoned(lambda: done.append(PROGRAM(question="given up?", config={"cache": False})))
    run.give_up()
    assert run.ended_by is Stopped
    assert (len(run.engine.calls), done) == (1, [])
    usage = run.ledger.total()["rollout"]
    assert (usage.calls, usage.cached, usage.failed) == (1, 0, 0)
    assert usage.prompt_tokens > 0


def test_a_run_that_was_given_up_between_two_calls_starts_no_other() -> None:
    lm = scripted()
    ledger = UsageLedger()
    with pytest.raises(Stopped), dspy.context(lm=lm), ledger.count("rollout") as meter:
        PROGRAM(question="before?")
        meter.stop()
        PROGRAM(question="before?")  # the answer is in the cache, so that no usage would tell
    assert ledger.total()["rollout"].calls == 1
    assert ledger.total()["rollout"].cached == 0


TOKENS = {"prompt_tokens": 1000, "completion_tokens": 100}


def test_dspy_brings_the_prices_of_well_known_models() -> None:
    assert price("openai/gpt-4o-mini", TOKENS) == price("gpt-4o-mini", TOKENS) == pytest.approx(210e-6)
    assert price("", TOKENS) is None


@pytest.mark.parametrize(
    ("model", "entry", "provider"),
    [
        ("mine/server", "mine/server", "openai"),
        ("openai/new", "openai/new", "openai"),
        ("openai/new", "new", "openai"),
        ("new", "new", "openai"),
        ("vertex_ai/new", "new", "vertex_ai-language-models"),
        ("openai/gpt-4o-mini", "gpt-4o-mini", "openai"),
    ],
)
def test_a_price_that_was_registered_is_found(
    registered: dict[str, Any], model: str, entry: str, provider: str
) -> None:
    registered[entry] = rates(provider)
    assert price(model, TOKENS) == pytest.approx(1.2)


def test_a_model_of_the_same_name_at_another_provider_has_no_price(registered: dict[str, Any]) -> None:
    registered["new"] = rates("openai")
    assert price("mine/new", TOKENS) is None
    assert price("openai/newer", TOKENS) is None


def test_parts_of_a_prompt_are_billed_at_their_own_rate_where_there_is_one(registered: dict[str, Any]) -> None:
    parts = {"prompt_tokens_details": {"cached_tokens": 800, "audio_tokens": None}}
    thinking = {"completion_tokens_details": {"reasoning_tokens": 90}}
    registered["new"] = rates("openai")
    assert price("new", TOKENS | parts | thinking) == pytest.approx(1.2)
    registered["new"] |= {"cache_read_input_token_cost": 1e-4, "output_cost_per_reasoning_token": 3e-3}
    assert price("new", TOKENS | parts) == pytest.approx(0.2 + 0.08 + 0.2)
    assert price("new", TOKENS | thinking) == pytest.approx(1.0 + 0.02 + 0.27)


def test_long_prompts_have_their_own_rates(registered: dict[str, Any]) -> None:
    above = {"input_cost_per_token_above_2k_tokens": 2e-3, "output_cost_per_token_above_2k_tokens": 3e-3}
    registered["new"] = rates("openai", **above)
    assert price("new", {"prompt_tokens": 2000, "completion_tokens": 100}) == pytest.approx(2.2)
    assert price("new", {"prompt_tokens": 3000, "completion_tokens": 100}) == pytest.approx(6.3)


def test_tokens_that_were_not_reported_or_have_no_rate_are_not_free(registered: dict[str, Any]) -> None:
    registered["new"] = rates("openai")
    registered["half"] = {"input_cost_per_token": 1e-3}
    assert price("new", {}) is None
    assert price("new", {"prompt_tokens": 1000}) is None
    assert price("half", TOKENS) is None
    assert price("half", TOKENS | {"completion_tokens": 0}) == pytest.approx(1.0)
