"""A library as text that people and other programs read."""

from __future__ import annotations

from collections.abc import Iterable

from tgrpo_dspy.library.experience import Experience


def to_markdown(experiences: Iterable[Experience]) -> str:
    """The experiences as a Markdown list, by predictor where they are for one.

    Example:
        >>> print(to_markdown([Experience(id="e1", text="Write dates as YYYY-MM-DD.", proposed=3)]))
        # Experiences
        <BLANKLINE>
        - [e1] Write dates as YYYY-MM-DD. *(proposed 3 times)*
    """
    by_target: dict[str, list[Experience]] = {}
    for experience in experiences:
        by_target.setdefault(experience.target or "", []).append(experience)
    lines = ["# Experiences"]
    for target, members in sorted(by_target.items()):
        lines += ["", f"## {target}", ""] if target else [""]
        lines += [f"- [{e.id}] {e.text}{_support(e)}" for e in members]
    return "\n".join(lines if by_target else [*lines, "", "None yet."])


def _support(experience: Experience) -> str:
    return f" *(proposed {experience.proposed} times)*" if experience.proposed > 1 else ""
