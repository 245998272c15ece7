"""Reading edits from what a model wrote, whatever form it took."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import json_repair
from pydantic import ValidationError

from tgrpo_dspy.library.edits import Edit, Operation
from tgrpo_dspy.library.experience import Evidence
from tgrpo_dspy.reflection.signatures import ProposedEdit

_OPERATIONS: dict[str, Operation] = {
    **{name: name for name in ("ADD", "UPDATE", "DELETE", "MERGE", "KEEP")},
    "NEW": "ADD",
    "INSERT": "ADD",
    "CREATE": "ADD",
    "MODIFY": "UPDATE",
    "EDIT": "UPDATE",
    "REPLACE": "UPDATE",
    "REMOVE": "DELETE",
    "DROP": "DELETE",
    "COMBINE": "MERGE",
    "NONE": "KEEP",
}
_BULLET = re.compile(r"^\s*(?:[-*•]|\d+[.)]|rule \d+:)\s*", re.IGNORECASE)
_ID = re.compile(r"e?(\d+)", re.IGNORECASE)


def to_edits(proposed: Iterable[ProposedEdit], evidence: Sequence[Evidence]) -> tuple[Edit, ...]:
    """Library edits from a model's edits. One that says nothing (an ADD without a lesson) is left out."""
    edits = []
    for item in proposed:
        ids = tuple(f"e{m[1]}" for i in item.ids if (m := _ID.fullmatch(i.strip().strip("[]"))))
        operation = _OPERATIONS.get(item.operation.strip().upper(), "ADD")
        if operation == "ADD":
            ids = ()
        if not item.lesson.strip() and not ids:
            continue
        edits.append(
            Edit(
                operation=operation,
                text=item.lesson if operation not in ("DELETE", "KEEP") else "",
                ids=ids,
                target=item.predictor.strip() or None,
                evidence=tuple(evidence),
            )
        )
    return tuple(edits)


def salvage(completion: str) -> list[ProposedEdit]:
    """The edits in a completion that DSPy could not parse: the last JSON list or object that reads as edits."""
    start = completion.find(
        "[", completion.rfind("## edits ##") + len("## edits ##") if "## edits ##" in completion else 0
    )
    if start < 0:
        start = completion.find("{")
    return _proposals(json_repair.loads(completion[start:])) if start >= 0 else []


def lines_to_proposals(text: str) -> list[ProposedEdit]:
    """One ADD for every line that is a rule; bullets and numbers are dropped."""
    lines = (_BULLET.sub("", line).strip().strip('"') for line in text.splitlines())
    return [ProposedEdit(operation="ADD", lesson=line) for line in lines if len(line.split()) > 2]


def _proposals(value: Any) -> list[ProposedEdit]:
    if isinstance(value, dict):
        value = value.get("edits", [value])
    if not isinstance(value, list):
        return []
    found = []
    for item in value:
        if isinstance(item, str) and len(item.split()) > 2:
            found.append(ProposedEdit(lesson=item))
        elif isinstance(item, dict) and ({"lesson", "operation"} & item.keys()):
            try:
                found.append(ProposedEdit.model_validate(item))
            except ValidationError:
                continue
    return found
