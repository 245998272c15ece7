"""Proposed changes to a library, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tgrpo_dspy.library.experience import Evidence, clean_text

Operation = Literal["ADD", "UPDATE", "DELETE", "MERGE", "KEEP"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One proposed change.

    ADD needs ``text``; UPDATE one id and ``text``; MERGE two or more ids and ``text``; DELETE and KEEP one id.

    Args:
        operation: what to do.
        text: the new lesson, for ADD, UPDATE and MERGE.
        ids: the experiences it is about, for all but ADD.
        target: predictor the lesson is for. None: the whole program, and for UPDATE the target it has; an UPDATE to the
            empty string makes it a lesson of the whole program.
        evidence: the groups that led to the proposal.

    Example:
        >>> Edit(operation="ADD", text="  Write dates\\n as YYYY-MM-DD. ").text
        'Write dates as YYYY-MM-DD.'
    """

    operation: Operation
    text: str = ""
    ids: tuple[str, ...] = ()
    target: str | None = None
    evidence: tuple[Evidence, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", clean_text(self.text))
        object.__setattr__(self, "ids", tuple(sorted(dict.fromkeys(self.ids), key=_id_order)))

    @property
    def content(self) -> tuple[str, str, tuple[str, ...], str]:
        """What the edit says, without who proposed it; also a total order that ignores arrival."""
        return (self.operation, self.text.casefold(), self.ids, self.target or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An edit that was not carried out, with the reason in words."""

    edit: Edit
    reason: str


def _id_order(identifier: str) -> tuple[int, str]:
    digits = identifier[1:]
    return (int(digits) if digits.isascii() and digits.isdigit() else 0, identifier)
