"""Examples from a file of the user's: JSON lines, JSON, CSV or Parquet, with a column for every field."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import dspy

from programs.task import MissingDataError


class DataFileError(ValueError):
    """A file that cannot be read as rows of columns; the message says which file, where in it and why."""


class Row(NamedTuple):
    """A row, and where it stands in its file ("line 3")."""

    where: str
    values: Mapping[str, Any]


Reader: TypeAlias = Callable[[Path], Iterator[Row]]


def examples_from_file(
    path: Path, inputs: Sequence[str] = ("question",), outputs: Sequence[str] = ("answer",)
) -> list[dspy.Example]:
    """Every row of the file as an example; columns that are neither inputs nor outputs are left out.

    Args:
        path: a ``.jsonl`` file with an object on every line, a ``.json`` file with a list of objects, a ``.csv`` file
            with a head line, or a ``.parquet`` file; text in UTF-8.
        inputs: the columns that the program is given.
        outputs: the columns that the metric compares with.

    Raises:
        MissingDataError: when there is no such file.
        DataFileError: when it is of another kind, is empty, cannot be read, or a row lacks one of the columns.
        ValueError: when no input is named, or a column twice.
    """
    wanted = [*inputs, *outputs]
    if not inputs or len(set(wanted)) < len(wanted):
        raise ValueError(f"name at least one input, and no column twice: inputs {inputs}, outputs {outputs}")
    examples = []
    for where, values in read_rows(path):
        missing = [column for column in wanted if values.get(column) is None]
        if missing:
            there = ", ".join(str(column) for column, value in values.items() if value is not None) or "nothing"
            raise DataFileError(f"{path}, {where}: there is no {', '.join(missing)}; there is {there}")
        examples.append(dspy.Example(**{column: values[column] for column in wanted}).with_inputs(*inputs))
    if not examples:
        raise DataFileError(f"{path} has no examples")
    return examples


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a file, in order.

    Raises:
        MissingDataError: when there is no such file.
        DataFileError: when it is of another kind or cannot be read.
    """
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise DataFileError(f"{path}: the name of the file must end in one of {', '.join(_READERS)}")
    if not path.is_file():
        raise MissingDataError(f"{path} is not there" if not path.exists() else f"{path} is no file")
    try:
        yield from read(path)
    except UnicodeDecodeError as error:
        raise DataFileError(f"{path} is not text in UTF-8: {error}") from error


def _read_jsonl(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _row(path, f"line {number}", _json(path, f"line {number}", line))


def _read_json(path: Path) -> Iterator[Row]:
    content = _json(path, "as a whole", path.read_text(encoding="utf-8-sig"))
    if not isinstance(content, list):
        raise DataFileError(f"{path} must hold a list of objects, holds {_kind(content)}")
    for number, item in enumerate(content, start=1):
        yield _row(path, f"item {number}", item)


def _read_csv(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            for values in reader:
                if None in values:
                    raise DataFileError(f"{path}, line {reader.line_num}: more values than columns in the head line")
                yield Row(f"line {reader.line_num}", values)
        except csv.Error as error:
            raise DataFileError(f"{path}, line {reader.reader.line_num}: {error}") from error


def _read_parquet(path: Path) -> Iterator[Row]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise DataFileError(f"{path}: Parquet files are read by pyarrow, which is not installed") from error
    try:
        with parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches():
                for values in batch.to_pylist():
                    number += 1
                    yield Row(f"row {number}", values)
    except pyarrow.ArrowException as error:
        raise DataFileError(f"{path} cannot be read as Parquet: {error}") from error


_READERS: Mapping[str, Reader] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}


def _json(path: Path, where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataFileError(f"{path}, {where}, is not JSON: {error}") from error


def _row(path: Path, where: str, content: Any) -> Row:
    if not isinstance(content, dict):
        raise DataFileError(f"{path}, {where}: must be an object, is {_kind(content)}")
    return Row(where, content)


def _kind(content: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return kinds.get(type(content), "a number")
