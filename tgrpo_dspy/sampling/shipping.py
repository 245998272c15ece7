"""Objects as bytes for other processes. Secrets stay behind: they are read there from the environment."""

from __future__ import annotations

import functools
import inspect
import io
import os
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any

import cloudpickle
import dspy

from tgrpo_dspy.errors import ConfigurationError
from tgrpo_dspy.runs.secrets import Secrets, is_secret

_NEVER_SENT = ("history", "_engine_lock", "_engine_store")


class Shipper:
    """Packs objects so that no secret is among the bytes.

    A secret is a key in the settings of an LM, or what looks like one in a variable of the environment. A text that
    holds one travels with the name of the variable in its place. LMs travel without their history.
    """

    def __init__(self) -> None:
        self._of_lms: frozenset[str] = frozenset()
        self._variables = _variables(filter(_is_no_word, Secrets.of([]).values))

    def pack(self, parts: Mapping[str, Any]) -> bytes:
        """The parts as bytes; what several of them hold is one object in the copies too.

        Args:
            parts: objects, by the names that an error calls them.

        Raises:
            ConfigurationError: when one cannot be pickled, or holds a key that is in no variable of the environment.
        """
        try:
            packed, lms = _pickled(parts, self._variables)
        except Exception as error:  # whatever a user's object raises when it is pickled
            raise ConfigurationError(_cannot_be_sent(parts, error)) from error
        new = Secrets.of(lms, environ={}).values - self._of_lms
        if new:
            self._of_lms |= new
            self._variables |= _variables(new)
            return self.pack(parts)
        for secret in self._of_lms | self._variables.keys():
            if secret.encode("utf-8", "surrogatepass") in packed:
                raise ConfigurationError(_key_in_code(lms, secret))
        return packed


def unpack(packed: bytes) -> dict[str, Any]:
    """What ``Shipper.pack`` packed.

    Raises:
        ConfigurationError: when a variable that a text was packed with is not set here.
        Exception: whatever loading the objects raises, such as ``ModuleNotFoundError``.
    """
    parts: dict[str, Any] = _Unpickler(io.BytesIO(packed)).load()
    return parts


def _is_no_word(secret: str) -> bool:
    """Whether a secret of the environment would not be found in an ordinary text by accident."""
    return is_secret("key", secret)


def _variables(secrets: Iterable[str]) -> dict[str, str]:
    """The names of the variables of the environment that hold these secrets, by the secret."""
    names = {value.strip(): name for name, value in sorted(os.environ.items())}
    return {secret: names[secret] for secret in secrets if secret in names}


def _pickled(parts: Any, variables: Mapping[str, str]) -> tuple[bytes, list[dspy.BaseLM]]:
    file = io.BytesIO()
    pickler = _Pickler(file, variables)
    pickler.dump(parts)
    return file.getvalue(), pickler.lms


class _Pickler(cloudpickle.Pickler):
    """Pickles texts with the names of variables in place of their values, and notes every LM."""

    def __init__(self, file: io.BytesIO, variables: Mapping[str, str]) -> None:
        super().__init__(file)
        self.lms: list[dspy.BaseLM] = []
        self._variables = variables
        longest_first = sorted(variables, key=len, reverse=True)
        self._secret = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if variables else None

    def persistent_id(self, value: Any) -> Any:
        if self._secret is None or not isinstance(value, str) or not self._secret.search(value):
            return None
        # Every second part is a secret.
        return [self._variables[part] if i % 2 else part for i, part in enumerate(self._secret.split(value))]

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, dspy.BaseLM):
            return super().reducer_override(value)
        self.lms.append(value)
        make, arguments, state, *rest = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        if isinstance(state, dict):
            state = {**state, "history": []}
        return (make, arguments, state, *rest)


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, parts: list[str]) -> str:
        return "".join(_variable(part) if i % 2 else part for i, part in enumerate(parts))


def _variable(name: str) -> str:
    try:
        return os.environ[name].strip()
    except KeyError as error:
        raise ConfigurationError(
            f"the environment variable {name} is not set in a process that runs the program. Keys are never sent "
            "there: set it wherever the program is to run, before its processes are started."
        ) from error


def _key_in_code(lms: list[dspy.BaseLM], secret: str) -> str:
    holders = [(lm.model, name) for lm in lms for name, value in lm.kwargs.items() if secret in str(value)]
    where = f"LM {holders[0][0]!r} in {holders[0][1]!r}" if holders else "the program, the metric or the data"
    return (
        f"a key in {where} cannot be sent to other processes: keys are taken from their environment, and this one is "
        "in no variable of this process' environment. Set it as a variable here and wherever the program is to run, "
        "and leave it out in the code or read it with os.environ[…]. A placeholder for a server that wants no key is "
        "no secret when it is shorter than eight characters."
    )


def _cannot_be_sent(parts: Mapping[str, Any], error: Exception) -> str:
    name, value = _culprit(parts)
    reason = f"{name} ({type(value).__qualname__}) cannot be sent to other processes: {error}. "
    if isinstance(value, dspy.BaseLM) or ".engine" in name:
        return reason + "A model that answers inside this process has to be served, and named by its api_base."
    return reason + (
        "Make it where it is used (in forward, or in a function that keeps it), give its class a __reduce__, or use "
        "executor='threads'."
    )


def _culprit(parts: Mapping[str, Any]) -> tuple[str, Any]:
    """The innermost part that cannot be pickled, with its name."""
    name, value = "the program", parts
    inside, seen = iter(parts.items()), set()
    while True:
        broken = next(((n, v) for n, v in inside if id(v) not in seen and not _can_be_pickled(v)), None)
        if broken is None:
            return name, value
        name, value = broken
        seen.add(id(value))
        inside = _inside(name, value)


def _inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"{name}[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"{name}[{index}]", item) for index, item in enumerate(value))
    elif isinstance(value, FunctionType):
        used = inspect.getclosurevars(value)
        yield from ((f"{variable}, which {name} uses", v) for variable, v in {**used.globals, **used.nonlocals}.items())
    elif isinstance(value, MethodType):
        yield f"{name}.__self__", value.__self__
    elif isinstance(value, functools.partial):
        yield from ((f"{name}.{part}", getattr(value, part)) for part in ("func", "args", "keywords"))
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        held = {attribute: item for attribute, item in vars(value).items() if attribute not in _NEVER_SENT}
        yield from ((f"{name}.{'engine' if a == '_engine_spec' else a}", item) for a, item in held.items())


def _can_be_pickled(value: Any) -> bool:
    try:
        _pickled(value, {})
    except Exception:  # whatever a user's object raises when it is pickled
        return False
    return True
