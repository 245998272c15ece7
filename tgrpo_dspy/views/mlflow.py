"""A run as an MLflow run: its settings as parameters, its steps as metrics, what it learned as artefacts."""

from __future__ import annotations

import logging
import math
import sys
import tempfile
import time
from asyncio import CancelledError
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import dspy

from tgrpo_dspy.evaluation.scores import mean_score
from tgrpo_dspy.library.codec import to_json
from tgrpo_dspy.records import CompileReport, Evaluation, Measured, Role, StepRecord, Usage
from tgrpo_dspy.runs.events import Evaluated, Event, Listener, StepFinished
from tgrpo_dspy.settings import Budget
from tgrpo_dspy.views.report import report_to_markdown
from tgrpo_dspy.views.tracking import Call, Follower, Tracker, needs

logger = logging.getLogger(__name__)

_FLAVOR = "dspy"
_VALUE_CHARS = 6000  # what MLflow takes as the value of a parameter
_TAG = "tgrpo_dspy.run"


class MlflowListener(Tracker):
    """Logs every ``compile`` it is given to as a listener into the active MLflow run, or into one of its own.

    Parameters are the settings of the optimizer and the budget, metrics are logged for every step under its number (0:
    the student), artefacts are the library, the report and the compiled program. Without an active run one is started,
    and ended with the compile: as ``FAILED`` when that raises, as ``KILLED`` when it is interrupted. An active run that
    holds another compile already gets a child run.

    ``mlflow.dspy.autolog(log_compiles=True)`` makes such a listener by itself.

    Raises:
        ImportError: when MLflow is not installed.
    """

    def __init__(self) -> None:
        self._mlflow = needs("mlflow", "mlflow")

    def follow(self, call: Call) -> Follower:
        """Take the active run of this thread, or start one, and log the settings."""
        return _Run(self._mlflow, call)


def autologging(listeners: Iterable[Listener]) -> Sequence[Listener]:
    """A listener of its own where ``mlflow.dspy.autolog`` logs compiles and none of the listeners does so already."""
    autolog = sys.modules.get("mlflow.utils.autologging_utils")
    if autolog is None or any(isinstance(listener, MlflowListener) for listener in listeners):
        return ()
    on = autolog.get_autologging_config(_FLAVOR, "log_compiles") and not autolog.autologging_is_disabled(_FLAVOR)
    return (MlflowListener(),) if on else ()


class _Run(Follower):
    """One compile in one MLflow run.

    What is told by events comes from the thread of the run's event loop, which has no active run; so the run is named
    in every call.
    """

    def __init__(self, mlflow: Any, call: Call) -> None:
        self._mlflow, self._call = mlflow, call
        self._client = mlflow.MlflowClient()
        folder = call.arguments.get("run_dir")
        self._folder = None if folder is None else Path(folder).absolute()
        self._steps: set[int] = set()
        self._failed = False
        self._known: dict[str, set[tuple[int, float]]] = {}
        self._run, self._is_own = self._open(str(self._folder or uuid4()))
        self._id: str = self._run.info.run_id
        try:
            self._log_params(_settings(call))
        except BaseException:
            self._close("FAILED")
            raise

    def __call__(self, event: Event) -> None:
        """Log what the event tells."""
        self._failed = True
        if isinstance(event, Evaluated) and event.step == 0:
            self._student(event.evaluation)
        elif isinstance(event, StepFinished):
            self._step(event.record)
        self._failed = False

    def end(self, compiled: dspy.Module | None, error: BaseException | None) -> None:
        """Log what came out, and end a run that was started for this compile."""
        interrupted = isinstance(error, KeyboardInterrupt | CancelledError)
        status = "FINISHED" if error is None else "KILLED" if interrupted else "FAILED"
        report = self._call.optimizer.report
        if self._failed:  # which was said then, so that a store which cannot end the run either says nothing new
            with suppress(Exception):
                self._close(status)
            return
        try:
            if compiled is not None and report is not None:
                self._finish(report, compiled)
        finally:
            self._close(status)

    def __repr__(self) -> str:
        return f"MlflowListener() with run {self._id}"

    def _open(self, identity: str) -> tuple[Any, bool]:
        """The active run unless it holds another compile, else a new one; and whether it is new."""
        active = self._mlflow.active_run()
        run = active and self._client.get_run(active.info.run_id)
        if run is not None and run.data.tags.get(_TAG, identity) == identity:
            self._client.set_tag(run.info.run_id, _TAG, identity)
            return run, False
        return self._mlflow.start_run(nested=run is not None, tags={_TAG: identity}), True

    def _close(self, status: str) -> None:
        if not self._is_own:
            return
        active = self._mlflow.active_run()
        if active is not None and active.info.run_id == self._id:
            self._mlflow.end_run(status)
        else:
            self._client.set_terminated(self._id, status)

    def _student(self, evaluation: Evaluation) -> None:
        """The student's score. After it, step 0 may also tell that of the library to start from."""
        if 0 not in self._steps:
            self._log(0, _score(_measured(evaluation)))

    def _step(self, record: StepRecord) -> None:
        if record.step in self._steps:
            return
        self._log(
            record.step,
            {
                "mean_reward": record.mean_reward if any(record.rewards) else None,
                **_score(_measured(record.evaluation)),
                "library_size": len(record.after),
                "informative_groups": record.informative,
                "lost_groups": record.lost,
                "edits_applied": len(record.applied),
                "edits_refused": len(record.refused),
                "accepted": record.accepted,
                **_spent(record.usage),
                "seconds": record.seconds,
            },
        )

    def _finish(self, report: CompileReport, compiled: dspy.Module) -> None:
        """Totals and artefacts, and first the steps of a run that had ended before, which tells no events."""
        if report.student is not None:
            self._student(report.student)
        for record in report.steps:
            self._step(record)
        best = _score(_best_score(report), "best_validation_score")
        totals = {f"total_{name}": value for name, value in _spent(report.usage).items()}
        self._log(len(report.steps), {"best_step": report.best_step, **best, **totals})
        if report.stopped_by is not None:
            self._client.set_tag(self._id, "tgrpo_dspy.stopped_by", self._call.text(report.stopped_by, _VALUE_CHARS))
        artefacts = {
            "library.json": to_json(report.library),
            "library.md": report.library.to_markdown(),
            "report.md": report_to_markdown(report),
            "report.html": self._html(report),
            "best_model.json": _saved(compiled),  # the name that autolog gives it
        }
        for name, text in artefacts.items():
            self._client.log_text(self._id, self._call.text(text), name)

    def _html(self, report: CompileReport) -> str:
        """The page of the run: with every turn of its rollouts when it has a folder, else in brief."""
        from tgrpo_dspy.views.html import report_to_html  # needed once a run, not in every process

        written = self._folder and self._folder / "report.html"
        return written.read_text(encoding="utf-8") if written and written.exists() else report_to_html(report)

    def _log(self, step: int, values: Mapping[str, float | None]) -> None:
        """Log metrics of a step that are numbers, except for those that a resumed run holds already."""
        self._steps.add(step)
        now = int(time.time() * 1000)
        metrics = [
            self._mlflow.entities.Metric(name, float(value), now, step)
            for name, value in values.items()
            if value is not None and math.isfinite(value) and (step, value) not in self._logged(name)
        ]
        self._client.log_batch(self._id, metrics=metrics)

    def _logged(self, name: str) -> set[tuple[int, float]]:
        """Steps and values of a metric that the run held when this compile began."""
        if name not in self._known:
            held = self._client.get_metric_history(self._id, name) if name in self._run.data.metrics else ()
            self._known[name] = {(metric.step, metric.value) for metric in held}
        return self._known[name]

    def _log_params(self, values: Mapping[str, object]) -> None:
        """Log parameters; MLflow never changes one that is there."""
        texts = {name: self._call.text(value, _VALUE_CHARS) for name, value in values.items()}
        held = self._run.data.params
        other = sorted(name for name, text in texts.items() if held.get(name, text) != text)
        if other:
            logger.warning("MLflow run %s keeps the values it has of %s", self._id, ", ".join(other))
        params = [self._mlflow.entities.Param(name, text) for name, text in texts.items() if name not in held]
        self._client.log_batch(self._id, params=params)


def _settings(call: Call) -> dict[str, object]:
    """Everything that was chosen for the call, by name; what belongs to a settings object after its name and a dot."""
    optimizer, arguments = call.optimizer, call.arguments
    chosen = {
        **optimizer.get_params(),
        "metric": optimizer.metric,
        "reflection_lm": optimizer.reflection_lm,
        "student": type(call.student).__name__,
        "lm": ", ".join(dict.fromkeys(str(lm.model) for lm in call.lms)),
        "trainset_size": _size(arguments.get("trainset")),
        "valset_size": _size(arguments.get("valset")),
        "budget": arguments.get("budget") or Budget(),
    }
    return dict(_flat(chosen))


def _flat(chosen: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in chosen.items():
        if is_dataclass(value) and not isinstance(value, type):
            yield from _flat({f.name: getattr(value, f.name) for f in fields(value)}, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _shown(value)


def _shown(value: Any) -> object:
    """A plain value as it is, anything else by its name."""
    if isinstance(value, str | int | float | tuple | None):
        return value
    return value.model if isinstance(value, dspy.BaseLM) else getattr(value, "__qualname__", type(value).__name__)


def _size(examples: object) -> int:
    return len(examples) if isinstance(examples, Sized) else 0


def _measured(evaluation: Evaluation | None) -> Measured | None:
    return None if evaluation is None else mean_score(evaluation.repeats)


def _score(score: Measured | None, name: str = "validation_score") -> dict[str, float | None]:
    if score is None or not score.n:
        return {}
    return {name: score.mean, f"{name}_standard_error": score.standard_error}


def _best_score(report: CompileReport) -> Measured | None:
    """The validation score of what was chosen; pruning comes after it."""
    for choice in report.choices:
        if choice.chosen:
            return choice.score
    scores = {record.step: record.evaluation for record in report.steps} | {0: report.student}
    return _measured(scores.get(report.best_step))


def _spent(usage: Mapping[Role, Usage]) -> dict[str, float | None]:
    spent = sum(usage.values(), start=Usage())
    return {
        "lm_calls": spent.calls,
        "cached_lm_calls": spent.cached,
        "prompt_tokens": spent.prompt_tokens,
        "completion_tokens": spent.completion_tokens,
        "cost": None if spent.unpriced else spent.cost,
    }


def _saved(program: dspy.Module) -> str:
    """The program as the JSON that its ``save`` writes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program.json"
        program.save(file)
        return file.read_text(encoding="utf-8")
