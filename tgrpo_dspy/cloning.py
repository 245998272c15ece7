"""What a program is made of, and copies of it that leave its signatures and LMs as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from enum import Enum
from functools import partial
from types import MethodType
from typing import Any, Literal, TypeVar, get_args, get_origin

import dspy
import pydantic
from dspy.predict.parameter import Parameter

from tgrpo_dspy.errors import ProgramError

ProgramT = TypeVar("ProgramT", bound=dspy.Module)

# DSPy leaves them out of every copy of a module.
_NEVER_COPIED = ("history", "callbacks")


def clone(program: ProgramT, instead: Mapping[int, object] | None = None) -> ProgramT:
    """A deep copy of a program, in which an object that several parts hold is one object still.

    Args:
        program: any DSPy module; it is not changed.
        instead: what takes the place of an object in the copy, by ``id()`` of the original. None: ``shared_parts``,
            so that the copy shares its LMs, and what cannot be copied (locks, clients), with the program.

    Raises:
        ProgramError: as ``shared_parts``.
    """
    return deepcopy(program, dict(shared_parts(program) if instead is None else instead))


def shared_parts(program: dspy.Module) -> dict[int, object]:
    """What copies of a program share with it, by ``id()``: its LMs, and every object that cannot be copied.

    Finding the latter takes some time. It stays true for copies of the program, which share these objects.

    Raises:
        ProgramError: when a copy would share a predictor with the program, because its module cannot be copied.
    """
    parts = list(_reachable(program))
    shared = {id(part): part for part in parts if isinstance(part, dspy.BaseLM)}
    try:
        copied = deepcopy(program, dict(shared))
    except Exception:  # whatever a user's object raises when it is copied
        shared |= {id(part): part for part in _uncopyable(parts)}
        copied = deepcopy(program, dict(shared))
    _require_own_predictors(program, copied)
    return shared


def _require_own_predictors(program: dspy.Module, copied: dspy.Module) -> None:
    originals = {id(predictor) for _, predictor in program.named_sub_modules(dspy.Predict)}
    both = [name for name, predictor in copied.named_sub_modules(dspy.Predict) if id(predictor) in originals]
    if both:
        raise ProgramError(
            f"{type(program).__name__} cannot be copied: its copy would share the predictor {', '.join(both)} with "
            "it. A module around that predictor cannot be deep-copied; mend its __deepcopy__ or __reduce__."
        )


def held_lms(program: dspy.Module) -> list[dspy.BaseLM]:
    """Every LM object the program holds, in its predictors, tools and containers or as an attribute, each once."""
    return [part for part in _reachable(program) if isinstance(part, dspy.BaseLM)]


def _uncopyable(parts: list[object]) -> list[object]:
    """The parts that cannot be copied even while all the others are left as they are."""
    memo = {id(part): part for part in parts}

    def copies(part: object) -> bool:
        del memo[id(part)]
        try:
            deepcopy(part, memo)
        except Exception:  # whatever a user's object raises when it is copied
            return False
        finally:
            memo[id(part)] = part
        return True

    return [part for part in parts if not copies(part)]


def _reachable(program: dspy.Module) -> Iterator[object]:
    """Every object a program is built of, itself first, each once."""
    found: dict[int, object] = {}
    waiting: list[object] = [program]
    while waiting:
        part = waiting.pop()
        if id(part) not in found:
            found[id(part)] = part
            yield part
            waiting.extend(_parts(part))


def _parts(value: object) -> Iterable[object]:
    """What an object is built of, where that is a program's business: inside a client or an index it is not."""
    if isinstance(value, dspy.Module):
        return [part for name, part in vars(value).items() if name not in _NEVER_COPIED]
    if isinstance(value, pydantic.BaseModel):  # a dspy.Tool is one
        return vars(value).values()
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if isinstance(value, MethodType):
        return (value.__self__,)
    if isinstance(value, partial):
        return (value.func, value.args, value.keywords)
    return ()


def require_predictors(program: dspy.Module) -> None:
    """Raise ``ProgramError`` when the program has no predictor that could carry an experience."""
    if not isinstance(program, dspy.Module):
        raise ProgramError(f"student must be a dspy.Module, got {type(program).__name__} {program!r}")
    if not program.named_predictors():
        raise ProgramError(
            f"{type(program).__name__} has no predictor that could carry an experience: {_why_none(program)}"
        )


def _why_none(program: dspy.Module) -> str:
    if frozen := frozen_parts(program):
        return (
            f"its part {', '.join(frozen)} was compiled before and is frozen (_compiled is True). "
            "Set _compiled to False to let it learn again, or compile the part by itself."
        )
    if any(program.named_sub_modules(dspy.Flex)):
        return (
            "a dspy.Flex is source code that runs in an interpreter, and its code is not visible as predictors. "
            "Write the same steps as a dspy.Module with dspy.Predict attributes, or use dspy.GEPA, which rewrites code."
        )
    return (
        "named_predictors() is empty. Make a dspy.Predict, dspy.ChainOfThought or another DSPy module an attribute of "
        "the program, or an element of a list, tuple or dict that is one (deeper down DSPy does not find it)."
    )


def frozen_parts(program: dspy.Module) -> list[str]:
    """The outermost submodules that were compiled before: DSPy hides their predictors, so they are left alone.

    A bare predictor stays visible to DSPy, whatever its mark says, and so does the program itself.

    Example:
        >>> class Two(dspy.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.draft, self.polish = dspy.ChainOfThought("text -> draft"), dspy.Predict("draft -> text")
        >>> program = Two()
        >>> program.draft._compiled = True
        >>> frozen_parts(program), [name for name, _ in program.named_predictors()]
        (['draft'], ['polish'])
    """
    names: list[str] = []
    for name, module in program.named_sub_modules(dspy.Module):
        frozen = module is not program and module._compiled and not isinstance(module, Parameter)
        if frozen and not name.startswith(tuple(f"{outer}{step}" for outer in names for step in ".[")):
            names.append(name)
    return [name.removeprefix("self.") for name in names]


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
