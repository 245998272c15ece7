"""An executor written in a few lines: programs in a pool of processes. What comes back is what threads give."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dspy
import pytest
from dspy.utils.callback import BaseCallback
from dspy.utils.exceptions import ContextWindowExceededError, LMAuthError, LMRateLimitError

from tests.runs.kill_child import Salted, metric
from tests.sampling.distant import Distant, learned, noted, without_timings
from tests.scripted import RULE, Shouting, exact, examples
from tgrpo_dspy import (
    Budget,
    ConfigurationError,
    Experience,
    ExperienceLibrary,
    LMUnavailableError,
    MetricError,
    Sampling,
    attribute,
    evaluate,
    inject,
    prune,
    read_library,
)
from tgrpo_dspy.records import Rollout, Usage
from tgrpo_dspy.runs.events import Event, RolloutFinished
from tgrpo_dspy.runs.usage import UsageLedger
from tgrpo_dspy.sampling.examples import items_of
from tgrpo_dspy.sampling.executor import Slots
from tgrpo_dspy.sampling.jobs import Draw, Job, Outcome, Runner, Terms
from tgrpo_dspy.sampling.remote import RemoteTraceback, Sender, Told, carry_out, received
from tgrpo_dspy.sampling.rewards import Metric
from tgrpo_dspy.sampling.shipping import Shipper, unpack

KEY = "canary-7d1f0c5b9e2a"


class PoolExecutor:
    """Runs programs in two processes."""

    def __init__(self) -> None:
        self.pool = ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))

    @contextmanager
    def open(self, terms: Terms) -> Iterator[Runner]:
        sender = Sender(terms)
        sender.check()

        async def run(job: Job, ledger: UsageLedger) -> Outcome:
            package, example = sender.package(job.policy.program), sender.example(job.item)
            told = self.pool.submit(errand, package.digest, package.content, example, job.draw)
            return received(await asyncio.wrap_future(told), ledger)

        yield run


def errand(digest: str, content: bytes, example: bytes, draw: Draw) -> Told:
    return carry_out(digest, lambda: content, example, draw, dspy.__version__)


@pytest.fixture(scope="module")
def pool() -> Iterator[PoolExecutor]:
    executor = PoolExecutor()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOUSE_API_KEY", KEY)
        for pause in [executor.pool.submit(time.sleep, 0.1) for _ in range(2)]:
            pause.result()
    yield executor
    executor.pool.shutdown()


@pytest.fixture(autouse=True)
def no_cache() -> None:
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)


class Rollouts(list[tuple[bool, str, Rollout]]):
    """A listener that keeps every rollout, without its time."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, RolloutFinished):
            self.append((event.evaluation, event.example, replace(event.rollout, seconds=0.0)))


def test_programs_are_measured_elsewhere_too(pool: PoolExecutor, tmp_path: Path) -> None:
    library = ExperienceLibrary((Experience(id="e1", text=RULE), Experience(id="e2", text="Be kind.")))
    program = inject(Salted(), library)
    found, processes = [], []
    for name, executor in (("here", "threads"), ("there", pool)):
        settings: Any = {"metric": metric, "num_threads": 2, "executor": executor}
        with dspy.context(lm=Distant(tmp_path / name).lm()):
            scores = evaluate(program, devset=examples(5), **settings).scores
            attribution = attribute(program, evalset=examples(5), **settings)
            kept = read_library(prune(program, attribution, evalset=examples(5), **settings).program)
        found.append((scores, attribution.effects, kept))
        processes.append({line[0] for line in noted(tmp_path / name)})
    assert found[0] == found[1]
    assert processes[0] == {os.getpid()} and os.getpid() not in processes[1]


class Moody(Salted):
    """Fails in a way of its own on some of the questions."""

    def forward(self, question: str) -> dspy.Prediction:
        answer = super().forward(question)
        if question.endswith("0"):
            raise ZeroDivisionError("the tool divided by zero")
        if question == "question number 1":
            time.sleep(1.0)
        return answer


class Ill(Distant):
    """A model that fails in a way of its own on some of the questions."""

    def __call__(self, call: Any) -> Any:
        answer = super().__call__(call)
        question = call.fields.get("question")
        if question == "question number 2":
            return "I will not follow your form."
        if question == "question number 3":
            raise ContextWindowExceededError(model="test", message="too long")
        if question == "question number 4":
            raise LMRateLimitError("slow down", retry_after=0.0)
        return answer


def moody(gold: dspy.Example, pred: Any, trace: Any = None) -> Any:
    if gold.question.endswith("5"):
        raise KeyError("the judge has no opinion")
    return metric(gold, pred)


def test_a_run_is_the_same_in_threads_and_in_other_processes(pool: PoolExecutor, tmp_path: Path) -> None:
    here, there = learned(Distant(tmp_path / "a"), "threads"), learned(Distant(tmp_path / "b"), pool)
    assert there[:2] == here[:2]
    assert without_timings(there[2]) == without_timings(here[2])
    assert RULE in there[1]
    assert os.getpid() not in {pid for pid, _, _ in noted(tmp_path / "b")}


def test_every_failure_is_the_same_record(pool: PoolExecutor, tmp_path: Path) -> None:
    reports, rollouts = {}, {}
    for name, executor in (("threads", "threads"), ("pool", pool)):
        listener = Rollouts()
        reports[name] = learned(
            Ill(tmp_path / name),
            executor,
            student=Moody(),
            score=moody,
            size=7,
            epochs=1,
            group_size=2,
            sampling=Sampling(rollout_timeout=0.5, failure_score=-1.0, retry_delay=0.0),
            compiling={"listeners": [listener]},
        )[2]
        rollouts[name] = sorted(map(repr, listener))
    assert rollouts["pool"] == rollouts["threads"]
    kinds = ("program", "timeout", "parse", "context", "lm", "metric")
    assert all(f"kind='{kind}'" in "".join(rollouts["pool"]) for kind in kinds)
    failed = [report.usage["rollout"].failed for report in reports.values()]
    assert failed == [2 + 2 * 3] * 2, "a full context is not tried again, a rate limit is"


def test_usage_of_a_run_past_its_deadline_counts(pool: PoolExecutor, tmp_path: Path) -> None:
    report = learned(
        Distant(tmp_path / "log"),
        pool,
        student=Moody(),
        size=2,
        epochs=1,
        group_size=2,
        sampling=Sampling(rollout_timeout=0.5),
    )[2]
    assert [r.failure and r.failure.kind for r in report.steps[0].groups[1].rollouts] == ["timeout"] * 2
    assert report.usage["rollout"].calls == 4


class Awaited(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.answer = dspy.Predict("question, salt -> answer")

    async def aforward(self, question: str) -> dspy.Prediction:
        return await self.answer.acall(question=question, salt=dspy.settings.lm.kwargs.get("rollout_id", 0))


async def awaited(gold: dspy.Example, pred: Any, trace: Any = None) -> bool:
    await asyncio.sleep(0)
    return exact(gold, pred)


def test_a_program_and_a_metric_that_can_only_be_awaited(pool: PoolExecutor, tmp_path: Path) -> None:
    here, there = (
        learned(Distant(tmp_path / name), executor, student=Awaited(), score=awaited)
        for name, executor in (("a", "threads"), ("b", pool))
    )
    assert there[:2] == here[:2]
    assert RULE in there[1]


def no_field(gold: dspy.Example, pred: Any, trace: Any = None) -> Any:
    return gold.no_such_field


def nothing(gold: dspy.Example, pred: Any, trace: Any = None) -> Any:
    return None


class Refusing(Shouting):
    def __call__(self, call: Any) -> Any:
        raise LMAuthError("no such key", model="test")


@pytest.mark.parametrize(
    ("model", "score", "error"),
    [(Shouting, no_field, MetricError), (Shouting, nothing, MetricError), (Refusing, exact, LMUnavailableError)],
)
def test_what_ends_a_run_ends_it_with_the_same_words(
    pool: PoolExecutor, model: type[Shouting], score: Any, error: type[Exception]
) -> None:
    said = []
    for executor in ("threads", pool):
        with pytest.raises(error) as raised:
            learned(model(), executor, score=score, threads=1)
        said.append(str(raised.value))
    assert said[0] == said[1]
    cause: BaseException | None = raised.value
    while cause is not None and not isinstance(cause, RemoteTraceback):
        cause = cause.__cause__
    assert "Traceback" in str(cause), "what happened there can be looked up"
    assert score is not no_field or "return gold.no_such_field" in str(cause)


def test_budget_prices_and_trackers_count_what_was_used_elsewhere(
    pool: PoolExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices = {"test/scripted": {"input_cost_per_token": 1e-3, "output_cost_per_token": 0.0}}
    monkeypatch.setitem(sys.modules, "litellm", SimpleNamespace(model_cost=prices))
    with dspy.track_usage() as tracker:
        report = learned(Distant(tmp_path / "log"), pool, compiling={"budget": Budget(max_lm_calls=7)})[2]
    used = sum(report.usage.values(), start=Usage())
    assert report.stopped_by == "budget: max_lm_calls=7"
    assert 0 < used.calls <= 7 and used.unpriced == 0
    assert used.cost == pytest.approx(used.prompt_tokens * 1e-3) and used.cost > 0
    assert tracker.get_total_tokens()["test/scripted"]["prompt_tokens"] == used.prompt_tokens


def test_a_run_begun_elsewhere_goes_on_here(pool: PoolExecutor, tmp_path: Path) -> None:
    first = {"run_dir": tmp_path / "run", "budget": Budget(max_rollouts=9)}
    learned(Distant(tmp_path / "log"), pool, compiling=first)
    begun = len(noted(tmp_path / "log"))
    went_on = learned(Distant(tmp_path / "log"), "threads", compiling={"run_dir": tmp_path / "run"})
    whole = learned(Distant(tmp_path / "whole"), "threads")
    assert 0 < begun < len(noted(tmp_path / "log")) == len(noted(tmp_path / "whole"))
    assert went_on[:2] == whole[:2]


class Watching(BaseCallback):
    pass


@pytest.mark.parametrize("place", ["settings", "lm"])
def test_callbacks_that_would_not_be_called_are_refused(pool: PoolExecutor, tmp_path: Path, place: str) -> None:
    model, callbacks = Distant(tmp_path / "log"), [Watching()]
    if place == "lm":
        model.lm = lambda **kwargs: model.engine.lm(callbacks=callbacks)  # type: ignore[method-assign]
    settings = {"callbacks": callbacks} if place == "settings" else {}
    with dspy.context(**settings), pytest.raises(ConfigurationError, match=r"callbacks \(Watching\)"):
        learned(model, pool)
    assert not (tmp_path / "log").exists()


class Locked(Salted):
    def __init__(self) -> None:
        super().__init__()
        self.clients = {"web": [threading.Lock()]}


class InProcess(Distant):
    def __init__(self, log: Path) -> None:
        super().__init__(log)
        self.weights = threading.Lock()


def counting() -> Any:
    handle = threading.Lock()

    def scored(gold: dspy.Example, pred: Any, trace: Any = None) -> bool:
        with handle:
            return exact(gold, pred)

    return scored


@pytest.mark.parametrize(
    ("model", "student", "score", "named"),
    [
        (Distant, Locked, exact, r"program.clients\['web'\]\[0\] \(lock\).*executor='threads'"),
        (InProcess, Salted, exact, r"engine.respond.weights \(lock\).*has to be served"),
        (Distant, Salted, counting(), r"handle, which metric.function uses \(lock\)"),
    ],
)
def test_what_cannot_be_sent_is_named(
    pool: PoolExecutor, tmp_path: Path, model: Any, student: Any, score: Any, named: str
) -> None:
    with pytest.raises(ConfigurationError, match=named):
        learned(model(tmp_path / "log"), pool, student=student(), score=score)
    assert not (tmp_path / "log").exists()


def judged_by(lm: dspy.LM) -> Any:
    def score(gold: dspy.Example, pred: Any, trace: Any = None) -> bool:
        with dspy.context(lm=lm):
            return bool(dspy.Predict("answer -> good: bool")(answer=pred.answer).good)

    return score


def test_a_key_of_the_environment_stays_here_and_is_read_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOUSE_API_KEY", KEY)
    lm = dspy.LM("openai/house", api_key=KEY, headers={"Authorization": f"Bearer {KEY}"})
    lm.history.append({"prompt": "what was asked before"})
    program = dspy.Predict(dspy.Signature("question -> answer", f"The word is {KEY}, keep it."))
    program.set_lm(lm)
    packed = Shipper().pack({"program": program, "metric": judged_by(lm), "dspy.settings": {"lm": lm}})
    assert KEY.encode() not in packed and b"asked before" not in packed
    monkeypatch.setenv("HOUSE_API_KEY", "another-1234")
    there = unpack(packed)
    assert there["program"].lm is there["dspy.settings"]["lm"], "one LM is one LM there"
    assert there["program"].lm.kwargs["api_key"] == "another-1234"
    assert there["program"].lm.kwargs["headers"] == {"Authorization": "Bearer another-1234"}
    assert there["program"].signature.instructions == "The word is another-1234, keep it."
    monkeypatch.delenv("HOUSE_API_KEY")
    with pytest.raises(ConfigurationError, match="HOUSE_API_KEY is not set"):
        unpack(packed)


@pytest.mark.parametrize("place", ["program", "settings", "metric"])
def test_a_key_in_code_only_is_refused_and_not_shown(pool: PoolExecutor, place: str) -> None:
    lm, student, score = dspy.LM("openai/house", api_key=KEY), dspy.Predict("question -> answer"), exact
    if place == "program":
        student.set_lm(lm)
    elif place == "metric":
        score = judged_by(lm)
    model = Shouting()
    if place == "settings":
        model.lm = lambda **kwargs: lm  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match=r"'openai/house' in 'api_key'.*os\.environ") as raised:
        learned(model, pool, student=student, score=score)
    assert KEY not in str(raised.value) and not model.engine.calls


def test_a_placeholder_for_a_key_is_none() -> None:
    lm = dspy.LM("openai/house", api_base="http://localhost:8000/v1", api_key="EMPTY")
    assert unpack(Shipper().pack({"lm": lm}))["lm"].kwargs["api_key"] == "EMPTY"


class Indiscreet(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.answer = dspy.Predict("question -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        raise ValueError(f"401: the key {os.environ['HOUSE_API_KEY']} was refused")


def packed_job(student: dspy.Module, score: Any = exact) -> tuple[str, bytes, bytes, Draw]:
    metric_of, sampling = Metric(score), Sampling()
    sender = Sender(Terms(student=student, metric=metric_of, sampling=sampling, slots=Slots(1)))
    package = sender.package(student)
    (item,) = items_of(examples(1), "trainset")
    return package.digest, package.content, sender.example(item), Draw(role="rollout", number=0)


def test_nothing_secret_comes_back(pool: PoolExecutor) -> None:
    told = pool.pool.submit(errand, *packed_job(Indiscreet())).result()
    assert told.rollout is not None and told.rollout.failure is not None
    assert told.rollout.failure.message == "401: the key *** was refused"
    assert KEY not in repr(told)


def test_another_version_of_dspy_is_refused() -> None:
    digest, content, example, draw = packed_job(Salted())
    told = carry_out(digest, lambda: content, example, draw, "3.0.0")
    with pytest.raises(ConfigurationError, match=r"but 3\.0\.0 where compile runs"):
        received(told, UsageLedger())


def test_code_that_is_not_there_is_named(pool: PoolExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_here.py").write_text("import dspy\nclass Mine(dspy.Predict): pass\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    from only_here import Mine  # type: ignore[import-not-found]

    with pytest.raises(ConfigurationError, match=r"No module named 'only_here'.*has to be installed"):
        learned(Distant(tmp_path / "log"), pool, student=Mine("question -> answer"))


@pytest.mark.parametrize("executor", ["dask", 4, None, PoolExecutor])
def test_what_is_no_executor_is_refused(executor: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"executor=.*use 'threads', 'ray'"):
        learned(Shouting(), executor)
