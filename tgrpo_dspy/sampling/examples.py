"""Examples as the loop sees them: a stable key, and their fields as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import dspy

from tgrpo_dspy.errors import ConfigurationError
from tgrpo_dspy.sampling.traces import render_value


@dataclass(frozen=True, slots=True)
class Item:
    """An example with its key (hash of its content) and its inputs and labels rendered as text."""

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
        content = sha256(repr((sorted(inputs.items()), sorted(labels.items()))).encode("utf-8", "replace")).hexdigest()
        seen[content] += 1
        suffix = f"#{seen[content]}" if seen[content] > 1 else ""
        items.append(Item(content[:16] + suffix, example, inputs, labels))
    return items


def _fields(example: object, where: str) -> tuple[dict[str, str], dict[str, str]]:
    if not isinstance(example, dspy.Example):
        raise ConfigurationError(f"{where} must be a dspy.Example, got {_short(example)}")
    try:
        inputs, labels = example.inputs(), example.labels()
    except ValueError as error:
        raise ConfigurationError(
            f"{where} does not say which of its fields are inputs: {_short(example)}. "
            "Call .with_inputs('name', …) on every example."
        ) from error
    return (
        {name: render_value(value) for name, value in inputs.items()},
        {name: render_value(value) for name, value in labels.items()},
    )


def _short(value: object) -> str:
    text = f"{type(value).__name__} {value!r}"
    return text if len(text) <= 200 else text[:197] + "..."
