"""What a program is made of, and copies of it that leave its signatures and LMs as they are."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from enum import Enum
from typing import Any, Literal, TypeVar, get_args, get_origin

import dspy

from tgrpo_dspy.errors import ProgramError

ProgramT = TypeVar("ProgramT", bound=dspy.Module)


def clone(program: ProgramT, lms: dict[int, dspy.BaseLM] | None = None) -> ProgramT:
    """A deep copy of a program that shares its LM objects, or has them replaced.

    Args:
        program: any DSPy module; parts that cannot be copied (locks, clients) are shared, as in ``Module.deepcopy``.
        lms: replacements by ``id()`` of the original LM. An LM that is not named is shared.
    """
    memo = {id(lm): lm for lm in held_lms(program)} | (lms or {})
    try:
        return deepcopy(program, dict(memo))
    except Exception:  # whatever a user's attribute raises when it cannot be copied
        copied: ProgramT = program.deepcopy()
        for (_, original), (_, predictor) in zip(program.named_predictors(), copied.named_predictors(), strict=True):
            predictor.lm = memo.get(id(original.lm), original.lm)
        return copied


def held_lms(program: dspy.Module) -> list[dspy.BaseLM]:
    """Every LM object the program holds, in its predictors or as an attribute, each once."""
    found: dict[int, dspy.BaseLM] = {}
    for _, module in program.named_sub_modules():
        for value in vars(module).values():
            found.update((id(item), item) for item in _items(value) if isinstance(item, dspy.BaseLM))
    return list(found.values())


def _items(value: object) -> Iterable[object]:
    if isinstance(value, list | tuple):
        return value
    return value.values() if isinstance(value, dict) else (value,)


def require_predictors(program: dspy.Module) -> None:
    """Raise ``ProgramError`` when the program has no predictor that could carry an experience."""
    if not isinstance(program, dspy.Module):
        raise ProgramError(f"student must be a dspy.Module, got {type(program).__name__} {program!r}")
    if not program.named_predictors():
        raise ProgramError(
            f"{type(program).__name__} has no predictor that could carry an experience: named_predictors() is empty. "
            "Make a dspy.Predict, dspy.ChainOfThought or another DSPy module an attribute of the program "
            "(submodules that were compiled before are frozen and do not count)."
        )


def choices(program: dspy.Module) -> list[str]:
    """The values a program's output fields choose from, by a ``Literal`` or an enum in their annotation.

    Example:
        >>> from typing import Literal
        >>> class Sort(dspy.Signature):
        ...     text: str = dspy.InputField()
        ...     kind: Literal["bill", "letter"] = dspy.OutputField()
        >>> choices(dspy.Predict(Sort))
        ['bill', 'letter']
    """
    fields = (f for _, predictor in program.named_predictors() for f in predictor.signature.output_fields.values())
    return [str(value) for field in fields for value in _choices(field.annotation)]


def _choices(annotation: Any) -> list[Any]:
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [member.value for member in annotation]
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [value for part in get_args(annotation) for value in _choices(part)]


def frozen_parts(program: dspy.Module) -> list[str]:
    """Dotted names of the outermost parts of a program that were compiled before, which no optimizer touches."""
    frozen = [
        name.removeprefix("self.")
        for name, module in program.named_sub_modules()
        if module is not program and getattr(module, "_compiled", False)
    ]
    return [name for name in frozen if not any(name.startswith(f"{outer}.") for outer in frozen)]
