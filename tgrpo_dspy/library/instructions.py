"""Writing a library into a program's instructions, taking it out, and reading it back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import dspy

from tgrpo_dspy.cloning import ProgramT, clone
from tgrpo_dspy.errors import LibraryError
from tgrpo_dspy.library.experience import Experience
from tgrpo_dspy.library.library import ExperienceLibrary

_OPEN = "<experiences>"
_CLOSE = "</experiences>"
_LEAD = "Lessons learned from earlier attempts at this task. Follow every one that applies:"
_LINE = re.compile(r"\[(e[1-9][0-9]*)\] (.+)")


def render_block(experiences: Iterable[Experience]) -> str:
    """The delimited block that carries the experiences; empty text when there are none.

    Example:
        >>> print(render_block([Experience(id="e1", text="Write dates as YYYY-MM-DD.")]))
        <experiences>
        Lessons learned from earlier attempts at this task. Follow every one that applies:
        [e1] Write dates as YYYY-MM-DD.
        </experiences>
    """
    lines = [f"[{e.id}] {e.text}" for e in experiences]
    return "\n".join([_OPEN, _LEAD, *lines, _CLOSE]) if lines else ""


def inject(
    program: ProgramT, library: ExperienceLibrary, *, others: Mapping[str, ExperienceLibrary] | None = None
) -> ProgramT:
    """A copy of the program whose predictors carry the library at the end of their instructions.

    A block that is already there is replaced. The program, its signature classes and its LMs are left as they are.

    Args:
        program: any DSPy program.
        library: what it is to carry.
        others: by name, the predictors that are to carry another library.

    Raises:
        LibraryError: when an experience is for a predictor the program does not have.
    """
    injected = clone(program)
    predictors = injected.named_predictors()
    check_targets(library, [name for name, _ in predictors])
    for name, predictor in predictors:
        carried = (others or {}).get(name, library).for_predictor(name)
        _set_instructions(predictor, with_block(predictor.signature.instructions, carried))
    return injected


def strip(program: ProgramT) -> ProgramT:
    """A copy of the program without any experience block."""
    return inject(program, ExperienceLibrary())


def read_library(program: dspy.Module) -> ExperienceLibrary:
    """The library that a program carries, read from its instructions.

    An experience found in exactly one of several predictors is for that predictor; every other one is for the whole
    program. Provenance and counters are not part of the instructions and start anew.

    Raises:
        LibraryError: when one id stands for two different texts.
    """
    return library_in({name: predictor.signature.instructions for name, predictor in program.named_predictors()})


def library_in(instructions: Mapping[str, str]) -> ExperienceLibrary:
    """The library in instructions by predictor; see ``read_library``.

    Example:
        >>> block = render_block([Experience(id="e1", text="Be brief.")])
        >>> [(e.text, e.target) for e in library_in({"draft": block, "polish": "Polish it."})]
        [('Be brief.', 'draft')]

    Raises:
        LibraryError: when one id stands for two different texts.
    """
    found: dict[str, tuple[str, list[str]]] = {}
    for name, carried in instructions.items():
        for identifier, text in _read_block(carried):
            known, names = found.setdefault(identifier, (text, []))
            if known != text:
                raise LibraryError(f"experience {identifier} stands for two texts: {known!r} and {text!r}")
            names.append(name)
    return ExperienceLibrary(
        tuple(
            Experience(id=i, text=text, target=names[0] if len(names) == 1 < len(instructions) else None)
            for i, (text, names) in sorted(found.items(), key=lambda item: int(item[0][1:]))
        )
    )


def check_targets(library: ExperienceLibrary, names: Sequence[str]) -> None:
    """Refuse a library with an experience for a predictor that is not among ``names``.

    Raises:
        LibraryError: naming the experience and the predictors there are.
    """
    for experience in library:
        if experience.target is not None and experience.target not in names:
            raise LibraryError(
                f"experience {experience.id} is for predictor {experience.target!r}, "
                f"but the program has {', '.join(names) or 'no predictor'}"
            )


def with_block(instructions: str, experiences: Iterable[Experience]) -> str:
    """The instructions with these experiences at their end, in place of those they carried."""
    base, block = without_block(instructions), render_block(experiences)
    return f"{base}\n\n{block}" if block else base


def without_block(instructions: str) -> str:
    """The instructions without the experience block at their end."""
    return _split(instructions)[0]


def _read_block(instructions: str) -> list[tuple[str, str]]:
    return [(m[1], m[2]) for m in map(_LINE.fullmatch, _split(instructions)[1]) if m]


def _split(instructions: str) -> tuple[str, list[str]]:
    """What stands above the block, and the lines between its tags.

    A lesson is one line that begins with its id, so no lesson can look like a tag.
    """
    lines = instructions.split("\n")
    if lines[-1] != _CLOSE or _OPEN not in lines:
        return instructions, []
    start = len(lines) - 1 - lines[::-1].index(_OPEN)
    above = lines[: start - 1] if start and not lines[start - 1] else lines[:start]
    return "\n".join(above), lines[start + 1 : -1]


def _set_instructions(predictor: dspy.Predict, text: str) -> None:
    if text != predictor.signature.instructions:
        # with_instructions makes a new class; assigning .instructions would change the student's.
        predictor.signature = predictor.signature.with_instructions(text)
