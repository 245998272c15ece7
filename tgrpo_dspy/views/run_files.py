"""What a run leaves in its folder to read: its events, the library of every step, the report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

from tgrpo_dspy.library.edits import Edit
from tgrpo_dspy.library.files import save_library, write_atomically
from tgrpo_dspy.records import Evaluation, Group, StepRecord
from tgrpo_dspy.runs.events import Event, RunFinished, StepFinished
from tgrpo_dspy.views.report import report_to_json, report_to_markdown


class RunFiles:
    """A listener that writes ``events.jsonl``, ``libraries/step-001.json`` … and the report as JSON, Markdown and HTML.

    The events are those of the last call of ``compile``: one that resumes writes the file anew, the events of the steps
    that were finished before among them in brief. They are flushed one by one; a line may be torn when the process is
    killed, and nothing ever depends on it.

    Args:
        folder: the run's folder; it must be there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._events: TextIO = (folder / "events.jsonl").open(
            "w", encoding="utf-8", errors="backslashreplace", newline="\n"
        )
        (folder / "libraries").mkdir(exist_ok=True)

    def __call__(self, event: Event) -> None:
        """Write an event."""
        entry = {"time": datetime.now(timezone.utc).isoformat(), "event": type(event).__name__, **_data(event)}
        self._events.write(json.dumps(entry, ensure_ascii=False) + "\n")
        self._events.flush()
        if isinstance(event, StepFinished):
            save_library(event.record.after, self._folder / "libraries" / f"step-{event.record.step:03d}.json")
        elif isinstance(event, RunFinished):
            from tgrpo_dspy.views.html import html_of_run  # needed once a run, not in every process

            write_atomically(self._folder / "report.json", report_to_json(event.report))
            write_atomically(self._folder / "report.md", report_to_markdown(event.report))
            write_atomically(self._folder / "report.html", html_of_run(self._folder))

    def close(self) -> None:
        """Close the file of events."""
        self._events.close()


def _data(event: Event) -> dict[str, Any]:
    """An event's fields; what another event or file tells in full is told in brief."""
    if isinstance(event, RunFinished):
        return {"best_step": event.report.best_step, "stopped_by": event.report.stopped_by}
    return {name: _brief(getattr(event, name)) for name in event.__dataclass_fields__}


def _brief(value: object) -> Any:
    if isinstance(value, Group):
        return {"example": value.key, "inputs": value.inputs, "labels": value.labels, "rewards": value.rewards}
    if isinstance(value, StepRecord):
        return _step(value)
    if isinstance(value, Evaluation):
        return {"mean": value.mean, "scores": value.scores}
    if isinstance(value, Edit):
        return {name: getattr(value, name) for name in ("operation", "ids", "text", "target")}
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _step(record: StepRecord) -> Mapping[str, Any]:
    return {
        "step": record.step,
        "mean_reward": record.mean_reward,
        "groups": len(record.groups),
        "informative": record.informative,
        "proposed": len(record.proposed),
        "applied": len(record.applied),
        "refused": len(record.refused),
        "experiences": len(record.after),
        "score": record.evaluation.mean if record.evaluation else None,
    }
