"""What a run has paid for, by content, so that nothing is paid for twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import diskcache

from tgrpo_dspy.errors import RunDirError

_IN_THE_DATABASE = 2**62  # bytes: no value is ever put into a file of its own, which could be torn


class Store(Protocol):
    """Texts by key.

    Attributes:
        keeps: whether anything is kept at all, so that a text is worth making.
    """

    keeps: bool

    def get(self, key: str) -> str | None:
        """The text kept under a key."""

    def put(self, key: str, text: str) -> None:
        """Keep a text; what was there is replaced."""

    def items(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Every key that begins with ``prefix``, with its text."""


class NoStore:
    """Keeps nothing: a run without a folder."""

    keeps = False

    def get(self, key: str) -> str | None:
        """Nothing."""
        return None

    def put(self, key: str, text: str) -> None:
        """Forget it."""

    def items(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Nothing."""
        return iter(())


class DiskStore:
    """Keeps texts in a diskcache folder; a value is there whole or not at all, also when the process is killed.

    Raises:
        RunDirError: when the folder cannot be read or written, here and in every call.
    """

    keeps = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with self._speaking():
            self._cache = _Cache(
                str(folder),
                disk=_TextDisk,
                disk_min_file_size=_IN_THE_DATABASE,
                size_limit=_IN_THE_DATABASE,
                eviction_policy="none",
                cull_limit=0,
            )

    def get(self, key: str) -> str | None:
        """The text kept under a key."""
        with self._speaking():
            text: str | None = self._cache.get(key)
        return text

    def put(self, key: str, text: str) -> None:
        """Keep a text; what was there is replaced."""
        with self._speaking():
            self._cache.set(key, text)

    def items(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Every key that begins with ``prefix``, with its text."""
        with self._speaking():
            for key in self._cache.iterkeys():
                if key.startswith(prefix):
                    yield key, self._cache[key]

    def close(self) -> None:
        """Give the files free."""
        self._cache.close()

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error, diskcache.Timeout) as error:
            raise RunDirError(
                f"{self._folder} cannot be used: {type(error).__name__}: {error}. What it held before is still there; "
                "make room or mend the permissions and call compile again with the same run_dir, or use another one."
            ) from error


class _Cache(diskcache.Cache):
    """Leaves no connection open when the database turns out to be none."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        try:
            super().__init__(*args, **settings)
        except BaseException:
            self.close()
            raise


class _TextDisk(diskcache.Disk):
    """Text only: a pickle that somebody put into the folder is never loaded."""

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        if mode != diskcache.core.MODE_RAW or filename:
            raise sqlite3.DataError("the store holds something that is not text")
        return value
