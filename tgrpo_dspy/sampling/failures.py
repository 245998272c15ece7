"""Errors of a rollout as records: their kind decides whether they are scored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspy.utils.callback import BaseCallback
from dspy.utils.exceptions import (
    AdapterParseError,
    ContextWindowExceededError,
    LMAuthError,
    LMBillingError,
    LMError,
)

from tgrpo_dspy.records import Failure, FailureKind
from tgrpo_dspy.sampling.executor import DeadlinePassed
from tgrpo_dspy.sampling.traces import render_value
from tgrpo_dspy.text import shorten

_MAX_MESSAGE_CHARS = 2000
_SCORED: tuple[FailureKind, ...] = ("parse", "program", "timeout", "context")


def is_scored(failure: Failure) -> bool:
    """Whether a failure says something about the program, so that it gets the failure reward."""
    return failure.kind in _SCORED


def is_permanent(error: Exception) -> bool:
    """Whether an LM will go on failing: no key, no credit."""
    return isinstance(error, LMAuthError | LMBillingError)


class ParseWatcher(BaseCallback):
    """Remembers the answers of a rollout that could not be parsed, also those that an adapter asked again for."""

    def __init__(self) -> None:
        self.errors: list[AdapterParseError] = []

    def on_adapter_parse_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        if isinstance(exception, AdapterParseError):
            self.errors.append(exception)


def failure_of(error: Exception, watcher: ParseWatcher | None = None, kind: FailureKind | None = None) -> Failure:
    """The record of an error, with what an answer in the wrong form did hold.

    Args:
        error: what the program or the metric raised.
        watcher: saw the parse errors of the rollout; an adapter that asks again raises the last one only.
        kind: the kind, where it is known.
    """
    parse = _fullest(error, watcher) if isinstance(error, AdapterParseError) else None
    partial = _partial(parse) if parse is not None else {}
    wanted = parse.signature.output_fields if parse is not None else ()
    return Failure(
        kind=kind or _kind(error),
        error=type(error).__name__,
        message=render_value(error, _MAX_MESSAGE_CHARS),
        completion=shorten(str(parse.lm_response), _MAX_MESSAGE_CHARS) if parse is not None else "",
        missing=tuple(name for name in wanted if name not in partial),
        partial=partial,
    )


def _kind(error: Exception) -> FailureKind:
    if isinstance(error, AdapterParseError):
        return "parse"
    if isinstance(error, DeadlinePassed):
        return "timeout"
    if isinstance(error, ContextWindowExceededError):
        return "context"
    return "lm" if isinstance(error, LMError) else "program"


def _fullest(error: AdapterParseError, watcher: ParseWatcher | None) -> AdapterParseError:
    """Of the failed parses of the same call, the one that found the most fields."""
    fields = list(error.signature.output_fields)
    alike = [e for e in (watcher.errors if watcher else ()) if list(e.signature.output_fields) == fields]
    return max([error, *reversed(alike)], key=lambda e: len(_partial(e)))


def _partial(error: AdapterParseError) -> dict[str, str]:
    found = error.parsed_result
    if not isinstance(found, Mapping):
        return {}
    return {name: render_value(found[name]) for name in error.signature.output_fields if found.get(name) is not None}
