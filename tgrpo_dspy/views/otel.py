"""A run as OpenTelemetry spans, around those that an instrumentation of DSPy makes of every LM call."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import dspy

from tgrpo_dspy.evaluation.scores import mean_score
from tgrpo_dspy.records import CompileReport, Evaluation, Group, StepRecord
from tgrpo_dspy.runs.events import (
    BudgetSpent,
    Evaluated,
    Event,
    ReflectionFinished,
    RunFinished,
    RunStopped,
    StepFinished,
    StepStarted,
    Warned,
)
from tgrpo_dspy.runs.usage import UsageLedger
from tgrpo_dspy.sampling.examples import Item
from tgrpo_dspy.sampling.jobs import Job, Outcome, Runner
from tgrpo_dspy.sampling.rollouts import Sampler, Variant
from tgrpo_dspy.views.tracking import Call, Follower, Tracker, needs

logger = logging.getLogger(__name__)

_TEXT_CHARS = 2000


class OpenTelemetryListener(Tracker):
    """Makes spans of every ``compile`` it is given to as a listener.

    A span ``compile`` holds a ``step`` for every step, that a ``group`` for every example, and that a ``rollout`` for
    every run of the program; a run on the validation set is an ``evaluation``. What is traced inside of them, such as
    LM calls by ``openinference-instrumentation-dspy``, becomes part of them, in worker threads too.

    Args:
        tracer_provider: makes the spans; None: the global one.

    Raises:
        ImportError: when OpenTelemetry is not installed.
    """

    def __init__(self, tracer_provider: Any = None) -> None:
        self._tracer = needs("opentelemetry.trace", "otel").get_tracer("tgrpo_dspy", tracer_provider=tracer_provider)

    def follow(self, call: Call) -> Follower:
        """Open the span of the call."""
        return _Run(_Spans(self._tracer, call), call)


class _Spans:
    """Opens spans whose texts are clean. The first error of a tracer is logged and ends the tracing, never the run."""

    def __init__(self, tracer: Any, call: Call) -> None:
        self._trace = needs("opentelemetry.trace", "otel")
        self._context = needs("opentelemetry.context", "otel")
        self._tracer, self._call = tracer, call
        self._broken = False

    def start(self, name: str, **attributes: object) -> Any:
        """A span below the current one."""
        with self._harmless():
            known = {"openinference.span.kind": "CHAIN", **self._known(attributes)}
            return self._tracer.start_span(name, attributes=known)
        return self._trace.INVALID_SPAN

    def end(self, span: Any, within: Any = None) -> None:
        """End a span; ``within`` is what ``enter`` returned in the same context."""
        if within is not None:
            self._context.detach(within)
        with self._harmless():
            span.end()

    def enter(self, span: Any) -> Any:
        """Make a span the current one."""
        return self._context.attach(self._trace.set_span_in_context(span))

    def leave(self, within: Any) -> None:
        """Make the span before the current one again; ``within`` is what ``enter`` returned in the same context."""
        self._context.detach(within)

    def tell(self, span: Any, **attributes: object) -> None:
        """Set the attributes that are known."""
        with self._harmless():
            span.set_attributes(self._known(attributes))

    def note(self, name: str, **attributes: object) -> None:
        """Put an event on the current span."""
        with self._harmless():
            self._trace.get_current_span().add_event(name, self._known(attributes))

    def fail(self, span: Any, kind: str, message: object) -> None:
        """Say that what the span is about went wrong."""
        with self._harmless():
            span.set_attribute("error.type", kind)
            text = self._call.text(message, _TEXT_CHARS)
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, text))

    @contextmanager
    def within(self, name: str, **attributes: object) -> Iterator[Any]:
        """A span that is the current one for the length of the block."""
        span = self.start(name, **attributes)
        token = self.enter(span)
        try:
            yield span
        except BaseException as error:
            self.fail(span, type(error).__name__, error)
            raise
        finally:
            self.end(span, token)

    def _known(self, attributes: Mapping[str, object]) -> dict[str, Any]:
        known = {f"tgrpo.{name}": value for name, value in attributes.items() if value not in (None, "")}
        return {n: self._call.text(v, _TEXT_CHARS) if isinstance(v, str) else v for n, v in known.items()}

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        try:
            yield
        except Exception:  # whatever a processor of spans raises
            if not self._broken:
                logger.exception("the run is traced no more")
            self._broken = True


_following: ContextVar[_Spans | None] = ContextVar("_following", default=None)


def sampler_type() -> type[Sampler]:
    """The sampler for a run: one that makes spans, where a listener in this context does."""
    return Sampler if _following.get() is None else _SpanningSampler


class _SpanningSampler(Sampler):
    """Puts a span around every group, and around every run of the program with its metric."""

    def __init__(self, *, run: Runner, **parts: Any) -> None:
        spans = _following.get()
        assert spans is not None
        self._spans = spans

        async def within_span(job: Job, ledger: UsageLedger) -> Outcome:
            with spans.within(job.draw.role, example=job.item.key, number=job.draw.number) as span:
                outcome = await run(job, ledger)
                spans.tell(span, reward=outcome.rollout.reward, feedback=outcome.rollout.feedback)
                if failure := outcome.rollout.failure:
                    spans.fail(span, failure.kind, f"{failure.error}: {failure.message}")
                return outcome

        super().__init__(run=within_span, **parts)

    async def group(self, variants: Sequence[Variant], item: Item, *, step: int, lane: int) -> Group:
        """A group, with its rewards on its span."""
        with self._spans.within("group", step=step, example=item.key) as span:
            group = await super().group(variants, item, step=step, lane=lane)
            self._spans.tell(span, rewards=group.rewards, spread=group.spread)
            return group


class _Run(Follower):
    """The span of one compile, and those of its steps; two may be open, when one waits for its score."""

    def __init__(self, spans: _Spans, call: Call) -> None:
        self._spans = spans
        self._span = spans.start("compile", student=type(call.student).__name__)
        self._within = spans.enter(self._span)
        self._sampling = _following.set(spans)
        self._steps: dict[int, Any] = {}
        self._current: int | None = None
        self._within_step: Any = None

    def __call__(self, event: Event) -> None:
        """Open or close the span of a step, or put what the event tells on the span it belongs to."""
        if isinstance(event, StepStarted):
            self._begin(event)
        elif isinstance(event, ReflectionFinished):
            self._spans.note("reflection", edits=event.edits, lost=event.lost)
        elif isinstance(event, Evaluated):
            self._spans.note("evaluated", step=event.step, **_score(event.evaluation))
        elif isinstance(event, StepFinished):
            self._finish(event.record)
        elif isinstance(event, RunStopped):
            self._spans.note("stopped", reason=event.reason)
        elif isinstance(event, BudgetSpent):
            self._spans.note("budget", bound=event.bound, spent=event.spent, most=event.most)
        elif isinstance(event, Warned):
            self._spans.note("warning", message=event.message)
        elif isinstance(event, RunFinished):
            self._spans.tell(self._span, **_result(event.report))

    def end(self, compiled: dspy.Module | None, error: BaseException | None) -> None:
        """Close what is open."""
        for step in self._steps.values():
            self._spans.end(step)
        if error is not None:
            self._spans.fail(self._span, type(error).__name__, error)
        _following.reset(self._sampling)
        self._spans.end(self._span, self._within)

    def _begin(self, event: StepStarted) -> None:
        self._leave()
        span = self._spans.start("step", step=event.step, examples=event.examples, group_size=event.group_size)
        self._steps[event.step], self._current = span, event.step
        self._within_step = self._spans.enter(span)

    def _finish(self, record: StepRecord) -> None:
        if record.step not in self._steps:
            self._spans.note("step of an earlier call", step=record.step)
            return
        if record.step == self._current:
            self._leave()
        span = self._steps.pop(record.step)
        self._spans.tell(span, **_changes(record))
        self._spans.end(span)

    def _leave(self) -> None:
        """Make the span of the compile the current one again."""
        if self._current is not None:
            self._spans.leave(self._within_step)
        self._current = None


def _changes(record: StepRecord) -> dict[str, object]:
    return {
        "epoch": record.epoch,
        "mean_reward": record.mean_reward if any(record.rewards) else None,
        "informative_groups": record.informative,
        "edits_applied": len(record.applied),
        "edits_refused": len(record.refused),
        "library_size": len(record.after),
        "accepted": record.accepted,
        "verdict": record.verdict,
        **(_score(record.evaluation) if record.evaluation is not None else {}),
    }


def _score(evaluation: Evaluation) -> dict[str, object]:
    score = mean_score(evaluation.repeats)
    return {"validation_score": score.mean, "validation_score_standard_error": score.standard_error}


def _result(report: CompileReport) -> dict[str, object]:
    return {
        "best_step": report.best_step,
        "library_size": len(report.library),
        "stopped_by": report.stopped_by,
    }
