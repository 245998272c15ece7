"""Examples as the loop sees them: a stable key, and their fields as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import dspy
import pydantic

from tgrpo_dspy.errors import ConfigurationError
from tgrpo_dspy.runs.hashing import without_addresses
from tgrpo_dspy.sampling.traces import render_value
from tgrpo_dspy.text import shorten


@dataclass(frozen=True, slots=True)
class Item:
    """An example with its key (hash of its whole content) and its inputs and labels rendered as bounded text."""

    key: str
    example: dspy.Example
    inputs: Mapping[str, str]
    labels: Mapping[str, str]


def items_of(examples: Sequence[dspy.Example], name: str) -> list[Item]:
    """Check a trainset or valset and give every example its key.

    Equal examples get different keys, so that each is sampled on its own.

    Raises:
        ConfigurationError: for an empty set, or an element that is not an example with inputs.
    """
    if not isinstance(examples, Sequence) or isinstance(examples, str | bytes) or not examples:
        raise ConfigurationError(f"{name} must be a non-empty list of dspy.Example, got {_short(examples)}")
    seen: Counter[str] = Counter()
    items = []
    for index, example in enumerate(examples):
        inputs, labels = _fields(example, f"{name}[{index}]")
        content = _hash(inputs, labels)
        seen[content] += 1
        suffix = f"#{seen[content]}" if seen[content] > 1 else ""
        items.append(Item(content[:16] + suffix, example, _rendered(inputs), _rendered(labels)))
    return items


def _hash(*fields: Mapping[str, Any]) -> str:
    content = repr(tuple(sorted((name, _identity(value)) for name, value in part.items()) for part in fields))
    return sha256(content.encode("utf-8", "replace")).hexdigest()


def _identity(value: Any) -> str:
    """The whole of a value as text, the same in every process: without addresses, and with sets in order."""
    if isinstance(value, str):
        return value
    if isinstance(value, set | frozenset):
        return without_addresses(f"{{{', '.join(sorted(_shown(element, repr) for element in value))}}}")
    return without_addresses(_shown(value, _whole))


def _whole(value: Any) -> str:
    return value.model_dump_json() if isinstance(value, pydantic.BaseModel) else str(value)


def _rendered(fields: Mapping[str, Any]) -> dict[str, str]:
    return {name: render_value(value) for name, value in fields.items()}


def _shown(value: object, show: Callable[[Any], str]) -> str:
    try:
        return show(value)
    except Exception:  # whatever a user's type raises when it is shown
        return f"<{type(value).__name__} that cannot be shown>"


def _fields(example: object, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    if not isinstance(example, dspy.Example):
        raise ConfigurationError(f"{where} must be a dspy.Example, got {_short(example)}")
    try:
        inputs, labels = example.inputs(), example.labels()
    except ValueError as error:
        raise ConfigurationError(
            f"{where} does not say which of its fields are inputs: {_short(example)}. "
            "Call .with_inputs('name', …) on every example."
        ) from error
    return dict(inputs), dict(labels)


def _short(value: object) -> str:
    return shorten(f"{type(value).__name__} {_shown(value, repr)}", 200)
