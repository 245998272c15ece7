"""A call of a predictor as a demonstration: plain data that survives JSON and reads in a prompt as the original did."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import dspy
import orjson
from dspy.adapters.types.base_type import CUSTOM_TYPE_START_IDENTIFIER
from dspy.adapters.utils import format_field_value, serialize_for_json

from tgrpo_dspy.records import Demonstration

_MAX_BYTES = 16_000
_NO_DATA = (dspy.Tool, dspy.ToolCalls, dspy.History)
_NOT_TEXT = re.compile(rf"{CUSTOM_TYPE_START_IDENTIFIER}| at 0x[0-9a-f]+>".encode())


def demonstration(
    name: str, predictor: dspy.Predict, inputs: Mapping[str, Any], prediction: Any
) -> Demonstration | None:
    """A call of a predictor, named ``name``, as it goes into later prompts; None when none can be made of it."""
    signature = predictor.signature
    given = {field: inputs[field] for field in signature.input_fields if field in inputs}
    answered = {field: prediction[field] for field in signature.output_fields if field in prediction}
    if len(answered) < len(signature.output_fields):
        return None
    values = plain({**given, **answered}, signature.fields)
    return None if values is None else Demonstration(predictor=name, values=values)


def labelled_demonstration(name: str, predictor: dspy.Predict, example: dspy.Example) -> Demonstration | None:
    """A training example with its labels as what a predictor, named ``name``, should have written.

    None where the example does not tell all that the predictor is given, or nothing of what it writes. Outputs without
    a label, such as the reasoning, are left open, as ``dspy.LabeledFewShot`` leaves them.

    Example:
        >>> example = dspy.Example(question="1 + 1?", answer="2").with_inputs("question")
        >>> labelled_demonstration("solve", dspy.ChainOfThought("question -> answer").predict, example).values
        {'question': '1 + 1?', 'answer': '2'}
        >>> labelled_demonstration("check", dspy.Predict("question, draft -> answer"), example) is None
        True
    """
    signature = predictor.signature
    inputs, labels = example.inputs().toDict(), example.labels().toDict()
    if not (signature.input_fields.keys() <= inputs.keys() and signature.output_fields.keys() & labels.keys()):
        return None
    given = {field: inputs[field] for field in signature.input_fields}
    right = {field: labels[field] for field in signature.output_fields if field in labels}
    values = plain({**given, **right}, signature.fields)
    return None if values is None else Demonstration(predictor=name, values=values)


def plain(values: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """The values of a signature's fields as JSON data; None when they make no demonstration.

    Numbers, lists and dicts stay what they are, models become dicts. No demonstration can be made of images and the
    like, histories, tools, objects that show their address only, and what is longer than 16 kB.

    Example:
        >>> fields = dspy.Signature("text -> dates: list[str], count: int").fields
        >>> plain({"text": "May", "dates": ["05"], "count": 1, "more": ""}, fields)
        {'text': 'May', 'dates': ['05'], 'count': 1}
        >>> plain({"text": dspy.Image("data:image/png;base64,iVBO"), "count": 1}, fields) is None
        True
    """
    held = {name: values[name] for name in fields if name in values}
    if _holds(held.values(), _NO_DATA):
        return None
    try:
        data = {name: serialize_for_json(value) for name, value in held.items()}
        text = orjson.dumps(data)  # what DSPy saves programs with: it takes no huge integers and no broken text
        same = all(_reads(fields[name], data[name]) == _reads(fields[name], held[name]) for name in held)
    except Exception:  # a user's object may do anything
        return None
    is_kept = same and len(text) <= _MAX_BYTES and not _NOT_TEXT.search(text) and orjson.loads(text) == data
    return data if is_kept else None


def _holds(values: Iterable[Any], kinds: tuple[type, ...]) -> bool:
    """Whether one of the kinds is among the values, or inside their containers."""
    return any(
        isinstance(value, kinds)
        or (isinstance(value, Mapping) and _holds(value.values(), kinds))
        or (isinstance(value, list | tuple | set | frozenset) and _holds(value, kinds))
        for value in values
    )


def _reads(field: Any, value: Any) -> Any:
    """How DSPy's adapters write a value into a prompt."""
    return format_field_value(field_info=field, value=value)
