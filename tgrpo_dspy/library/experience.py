"""One lesson, and where it came from."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tgrpo_dspy.errors import LibraryError
from tgrpo_dspy.text import whole

_ID = re.compile(r"e[1-9][0-9]*")


def clean_text(text: str) -> str:
    """One line, single spaces: the form in which a lesson is stored, compared and rendered."""
    return " ".join(text.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A group that taught an experience: the example's key and the rewards of its rollouts."""

    example: str
    rewards: tuple[float, ...]


def join_evidence(*parts: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    """All evidence, each piece once, in an order that does not depend on where it came from."""
    return tuple(sorted({item for part in parts for item in part}, key=lambda e: (e.example, e.rewards)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """One lesson of the library.

    Args:
        id: ``e1``, ``e2``, …; given once, never reused, whatever happens to its neighbours.
        text: the lesson, one line.
        target: name of the predictor it is for (as in ``named_predictors()``); None: the whole program.
        created: step that added it (0: before learning).
        changed: last step that changed its text.
        evidence: the groups it was drawn from.
        proposed: how often it was proposed, the first time included.
        contradicted: how often a step proposed to delete it and it stayed.
        effect: measured effect on the reward, where it was measured.

    Raises:
        LibraryError: for an id of another form, or a text that is empty, not one line, or not valid Unicode.
    """

    id: str
    text: str
    target: str | None = None
    created: int = 0
    changed: int = 0
    evidence: tuple[Evidence, ...] = ()
    proposed: int = 1
    contradicted: int = 0
    effect: float | None = None

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise LibraryError(f"experience id {self.id!r} is not of the form 'e1', 'e2', …")
        if self.text != clean_text(self.text) or not self.text:
            raise LibraryError(f"experience {self.id}: text {self.text!r} must be one non-empty line; use clean_text()")
        if whole(self.text) != self.text:
            raise LibraryError(f"experience {self.id}: text {self.text!r} holds half of a character (a lone surrogate)")

    @property
    def number(self) -> int:
        """The number in the id; smaller is older."""
        return int(self.id[1:])
