"""Where a library can be found: a saved program, a file of its own, the folder of a run."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tgrpo_dspy.errors import LibraryError, RunDirError
from tgrpo_dspy.library.codec import FORMAT, from_json
from tgrpo_dspy.library.files import load_library
from tgrpo_dspy.library.library import ExperienceLibrary
from tgrpo_dspy.library.markdown import from_markdown
from tgrpo_dspy.library.saved import instructions_in, library_in_state

MARKDOWN = (".md", ".markdown")
SOURCE = "a saved program (JSON), a library (JSON or Markdown) or the run_dir of a run"
_PICKLES = (".pkl", ".pickle")
_PICKLE_START = b"\x80"


@dataclass(frozen=True, kw_only=True)
class Source:
    """A library and where it was found.

    Args:
        kind: ``program``, ``library``, ``markdown`` or ``run``.
        state: of a program, the whole saved state.
        step: of a run, the step whose library it is; None: the one that was returned.
    """

    path: Path
    kind: str
    library: ExperienceLibrary
    state: dict[str, Any] | None = None
    step: int | None = None

    @property
    def has_provenance(self) -> bool:
        """Whether counts and evidence are known, and not only ids and texts."""
        return self.kind in ("library", "run")


def read_source(path: Path) -> Source:
    """The library in a file or folder, whatever kind it is of. Nothing is executed: a pickle is refused.

    Raises:
        LibraryError: for a file that holds no library; names it and what is wrong.
        RunDirError: for a folder that is not one of a run.
        OSError: when it cannot be read.
    """
    if path.is_dir():
        return _run(path)
    content = path.read_bytes()
    if path.suffix.lower() in _PICKLES or content.startswith(_PICKLE_START):
        raise LibraryError(f"{path} is a pickle, which runs code when it is loaded; save the program as .json instead")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LibraryError(f"{path} is not a text file: {error}") from error
    return _markdown(path, text) if path.suffix.lower() in MARKDOWN else _json(path, text)


def _run(folder: Path) -> Source:
    from tgrpo_dspy.views.report import report_from_json

    report_file = folder / "report.json"
    if (folder / "program.pkl").exists():
        raise LibraryError(
            f"{folder} holds a pickled program, which runs code when it is loaded; save it as .json instead"
        )
    if report_file.exists():
        try:
            report = report_from_json(report_file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RunDirError(f"{report_file} cannot be read: {error}") from error
        measured = {i: effect.mean for i, effect in report.effects.items()}
        members = tuple(replace(e, effect=measured.get(e.id, e.effect)) for e in report.library)
        return Source(path=folder, kind="run", library=replace(report.library, experiences=members))
    steps = sorted((folder / "libraries").glob("step-*.json"))
    if not steps:
        raise RunDirError(
            f"{folder} is not the run_dir of a run that has finished a step: no report.json, no libraries/"
        )
    library = load_library(steps[-1])
    return Source(path=folder, kind="run", library=library, step=int(steps[-1].stem.removeprefix("step-")))


def _markdown(path: Path, text: str) -> Source:
    try:
        return Source(path=path, kind="markdown", library=from_markdown(text))
    except LibraryError as error:
        raise LibraryError(f"{path}: {error}") from error


def _json(path: Path, text: str) -> Source:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LibraryError(f"{path} is not whole JSON ({error}); was it cut off?") from error
    if isinstance(data, dict) and "format" in data:
        return Source(path=path, kind="library", library=from_json(text, str(path)))
    if not isinstance(data, dict) or not instructions_in(data):
        raise LibraryError(
            f"{path} is JSON, but neither a saved program (no predictor with signature.instructions) nor a library "
            f"(no format={FORMAT!r})"
        )
    try:
        return Source(path=path, kind="program", library=library_in_state(data), state=data)
    except LibraryError as error:
        raise LibraryError(f"{path}: {error}") from error
