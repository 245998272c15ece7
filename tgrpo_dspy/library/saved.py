"""The library in the JSON of a saved program, without the program's code: ``program.save("compiled.json")``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from tgrpo_dspy.library.instructions import check_targets, library_in, with_block
from tgrpo_dspy.library.library import ExperienceLibrary

_BARE = "self"  # what DSPy calls the predictor of a program that is nothing but one


def instructions_in(state: Mapping[str, Any]) -> dict[str, str]:
    """The instructions of every predictor in a saved state, by name; empty when it is no saved program.

    Example:
        >>> instructions_in({"answer.predict": {"signature": {"instructions": "Answer."}}, "metadata": {}})
        {'answer.predict': 'Answer.'}
    """
    return {name: signature["instructions"] for name, signature in _signatures(state)}


def library_in_state(state: Mapping[str, Any]) -> ExperienceLibrary:
    """The library that a saved program carries; see ``read_library``.

    Raises:
        LibraryError: when one id stands for two different texts.
    """
    return library_in(instructions_in(state))


def inject_into_state(state: Mapping[str, Any], library: ExperienceLibrary) -> dict[str, Any]:
    """A copy of a saved state whose predictors carry the library; an empty library takes the block out.

    Raises:
        LibraryError: when an experience is for a predictor the program does not have.

    Example:
        >>> from tgrpo_dspy.library.experience import Experience
        >>> state = {"signature": {"instructions": "Answer."}}
        >>> print(inject_into_state(state, ExperienceLibrary((Experience(id="e1", text="Be brief."),)))
        ...     ["signature"]["instructions"])
        Answer.
        <BLANKLINE>
        <experiences>
        Lessons learned from earlier attempts at this task. Follow every one that applies:
        [e1] Be brief.
        </experiences>
    """
    injected = deepcopy(dict(state))
    check_targets(library, list(instructions_in(state)))
    for name, signature in _signatures(injected):
        signature["instructions"] = with_block(signature["instructions"], library.for_predictor(name))
    return injected


def _signatures(state: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    parts = {_BARE: state} if isinstance(state.get("signature"), dict) else state
    for name, part in parts.items():
        signature = part.get("signature") if isinstance(part, Mapping) else None
        if isinstance(signature, dict) and isinstance(signature.get("instructions"), str):
            yield name, signature
