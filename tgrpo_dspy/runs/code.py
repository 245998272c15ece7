"""What a function or a class was written as: a hash of its source, or of its compiled code where there is none."""

from __future__ import annotations

import functools
import inspect
from types import CodeType, FunctionType
from typing import Any

from tgrpo_dspy.runs.hashing import canonical, fingerprint, hash_of_text


def code_of_function(function: FunctionType) -> str:
    """Hash of the source of a function, or of its byte code where the source cannot be had."""
    code = function.__code__
    source = source_of(code, f"def {code.co_name}")  # not of a lambda, around which a line may hold anything else
    return hash_of_text(source) if source is not None else fingerprint(_compiled(code))


@functools.lru_cache(maxsize=256)
def source_of(written: type | CodeType, start: str) -> str | None:
    """The source of a class or function, where it can be had and is the right one."""
    try:
        source = inspect.getsource(written)
    except (OSError, TypeError, SyntaxError):
        return None
    return source if start in source else None  # what runs under the name of a file need not come from there


def _compiled(code: CodeType) -> list[Any]:
    return [code.co_code.hex(), code.co_names, code.co_varnames, [_constant(value) for value in code.co_consts]]


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return _compiled(value)
    if isinstance(value, tuple):
        return [_constant(item) for item in value]
    if isinstance(value, frozenset):
        return sorted((_constant(item) for item in value), key=canonical)
    return repr(value)
