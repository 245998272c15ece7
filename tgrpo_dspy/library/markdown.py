"""What a person changed in a library's Markdown, and the library that follows from it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tgrpo_dspy.errors import LibraryError
from tgrpo_dspy.library.edits import Edit
from tgrpo_dspy.library.experience import Experience, clean_text
from tgrpo_dspy.library.library import Applied, ExperienceLibrary
from tgrpo_dspy.library.listing import EMPTY, TITLE
from tgrpo_dspy.settings import LibraryLimits

_TARGET = re.compile(r"## +(.+)")
_ITEM = re.compile(r"[-*] +(?:\[(e[1-9][0-9]*)\] +)?(\S.*)")


@dataclass(frozen=True, slots=True)
class _Line:
    id: str | None
    text: str
    target: str | None
    number: int


def from_markdown(text: str) -> ExperienceLibrary:
    """A library of its own from Markdown. Lines without an id get the next numbers; provenance is not in Markdown.

    Raises:
        LibraryError: for a line that is no list item, heading or continuation, or an id that stands twice.

    Example:
        >>> [(e.id, e.text, e.target) for e in from_markdown("- [e2] Be brief.\\n\\n## answer\\n\\n- Cite it.")]
        [('e2', 'Be brief.', None), ('e3', 'Cite it.', 'answer')]
    """
    lines = _parse(text)
    known = [Experience(id=line.id, text=clean_text(line.text), target=line.target) for line in lines if line.id]
    number = ExperienceLibrary(tuple(known)).next_number
    experiences = []
    for line in lines:
        identifier = line.id
        if identifier is None:
            identifier, number = f"e{number}", number + 1
        experiences.append(Experience(id=identifier, text=clean_text(line.text), target=line.target))
    return ExperienceLibrary(tuple(experiences))


def edits_in_markdown(text: str, library: ExperienceLibrary) -> tuple[Edit, ...]:
    """What a person changed: a changed line is an UPDATE, a missing one a DELETE, a line without an id an ADD.

    Raises:
        LibraryError: for a line that is no list item, heading or continuation, an id that stands twice, or an id the
            library does not have.
    """
    return _edits(_parse(text), library)


def apply_markdown(
    text: str, library: ExperienceLibrary, *, step: int = 0, limits: LibraryLimits | None = None
) -> Applied:
    """The library after a person's changes, in the order of the lines; ids and provenance are kept.

    Raises:
        LibraryError: as ``edits_in_markdown``.
    """
    lines = _parse(text)
    applied = library.apply(_edits(lines, library), step=step, limits=limits)
    position = {line.id: line.number for line in lines if line.id}
    new = {(clean_text(line.text).casefold(), line.target): line.number for line in lines if not line.id}

    def place(experience: Experience) -> int:
        return position.get(experience.id, new.get((experience.text.casefold(), experience.target), len(text)))

    ordered = ExperienceLibrary(tuple(sorted(applied.library, key=place)), applied.library.next_number)
    return replace(applied, library=ordered)


def _edits(lines: list[_Line], library: ExperienceLibrary) -> tuple[Edit, ...]:
    written: dict[str, _Line] = {}
    for line in lines:
        if line.id is not None and line.id in written:
            raise LibraryError(f"{line.id} stands twice, on lines {written[line.id].number} and {line.number}")
        if line.id is not None and line.id not in library:
            raise LibraryError(
                f"line {line.number}: there is no experience {line.id}; leave the id out to add a lesson"
            )
        if line.id is not None:
            written[line.id] = line
    edits = [Edit(operation="DELETE", ids=(e.id,)) for e in library if e.id not in written]
    for line in lines:
        if line.id is None:
            edits.append(Edit(operation="ADD", text=line.text, target=line.target))
        elif (library[line.id].text, library[line.id].target) != (clean_text(line.text), line.target):
            edits.append(Edit(operation="UPDATE", ids=(line.id,), text=line.text, target=line.target or ""))
    return tuple(edits)


def _parse(text: str) -> list[_Line]:
    lines: list[_Line] = []
    target: str | None = None
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.rstrip()
        if not line or line in (TITLE, EMPTY):
            continue
        if heading := _TARGET.fullmatch(line):
            target = heading[1]
        elif item := _ITEM.fullmatch(line):
            lines.append(_Line(item[1], item[2], target, number))
        elif line[0] in " \t" and lines:
            lines[-1] = replace(lines[-1], text=f"{lines[-1].text} {line.strip()}")
        else:
            raise LibraryError(
                f"line {number} of the Markdown is not '- [id] lesson', '- new lesson' or '## predictor': {line!r}"
            )
    return lines
