"""The metric: the share of fields written exactly as in the label, with feedback that shows both values."""

from __future__ import annotations

from typing import Any

import dspy

from programs.country_records.data import FIELDS


def field_accuracy(
    gold: dspy.Example, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
) -> dspy.Prediction:
    """The share of fields right; feedback has a line for each wrong field and a last one for the right ones."""
    right: list[str] = []
    lines: list[str] = []
    for field in FIELDS:
        expected = str(gold[field]).strip()
        problem = _problem(getattr(pred, field, None), expected)
        if problem is None:
            right.append(field)
        else:
            lines.append(f"{field}: {problem}, expected '{expected}'")
    if right:
        lines.append(f"right: {', '.join(right)}")
    return dspy.Prediction(score=len(right) / len(FIELDS), feedback="\n".join(lines))


def _problem(value: object, expected: str) -> str | None:
    """What was written instead; None where the value is right."""
    if value is None:
        return "wrote nothing"
    if not isinstance(value, str):
        return f"wrote {value!r} (not text)"
    written = value.strip()
    return None if written == expected else f"wrote '{written}'"
