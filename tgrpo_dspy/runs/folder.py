"""The folder of a run: its settings, its store, and one process at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from tgrpo_dspy.errors import ConfigurationError, RunDirError
from tgrpo_dspy.library.files import write_atomically
from tgrpo_dspy.runs.differences import differences
from tgrpo_dspy.runs.store import DiskStore, NoStore, Store

_SETTINGS = "settings.json"
_STORE = "store"
_LOCK = ".lock"


@contextmanager
def open_run(path: Path | None, description: Mapping[str, Any]) -> Iterator[Store]:
    """The store of a run, for the length of the block; without a path one that keeps nothing.

    Args:
        path: the run's folder; made when it is not there.
        description: what the run is about. A folder belongs to one description for good.

    Raises:
        ConfigurationError: when the folder belongs to another description; names every difference.
        RunDirError: when another process works in the folder, or it cannot be read or written.
    """
    if path is None:
        yield NoStore()
        return
    with _locked(path):
        _claim(path / _SETTINGS, description)
        store = DiskStore(path / _STORE)
        try:
            yield store
        finally:
            store.close()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = FileLock(path / _LOCK)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout as error:
        raise RunDirError(
            f"run_dir={str(path)!r} is in use by another process; wait for it or use another run_dir"
        ) from error
    except OSError as error:
        raise RunDirError(f"run_dir={str(path)!r} cannot be written: {error}") from error
    try:
        yield
    finally:
        lock.release()


def _claim(file: Path, description: Mapping[str, Any]) -> None:
    """Write the description into a new folder, or compare it with the one that is there."""
    text = json.dumps(description, indent=1, sort_keys=True)
    try:
        if not file.exists():
            write_atomically(file, text)
            return
        before = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunDirError(f"{file} cannot be used: {error}") from error
    changed = differences(before, json.loads(text))
    if changed:
        raise ConfigurationError(
            f"run_dir={str(file.parent)!r} holds another run. Use another run_dir, or undo what differs:\n  "
            + "\n  ".join(changed)
        )
