"""Listeners that follow a whole call of ``compile``: what it was given, and what it returned or raised."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, wraps
from importlib import import_module
from inspect import iscoroutinefunction
from typing import Any, Protocol, TypeVar, cast

import dspy

from tgrpo_dspy.cloning import held_lms
from tgrpo_dspy.records import CompileReport
from tgrpo_dspy.runs.events import Event, Listener
from tgrpo_dspy.runs.secrets import Secrets

logger = logging.getLogger(__name__)

Method = TypeVar("Method", bound=Callable[..., Any])


class Optimizer(Protocol):
    """What is told of the optimizer."""

    metric: Callable[..., Any]
    reflection_lm: dspy.BaseLM | None
    report: CompileReport | None

    def get_params(self) -> dict[str, Any]:
        """Its settings."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of ``compile``.

    Args:
        optimizer: whose it is.
        student: the program to be compiled.
        arguments: the other arguments that were given, by name.
    """

    optimizer: Optimizer
    student: dspy.Module
    arguments: Mapping[str, Any]

    @cached_property
    def lms(self) -> list[dspy.BaseLM]:
        """The LMs the student may run on."""
        default = dspy.settings.lm
        return [*held_lms(self.student), *([default] if isinstance(default, dspy.BaseLM) else [])]

    @cached_property
    def secrets(self) -> Secrets:
        """What must not leave the process."""
        reflection_lm = self.optimizer.reflection_lm
        return Secrets.of([*self.lms, *([reflection_lm] if reflection_lm else [])])

    def text(self, value: object, limit: int | None = None) -> str:
        """A value as text that every store takes: without secrets and half characters, cut at the limit."""
        text = self.secrets.mask(str(value)).encode("utf-8", "backslashreplace").decode("utf-8")
        return text if limit is None or len(text) <= limit else f"{text[: limit - 1]}…"


class Follower(ABC):
    """Is told of one call of ``compile``."""

    @abstractmethod
    def __call__(self, event: Event) -> None:
        """Take note of an event."""

    @abstractmethod
    def end(self, compiled: dspy.Module | None, error: BaseException | None) -> None:
        """Take note of what the call returns or raises, in the thread and context in which it was made."""


class Tracker(ABC):
    """A listener that follows every call of ``compile`` it is given to, from beginning to end.

    Like any listener it never harms the run: when it raises, that is logged, and it hears no more of the call's events.
    """

    @abstractmethod
    def follow(self, call: Call) -> Follower:
        """Begin to follow a call, in the thread and context in which it is made."""

    def __call__(self, event: Event) -> None:  # noqa: B027
        """Do nothing: this event belongs to no call of ``compile``."""


def tracked(compile: Method) -> Method:
    """Let the trackers among the ``listeners`` of a ``compile`` or ``acompile`` follow its calls."""
    if iscoroutinefunction(compile):

        @wraps(compile)
        async def acompile(optimizer: Optimizer, student: dspy.Module, **arguments: Any) -> Any:
            if isinstance(arguments.get("listeners"), _Followed):  # the caller is a compile that is followed
                return await compile(optimizer, student, **arguments)
            with _followed(optimizer, student, arguments) as (told, returns):
                return returns(await compile(optimizer, student, **told))

        return cast(Method, acompile)

    @wraps(compile)
    def compile_(optimizer: Optimizer, student: dspy.Module, **arguments: Any) -> Any:
        with _followed(optimizer, student, arguments) as (told, returns):
            return returns(compile(optimizer, student, **told))

    return cast(Method, compile_)


def needs(module: str, extra: str) -> Any:
    """A module of an optional package.

    Raises:
        ImportError: when it cannot be imported; says how to install it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"{error}; it comes with the extra {extra}: pip install 'tgrpo_dspy[{extra}]'") from error


class _Followed(tuple[Listener, ...]):
    """The listeners of a call, with a follower in the place of every tracker."""


@contextmanager
def _followed(
    optimizer: Optimizer, student: dspy.Module, arguments: Mapping[str, Any]
) -> Iterator[tuple[dict[str, Any], Callable[[Any], Any]]]:
    """The arguments with followers among the listeners, and what is to be called with the compiled program."""
    from tgrpo_dspy.views.mlflow import autologging  # a tracker itself

    call = Call(optimizer=optimizer, student=student, arguments=arguments)
    given = [*arguments.get("listeners", ())]
    with _harmless("mlflow.dspy.autolog"):
        given += autologging(given)
    listeners = _Followed(listener for one in given for listener in _follow(one, call))

    def end(compiled: Any, error: BaseException | None = None) -> Any:
        for listener in listeners:
            if isinstance(listener, Follower):
                with _harmless(listener):
                    listener.end(compiled, error)
        return compiled

    try:
        yield {**arguments, "listeners": listeners}, end
    except BaseException as error:
        end(None, error)
        raise


def _follow(listener: Listener, call: Call) -> list[Listener]:
    """What is told of the call in the listener's place; nothing when a tracker cannot begin."""
    if not isinstance(listener, Tracker):
        return [listener]
    with _harmless(listener):
        return [listener.follow(call)]
    return []


@contextmanager
def _harmless(what: object) -> Iterator[None]:
    try:
        yield
    except Exception:  # whatever a store or an exporter raises; the run is worth more
        logger.exception("%s failed to follow the run", what)
