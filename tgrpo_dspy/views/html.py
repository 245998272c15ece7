"""A run as one HTML file that needs nothing beside it: no network, no other file."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from tgrpo_dspy.errors import RunDirError
from tgrpo_dspy.records import CompileReport
from tgrpo_dspy.views.kept import add_kept
from tgrpo_dspy.views.page_data import page_data
from tgrpo_dspy.views.recorded import Recorded
from tgrpo_dspy.views.report import report_from_json

_HALF_CHARACTERS = re.compile("[\ud800-\udfff]")
_PART = re.compile(r"\{\{(\w+)\}\}")


def report_to_html(
    report: CompileReport,
    *,
    recorded: Recorded | None = None,
    settings: Mapping[str, Any] | None = None,
    title: str = "Run report",
) -> str:
    """The page of a run: its scores, its steps, where every experience comes from, and the groups behind them.

    Args:
        report: what ``compile`` left in ``optimizer.report``.
        recorded: a listener that was told of the run; without it the groups are shown in brief, without turns.
        settings: the content of a run's ``settings.json``, shown as it is, with the student's instructions in it.
        title: of the page.

    Example:
        >>> from tgrpo_dspy.library.library import ExperienceLibrary
        >>> report = CompileReport(
        ...     steps=(), student=None, library=ExperienceLibrary(), best_step=0, usage={}, seconds=1.0
        ... )
        >>> report_to_html(report).splitlines()[0]
        '<!DOCTYPE html>'
    """
    data = page_data(report, recorded or Recorded(), settings or {}) | {"title": title}
    script = _resource("page.js")
    parts = {
        "style": _resource("page.css"),
        "script": script,
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "data": _embedded(data),
    }
    return _PART.sub(lambda part: parts[part[1]], _resource("page.html"))


def html_of_run(run_dir: str | Path) -> str:
    """The page of a run from its folder, without the process that made the run.

    Raises:
        RunDirError: when the folder has no report, because the run has not ended, or something that cannot be read.
    """
    folder = Path(run_dir)
    report, recorded, settings = recorded_run(folder)
    return report_to_html(report, recorded=recorded, settings=settings, title=folder.absolute().name)


def recorded_run(folder: Path) -> tuple[CompileReport, Recorded, dict[str, Any]]:
    """The report of a run, its rollouts in full, and its ``settings.json``, from its folder.

    Raises:
        RunDirError: as ``html_of_run``.
    """
    try:
        report = report_from_json((folder / "report.json").read_text(encoding="utf-8"))
        recorded = Recorded.read(folder / "events.jsonl")
    except FileNotFoundError as error:
        raise RunDirError(f"{folder / 'report.json'} is not there; it is written when a run ends") from error
    except OSError as error:
        raise RunDirError(f"{folder} cannot be read: {error}") from error
    except ValueError as error:
        raise RunDirError(f"{folder / 'report.json'} cannot be read: {error}") from error
    settings = _settings(folder)
    chosen = settings.get("settings")
    seed = chosen.get("seed") if isinstance(chosen, dict) else None
    if isinstance(seed, int):
        add_kept(recorded, report, folder / "store", seed=seed)
    return report, recorded, settings


def _settings(folder: Path) -> dict[str, Any]:
    file = folder / "settings.json"
    if not file.exists():
        return {}
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunDirError(f"{file} cannot be read: {error}") from error
    return settings if isinstance(settings, dict) else {}


def _embedded(data: Mapping[str, Any]) -> str:
    """JSON that no HTML parser takes for markup, and that can be written as UTF-8."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return _HALF_CHARACTERS.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


def _resource(name: str) -> str:
    return files("tgrpo_dspy.views").joinpath(name).read_text(encoding="utf-8")
