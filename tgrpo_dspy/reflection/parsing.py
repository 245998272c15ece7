"""Reading edits from what a model wrote, whatever form it took."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import json_repair
from pydantic import ValidationError

from tgrpo_dspy.library.edits import Edit, Operation
from tgrpo_dspy.library.experience import Evidence
from tgrpo_dspy.reflection.signatures import FEWEST_WORDS, ProposedEdit

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
_BULLET = re.compile(r"^\s*(?:[-*•>]|\d+[.):]|(?:rule|lesson) \d+:)\s*", re.IGNORECASE)
_ID = re.compile(r"\W*e?(\d+)\W*", re.IGNORECASE)
_OPERATION_LINE = re.compile(
    rf"[\W_]*(?P<operation>{'|'.join(_OPERATIONS)})\b[\W_]*(?P<ids>(?:\[?e\d+\]?[\s,;+&]*(?:and\s+)?)*)[\W_]*(?P<lesson>.*)",
    re.IGNORECASE,
)
_KEY_LINE = re.compile(
    r"[\s\W]*(operation|op|action|ids?|lesson|text|rule|content)[\"'*]*\s*[:=]\s*(.*)", re.IGNORECASE
)
_FIELD = re.compile(r"\[\[\s*##\s*(\w+)\s*##\s*\]\]")
_JSON_COMMENT = re.compile(r"(?m)(?:^|(?<=[\s,{\[]))(?://|#)[^\n]*$|/\*.*?\*/")


def to_edits(proposed: Iterable[ProposedEdit | Mapping[str, Any]], evidence: Sequence[Evidence]) -> tuple[Edit, ...]:
    """Library edits from a model's edits.

    An ADD without a lesson says nothing and is left out; a DELETE or KEEP of several experiences is one of each. Where
    the operation is missing or unknown, a lesson that names experiences is an UPDATE or MERGE of them, never an ADD.
    """
    edits = []
    for item in map(ProposedEdit.model_validate, proposed):
        ids = tuple(f"e{m[1]}" for i in item.ids if (m := _ID.fullmatch(i)))
        operation = _OPERATIONS.get(item.operation.strip().upper()) or _meant_by(ids)
        if operation in ("DELETE", "KEEP"):
            each = [[one] for one in ids] or [[]]
            edits += [Edit(operation=operation, ids=tuple(one), evidence=tuple(evidence)) for one in each]
        elif item.lesson.strip() or (ids and operation != "ADD"):
            edits.append(
                Edit(
                    operation=operation,
                    text=item.lesson,
                    ids=() if operation == "ADD" else ids,
                    target=item.predictor.strip() or None,
                    evidence=tuple(evidence),
                )
            )
    return tuple(edits)


def _meant_by(ids: Sequence[str]) -> Operation:
    if not ids:
        return "ADD"
    return "UPDATE" if len(ids) == 1 else "MERGE"


def salvage(completion: str) -> list[ProposedEdit]:
    """The edits in a completion that DSPy could not parse: from JSON of any shape in it, else from lines such as
    ``ADD: lesson``, ``lesson: …`` under ``operation: …``, or a list of rules.
    """
    text = _edits_part(completion)
    return _from_json(text) or _from_operation_lines(text) or _from_key_lines(text) or _from_bullets(text)


def lines_to_proposals(text: str) -> list[ProposedEdit]:
    """One ADD for every line that is a rule; bullets, numbers and quotes around them are dropped."""
    lines = (_FIELD.sub("", _BULLET.sub("", line)).strip().strip("\"'*`").strip() for line in text.splitlines())
    return [ProposedEdit(lesson=line) for line in lines if len(line.split()) >= FEWEST_WORDS]


def _edits_part(completion: str) -> str:
    """What stands under the edits' (or rules') header, else everything; without field markers."""
    parts = _FIELD.split(completion)
    named = dict(zip((name.lower() for name in parts[1::2]), parts[2::2], strict=True))
    chosen = next((named[name] for name in ("edits", "rules") if named.get(name, "").strip()), None)
    return chosen if chosen is not None else _FIELD.sub("", completion)


def _from_json(text: str) -> list[ProposedEdit]:
    starts = [position for position in (text.find("["), text.find("{")) if position >= 0]
    return _proposals(json_repair.loads(_JSON_COMMENT.sub("", text[min(starts) :]))) if starts else []


def _from_operation_lines(text: str) -> list[ProposedEdit]:
    found = []
    for line in text.splitlines():
        match = _OPERATION_LINE.fullmatch(_BULLET.sub("", line))
        if match and (match["ids"] or len(match["lesson"].split()) >= FEWEST_WORDS):
            lesson = match["lesson"].strip().strip("\"'*`")
            found.append(
                ProposedEdit(operation=match["operation"], ids=[match["ids"]] if match["ids"] else [], lesson=lesson)
            )
    return found


def _from_key_lines(text: str) -> list[ProposedEdit]:
    records: list[dict[str, str]] = []
    for line in text.splitlines():
        match = _KEY_LINE.fullmatch(line)
        if match:
            key, value = match[1].lower(), match[2].strip().strip("\"',")
            if not records or key in records[-1]:
                records.append({})
            records[-1][key] = value
    return _proposals(records)


def _from_bullets(text: str) -> list[ProposedEdit]:
    return lines_to_proposals("\n".join(line for line in text.splitlines() if _BULLET.match(line)))


def _proposals(value: Any) -> list[ProposedEdit]:
    """Edits in any nesting of lists and objects."""
    if isinstance(value, list | tuple):
        return [edit for item in value for edit in _proposals(item)]
    if isinstance(value, str):
        return [ProposedEdit(lesson=value)] if len(value.split()) >= FEWEST_WORDS else []
    if not isinstance(value, dict):
        return []
    try:
        edit = ProposedEdit.model_validate(value)
    except ValidationError:
        return []
    if edit.lesson or edit.ids:
        return [edit]
    return [edit for item in value.values() if isinstance(item, list | dict) for edit in _proposals(item)]
