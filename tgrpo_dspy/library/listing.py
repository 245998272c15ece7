"""Experiences as a Markdown list, for people to read and change."""

from __future__ import annotations

from collections.abc import Iterable

from tgrpo_dspy.library.experience import Experience

TITLE = "# Experiences"
EMPTY = "None yet."


def to_markdown(experiences: Iterable[Experience]) -> str:
    """The experiences as a list, those for one predictor under its name.

    Example:
        >>> print(to_markdown([Experience(id="e1", text="Write dates as YYYY-MM-DD.")]))
        # Experiences
        <BLANKLINE>
        - [e1] Write dates as YYYY-MM-DD.
    """
    by_target: dict[str, list[Experience]] = {}
    for experience in experiences:
        by_target.setdefault(experience.target or "", []).append(experience)
    lines = [TITLE]
    for target, members in sorted(by_target.items()):
        lines += ["", f"## {target}", ""] if target else [""]
        lines += [f"- [{e.id}] {e.text}" for e in members]
    return "\n".join(lines if by_target else [*lines, "", EMPTY])
