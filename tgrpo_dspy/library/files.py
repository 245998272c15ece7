"""Libraries on disk: JSON, written whole or not at all."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from tgrpo_dspy.errors import LibraryError
from tgrpo_dspy.library.codec import from_json, to_json
from tgrpo_dspy.library.library import ExperienceLibrary


def save_library(library: ExperienceLibrary, path: str | Path) -> None:
    """Write a library as JSON. A file that is there is replaced at once when the new one is whole.

    Raises:
        OSError: when the folder cannot be written; the old file is then as it was.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_library(ExperienceLibrary(), f"{folder}/library.json")
        ...     load_library(f"{folder}/library.json")
        ExperienceLibrary(experiences=(), next_number=1)
    """
    write_atomically(Path(path), to_json(library))


def load_library(path: str | Path) -> ExperienceLibrary:
    """The library in a JSON file.

    Raises:
        LibraryError: when the file is not a whole library of this schema version.
        OSError: when it cannot be read.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise LibraryError(f"{path} is not a text file: {error}") from error
    return from_json(text, source=str(path))


def write_atomically(path: Path, text: str) -> None:
    """Write a text file through a temporary one beside it."""
    # Not by tempfile, whose files nobody but their owner can read: a program is written to be deployed.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
