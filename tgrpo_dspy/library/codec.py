"""A library as JSON, for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from tgrpo_dspy.errors import LibraryError
from tgrpo_dspy.library.experience import Evidence, Experience
from tgrpo_dspy.library.library import ExperienceLibrary

FORMAT = "tgrpo_dspy.library"
VERSION = 1

_TYPES: Mapping[str, tuple[type, ...]] = {
    "id": (str,),
    "text": (str,),
    "target": (str, type(None)),
    "created": (int,),
    "changed": (int,),
    "evidence": (list,),
    "proposed": (int,),
    "contradicted": (int,),
    "effect": (int, float, type(None)),
}


def to_json(library: ExperienceLibrary) -> str:
    """The library with everything it knows, as JSON with a schema version.

    Example:
        >>> library = ExperienceLibrary((Experience(id="e1", text="Be brief."),))
        >>> from_json(to_json(library)) == library
        True
    """
    data = {
        "format": FORMAT,
        "version": VERSION,
        "next_number": library.next_number,
        "experiences": [asdict(experience) for experience in library],
    }
    return json.dumps(data, ensure_ascii=False, indent=2) + "\n"


def from_json(text: str, source: str = "the text") -> ExperienceLibrary:
    """The library in a JSON text.

    Args:
        text: what ``to_json`` wrote.
        source: named in errors, such as the file's path.

    Raises:
        LibraryError: for text that is no such JSON, another version, or a value of the wrong type.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise LibraryError(f"{source} is not whole JSON ({error}); was it cut off?") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise LibraryError(f"{source} is JSON, but not an experience library: it lacks format={FORMAT!r}")
    if data.get("version") != VERSION:
        raise LibraryError(
            f"{source} has schema version {data.get('version')!r}; this version of tgrpo_dspy reads version {VERSION}. "
            "Install the version that wrote it."
        )
    members = _typed(data, "experiences", (list,), source)
    return ExperienceLibrary(
        tuple(_experience(item, f"{source}, experience {n}") for n, item in enumerate(members, start=1)),
        _typed(data, "next_number", (int,), source),
    )


def _experience(item: Any, where: str) -> Experience:
    if not isinstance(item, dict):
        raise LibraryError(f"{where} must be an object, got {item!r}")
    unknown = sorted(item.keys() - {field.name for field in fields(Experience)})
    if unknown:
        raise LibraryError(f"{where} has unknown keys {unknown}")
    values = {
        name: _typed(item, name, _TYPES[name], where) for name in _TYPES if name in item or name in ("id", "text")
    }
    values["evidence"] = tuple(_evidence(piece, where) for piece in values.get("evidence", []))
    return Experience(**values)


def _evidence(piece: Any, where: str) -> Evidence:
    if not isinstance(piece, dict):
        raise LibraryError(f"{where}: evidence must be an object, got {piece!r}")
    rewards = _typed(piece, "rewards", (list,), where)
    if not all(isinstance(reward, int | float) and not isinstance(reward, bool) for reward in rewards):
        raise LibraryError(f"{where}: rewards must be numbers, got {rewards!r}")
    return Evidence(example=_typed(piece, "example", (str,), where), rewards=tuple(rewards))


def _typed(data: Mapping[str, Any], name: str, types: tuple[type, ...], where: str) -> Any:
    value = data.get(name)
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        expected = " or ".join("null" if t is type(None) else t.__name__ for t in types)
        raise LibraryError(f"{where}: {name} must be {expected}, got {value!r}")
    return value
