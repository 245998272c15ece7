"""Spans read back from an exporter in memory: what a run is made of, and that DSPy's own spans are parts of it."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import dspy
import pytest

from tests.scripted import RULE, Shouting, exact, examples, reflects
from tests.test_docs import ROOT, run_examples
from tgrpo_dspy import Budget, MetricError, OpenTelemetryListener, Sampling, TrainingFreeGRPO
from tgrpo_dspy.runs.events import Event, StepFinished
from tgrpo_dspy.testing import Call

pytest.importorskip("openinference.instrumentation.dspy")

from openinference.instrumentation.dspy import DSPyInstrumentor
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

SECRET = "correct-horse-battery-42"


class Traces:
    """A provider of tracers and the spans that have ended."""

    def __init__(self) -> None:
        self.provider, self._exporter = TracerProvider(), InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def above(self, span: ReadableSpan) -> list[str]:
        """The names of the spans that hold a span, from the innermost to the root."""
        by_id = {other.context.span_id: other for other in self.spans}
        names = []
        while span.parent is not None:
            span = by_id[span.parent.span_id]
            names.append(span.name)
        return names


@pytest.fixture
def traces() -> Iterator[Traces]:
    traces = Traces()
    yield traces
    traces.provider.shutdown()


@pytest.fixture
def instrumented(traces: Traces) -> Iterator[None]:
    """DSPy instrumented; put back as it was, of which ``uninstrument`` would leave out the callbacks.

    It looks for every direct subclass of Predict in DSPy itself, and other tests have some of their own.
    """
    own = [cls for cls in dspy.Predict.__subclasses__() if cls.__module__.startswith("dspy.")]
    classes = (dspy.Module, dspy.LM, dspy.Adapter, dspy.Tool, dspy.Retrieve, dspy.ColBERTv2, dspy.utils.DummyLM)
    before = {cls: dict(vars(cls)) for cls in (*classes, dspy.Predict, *own)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dspy.Predict, "__subclasses__", staticmethod(lambda: own), raising=False)
        DSPyInstrumentor().instrument(tracer_provider=traces.provider)
        yield
        DSPyInstrumentor().uninstrument()
    for cls, attributes in before.items():
        for name, value in vars(cls).copy().items():
            if name not in attributes:
                delattr(cls, name)
            elif value is not attributes[name]:
                setattr(cls, name, attributes[name])


class Alternating(Shouting):
    """Without the rule right in every other run of a question, and in validation on one of the two questions."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: defaultdict[str, Iterator[int]] = defaultdict(count)

    def __call__(self, call: Call) -> dict[str, str]:
        if reflects(call):
            return super().__call__(call)
        question = call.fields["question"]
        lucky = question.endswith("0") if "val" in question else next(self.counts[question]) % 2 == 0
        return {"answer": question.upper() if lucky or RULE in call.system else question}


class AsyncOnly(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.answer = dspy.Predict("question -> answer")

    async def aforward(self, question: str) -> dspy.Prediction:
        return await self.answer.acall(question=question)


def arguments(**given: Any) -> dict[str, Any]:
    sets = {"trainset": examples(3), "valset": examples(2, "val")}
    return {"student": dspy.Predict("question -> answer"), **sets, "verbose": False, **given}


def run(*listeners: Any, metric: Any = exact, **given: Any) -> TrainingFreeGRPO:
    """Two steps, three rollouts an example, in three threads."""
    every = Sampling(solved_score=None)
    optimizer = TrainingFreeGRPO(metric=metric, epochs=2, group_size=3, num_threads=3, sampling=every)
    with dspy.context(lm=Alternating().lm()):
        optimizer.compile(**arguments(listeners=listeners, **given))
    return optimizer


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """The attributes of a span that are this package's."""
    given = dict(span.attributes or {})
    return {name.removeprefix("tgrpo."): value for name, value in given.items() if name.startswith("tgrpo.")}


@pytest.mark.usefixtures("instrumented")
def test_every_span_of_a_run_is_in_one_tree(traces: Traces) -> None:
    report = run(OpenTelemetryListener(traces.provider)).report
    assert report is not None
    (root,) = (span for span in traces.spans if span.parent is None)
    assert root.name == "compile" and root.status.is_ok
    assert len({span.context.trace_id for span in traces.spans}) == 1
    kinds = Counter(span.name for span in traces.spans)
    rollouts = sum(len(group.rollouts) for step in report.steps for group in step.groups)
    assert (kinds["step"], kinds["group"], kinds["rollout"], kinds["evaluation"]) == (2, 6, rollouts, 4)
    held = {"step": ["compile"], "group": ["step", "compile"], "rollout": ["group", "step", "compile"]}
    for name, above in held.items():
        assert all(traces.above(span) == above for span in traces.named(name))
    assert Counter(tuple(traces.above(span)) for span in traces.named("evaluation")) == {
        ("compile",): 2,
        ("step", "compile"): 2,
    }
    # DSPy's own: those of the program in the rollout that made them, those of the reflection in the step.
    modules = [traces.above(span)[0] for span in traces.spans if span.name == "Predict.forward"]
    assert Counter(modules) == {"rollout": rollouts, "evaluation": 4, "SemanticAdvantage.forward": 1}
    (reflection,) = traces.named("SemanticAdvantage.forward")
    assert traces.above(reflection) == ["step", "compile"]
    assert all(len(traces.above(span)) >= 4 for span in traces.named("LM.__call__"))


def test_spans_say_what_the_report_says(traces: Traces) -> None:
    report = run(OpenTelemetryListener(traces.provider)).report
    assert report is not None
    (root,) = traces.named("compile")
    assert attributes(root) == {"student": "Predict", "best_step": 1, "library_size": 1}
    assert [dict(event.attributes or {})["tgrpo.validation_score"] for event in root.events] == [0.5]
    for span, step in zip(traces.named("step"), report.steps, strict=True):
        told = attributes(span)
        assert (told["step"], told["epoch"], told["mean_reward"]) == (step.step, step.epoch, step.mean_reward)
        assert (told["edits_applied"], told["edits_refused"]) == (len(step.applied), len(step.refused))
        assert step.evaluation is not None and told["validation_score"] == step.evaluation.mean
    groups = {(step.step, group.key): group for step in report.steps for group in step.groups}
    for span in traces.named("group"):
        told = attributes(span)
        assert told["rewards"] == groups[told["step"], told["example"]].rewards
    ids = {span.context.span_id: attributes(span) for span in traces.named("group")}
    for span in traces.named("rollout"):
        told, group = attributes(span), ids[span.parent.span_id]  # type: ignore[union-attr]
        assert told["example"] == group["example"]
        assert told["reward"] == group["rewards"][told["number"]]
    assert all(span.attributes and span.attributes["openinference.span.kind"] == "CHAIN" for span in traces.spans)


@pytest.mark.usefixtures("instrumented")
def test_in_a_span_of_the_users_own_and_in_a_notebook_the_tree_is_the_same(traces: Traces) -> None:
    async def cell() -> None:
        run(OpenTelemetryListener(traces.provider), student=AsyncOnly())

    with traces.provider.get_tracer("mine").start_as_current_span("mine") as mine:
        asyncio.run(cell())
        assert trace.get_current_span() is mine
    assert [span.name for span in traces.spans if span.parent is None] == ["mine"]
    assert {traces.above(span)[0] for span in traces.named("AsyncOnly.acall")} <= {"rollout", "evaluation"}
    assert all(traces.above(span)[-1] == "mine" for span in traces.spans if span.name != "mine")


@pytest.mark.usefixtures("instrumented")
def test_two_runs_at_once_do_not_mix(traces: Traces) -> None:
    async def both() -> None:
        listener = OpenTelemetryListener(traces.provider)
        optimizers = [TrainingFreeGRPO(metric=exact, epochs=1, group_size=2, num_threads=2) for _ in range(2)]
        await asyncio.gather(*(o.acompile(**arguments(listeners=[listener])) for o in optimizers))

    with dspy.context(lm=Shouting().lm()):
        asyncio.run(both())
    roots = [span for span in traces.spans if span.parent is None]
    assert [span.name for span in roots] == ["compile"] * 2
    traces_of_rollouts = Counter(span.context.trace_id for span in traces.named("rollout"))
    assert sorted(traces_of_rollouts.values()) == [6, 6]


def test_without_the_listener_there_is_no_span(traces: Traces) -> None:
    run(OpenTelemetryListener(traces.provider))
    before = len(traces.spans)
    run()
    assert len(traces.spans) == before > 0


def test_what_goes_wrong_is_on_its_span(traces: Traces, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", SECRET)

    def picky(gold: Any, pred: Any, trace: Any = None) -> bool:
        raise LookupError(f"no table for {SECRET} \ud83d")

    with pytest.raises(MetricError):
        run(OpenTelemetryListener(traces.provider), metric=picky)
    (root,) = traces.named("compile")
    assert not root.status.is_ok and root.attributes is not None
    assert root.attributes["error.type"] == "MetricError"
    failed = [span for span in traces.named("evaluation") if span.attributes and "error.type" in span.attributes]
    assert any((span.status.description or "").startswith("LookupError: no table for ***") for span in failed)
    assert all(span.end_time is not None for span in traces.spans)
    told = "".join(f"{span.status.description} {span.attributes}" for span in traces.spans)
    assert SECRET not in told and told.encode("utf-8")
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_resumed_run_has_spans_of_what_it_does_and_names_what_was_done(traces: Traces, tmp_path: Path) -> None:
    def interrupting(event: Event) -> None:
        if isinstance(event, StepFinished):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(OpenTelemetryListener(traces.provider), interrupting, run_dir=tmp_path)
    (interrupted,) = traces.named("compile")
    assert interrupted.attributes and interrupted.attributes["error.type"] == "KeyboardInterrupt"
    again = Traces()
    run(OpenTelemetryListener(again.provider), run_dir=tmp_path)
    assert [attributes(span)["step"] for span in again.named("step")] == [2]
    (root,) = again.named("compile")
    notes = [(event.name, dict(event.attributes or {}).get("tgrpo.step")) for event in root.events]
    assert ("step of an earlier call", 1) in notes


def test_warnings_and_the_budget_are_noted(traces: Traces) -> None:
    run(OpenTelemetryListener(traces.provider), budget=Budget(max_rollouts=88, max_cost=1.0))
    (root,) = traces.named("compile")
    notes = {event.name: dict(event.attributes or {}) for event in root.events}
    assert notes["budget"] == {"tgrpo.bound": "max_rollouts", "tgrpo.spent": 22, "tgrpo.most": 88}
    assert "max_cost=1 " in str(notes["warning"]["tgrpo.message"])


def test_texts_are_masked_and_cut(traces: Traces, monkeypatch: pytest.MonkeyPatch) -> None:
    def graded(gold: Any, pred: Any, trace: Any = None) -> dspy.Prediction:
        return dspy.Prediction(score=exact(gold, pred), feedback=f"sent with {SECRET} " + "x" * 10_000)

    monkeypatch.setenv("SOME_API_KEY", SECRET)
    run(OpenTelemetryListener(traces.provider), metric=graded)
    told = {attributes(span)["feedback"] for span in traces.named("rollout")}
    assert told == {("sent with *** " + "x" * 10_000)[:1999] + "…"}


@pytest.mark.parametrize("broken", ["on_start", "on_end"])
def test_a_processor_that_fails_changes_nothing(broken: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*arguments: Any, **named: Any) -> None:
        raise ConnectionError("no collector")

    expected = run().report
    provider, processor = TracerProvider(), SpanProcessor()
    setattr(processor, broken, fail)
    provider.add_span_processor(processor)
    report = run(OpenTelemetryListener(provider)).report
    assert report is not None and expected is not None and report.library == expected.library
    told = [record for record in caplog.records if record.name.startswith("tgrpo_dspy")]
    assert len(told) == 1 and "no collector" in (told[0].exc_text or "")
    provider.shutdown()


def test_without_opentelemetry_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(ImportError, match=r"pip install 'tgrpo_dspy\[otel\]'"):
        OpenTelemetryListener()


@pytest.mark.usefixtures("instrumented")  # here, since the example finds another dspy.LM in its place
def test_the_guide(traces: Traces, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    monkeypatch.setattr("opentelemetry.sdk.trace.export.ConsoleSpanExporter", lambda: exporter)
    learn = (ROOT / "README.md").read_text(encoding="utf-8").split("## What to expect")[0]
    guide = (ROOT / "docs/tracking.md").read_text(encoding="utf-8").split("## OpenTelemetry")[1]
    (tmp_path / "both.md").write_text(learn + guide, encoding="utf-8")
    run_examples(str(tmp_path / "both.md"), monkeypatch, tmp_path)
    spans = {span.context.span_id: span.name for span in exporter.get_finished_spans()}
    assert {"compile", "step", "group", "rollout", "evaluation"} == set(spans.values())
    assert {spans.get(span.parent.span_id) for span in traces.spans if span.parent is not None} >= {"rollout", "step"}
