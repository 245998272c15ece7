"""How two libraries differ, and the edits that bring several together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tgrpo_dspy.errors import LibraryError
from tgrpo_dspy.library.edits import Edit
from tgrpo_dspy.library.library import ExperienceLibrary


def diff(before: ExperienceLibrary, after: ExperienceLibrary) -> tuple[Edit, ...]:
    """The edits that turn the texts of ``before`` into those of ``after``, by id.

    Example:
        >>> from tgrpo_dspy.library.experience import Experience
        >>> old = ExperienceLibrary((Experience(id="e1", text="Be brief."), Experience(id="e2", text="Be kind.")))
        >>> new = ExperienceLibrary((Experience(id="e1", text="Be very brief."), Experience(id="e3", text="Cite.")))
        >>> [(edit.operation, edit.ids, edit.text) for edit in diff(old, new)]
        [('DELETE', ('e2',), ''), ('UPDATE', ('e1',), 'Be very brief.'), ('ADD', (), 'Cite.')]
    """
    edits = [Edit(operation="DELETE", ids=(e.id,)) for e in before if e.id not in after]
    for experience in after:
        if experience.id not in before:
            edits.append(
                Edit(operation="ADD", text=experience.text, target=experience.target, evidence=experience.evidence)
            )
        elif (experience.text, experience.target) != (before[experience.id].text, before[experience.id].target):
            edits.append(
                Edit(operation="UPDATE", ids=(experience.id,), text=experience.text, target=experience.target or "")
            )
    return tuple(edits)


def additions(*libraries: ExperienceLibrary) -> tuple[Edit, ...]:
    """Every experience of the libraries as an ADD, with its evidence: what ``merge`` hands to curation."""
    return tuple(
        Edit(operation="ADD", text=e.text, target=e.target, evidence=e.evidence)
        for library in libraries
        for e in library
    )


def retarget(library: ExperienceLibrary, names: Mapping[str, str | None]) -> ExperienceLibrary:
    """The library for another program: targets renamed by ``names``; None makes a lesson one of the whole program.

    Raises:
        LibraryError: when ``names`` renames a target the library does not have.

    Example:
        >>> from tgrpo_dspy.library.experience import Experience
        >>> learned = ExperienceLibrary((Experience(id="e1", text="Be brief.", target="answer"),))
        >>> retarget(learned, {"answer": "respond.predict"})["e1"].target
        'respond.predict'
    """
    present = {e.target for e in library if e.target}
    unknown = sorted(names.keys() - present)
    if unknown:
        raise LibraryError(
            f"the library has no experience for {', '.join(unknown)}, only for {sorted(present) or 'all'}"
        )
    moved = tuple(replace(e, target=names.get(e.target, e.target)) if e.target else e for e in library)
    return ExperienceLibrary(moved, library.next_number)
