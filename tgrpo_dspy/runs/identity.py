"""What a run was made of, as JSON-able data: equal in every process, different when behaviour differs.

Nothing in it depends on addresses, on hash randomisation or on DSPy's random names, and secrets are left out. Not
followed are module-level functions that a described function calls. Objects of classes that are unknown here are told
by their class only. The order of a dict says nothing.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from decimal import Decimal
from enum import Enum
from hashlib import sha256
from numbers import Integral, Real
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, get_origin

import dspy
import pydantic

from tgrpo_dspy.runs.code import code_of_function, source_of
from tgrpo_dspy.runs.hashing import canonical, fingerprint, hash_of_text, without_addresses
from tgrpo_dspy.runs.secrets import is_secret, looks_secret, no_secrets

_MAX_CHARACTERS = 10_000  # what is longer is told by its hash
_HIDDEN = "***"

_BOOKKEEPING = frozenset(("history", "callbacks"))
_OF_PREDICTORS = _BOOKKEEPING | {"stage", "traces", "train", "config", "demos"}
_WITHOUT_CODE = frozenset(("dspy", "builtins", "abc", "typing"))
# What an LM's settings say about where and how it is reached. Its answers do not depend on it.
_WHEREABOUTS = re.compile(
    r"(?:api|aws|azure|vertex)_.*|(?:default_|extra_)?headers|base_url|extra_query|(?:http_)?client|custom_llm_provider"
    r"|(?:max|num)_retries|model_list|organization|project|timeout|rollout_id"
)


def describe_program(program: dspy.Module) -> dict[str, Any]:
    """A program and everything in it that decides what it does, by the names of its modules.

    Classes are told by the source of those that are not DSPy's own, predictors by their signature, demos and settings,
    tools by their schema and function.

    Example:
        >>> described = describe_program(dspy.ChainOfThought("question -> answer", temperature=0.5))
        >>> sorted(described), described["self.predict"]["config"]
        (['dspy', 'self', 'self.predict'], {'temperature': 0.5})
    """
    return _Describer().program(program)


def describe_callable(function: Callable[..., Any]) -> dict[str, Any] | str:
    """A metric or a tool: its name, its source, and the values it was made with (closure, defaults, attributes).

    Module-level functions that it calls are not followed: a change in one of them goes unnoticed.

    Example:
        >>> def above(limit):
        ...     return lambda gold, pred: pred.score > limit
        >>> describe_callable(above(1))["closure"], describe_callable(above(1)) == describe_callable(above(2))
        ({'limit': 1}, False)
    """
    described: dict[str, Any] | str = _Describer().callable(function)
    return described


def describe_lm(lm: dspy.BaseLM | None) -> dict[str, Any] | None:
    """What decides an LM's answers: its class, its model and its settings, not where it runs or whose key pays.

    Example:
        >>> describe_lm(dspy.LM("openai/gpt-4o", api_key="secret", api_base="http://here", max_tokens=9))["settings"]
        {'max_tokens': 9}
    """
    return None if lm is None else _Describer().lm(lm)


def describe_adapter(adapter: dspy.Adapter | None) -> dict[str, Any] | str:
    """An adapter: its class and its settings; ``"default"`` for none.

    Example:
        >>> describe_adapter(dspy.ChatAdapter())["use_json_adapter_fallback"]
        True
    """
    return "default" if adapter is None else describe_object(adapter)


def describe_object(value: object) -> dict[str, Any]:
    """An object that decides something: its class, with the source of it, and its attributes.

    Example:
        >>> describe_object(dspy.Example(a=1))["class"]
        'dspy.primitives.example.Example'
    """
    return _Describer().object(value, _BOOKKEEPING)


def describe_examples(examples: Iterable[dspy.Example]) -> dict[str, Any]:
    """How many examples there are, and a hash over everything in them, in order.

    Example:
        >>> first, second = (dspy.Example(q="?", a=a).with_inputs("q") for a in "xy")
        >>> describe_examples([first, second])["count"]
        2
        >>> describe_examples([first, second]) == describe_examples([second, first])
        False
    """
    count, digest = 0, sha256()
    for example in examples:
        content = dict(example.items(include_dspy=True))
        inputs = sorted(getattr(example, "_input_keys", None) or ())
        digest.update(fingerprint([inputs, _ContentDescriber().value(content)]).encode())
        count += 1
    return {"count": count, "sha256": digest.hexdigest()}


class _Describer:
    """Describes values, one inside the other. Objects of classes it does not know are told by their class."""

    def __init__(self, modules: Mapping[int, str] | None = None, inside: set[int] | None = None) -> None:
        self._modules = modules or {}  # names of the modules of the program being described, by id
        self._inside = set() if inside is None else inside  # ids of what is being described: cycles end there

    def program(self, program: dspy.Module) -> dict[str, Any]:
        modules = list(program.named_sub_modules())
        names = {**self._modules, **{id(module): name for name, module in modules}}
        inner = type(self)(names, self._inside)
        return {"dspy": dspy.__version__} | {name: inner._module(module) for name, module in modules}

    def value(self, value: Any) -> Any:
        if value is None or type(value) in (bool, int):
            return value
        if id(value) in self._modules:
            return f"-> {self._modules[id(value)]}"
        if id(value) in self._inside:
            return "(contains itself)"
        self._inside.add(id(value))
        try:
            return _compact(self._by_kind(value))
        finally:
            self._inside.discard(id(value))

    def callable(self, function: Any) -> Any:
        """Like ``value``, but a class is told by its source too."""
        return {"class": self._class(function)} if isinstance(function, type) else self.value(function)

    def object(self, value: Any, without: frozenset[str] = frozenset()) -> dict[str, Any]:
        """An object by its class, with source, and its attributes."""
        return {"class": self._class(type(value))} | self._named(_attributes(value, without))

    def lm(self, lm: dspy.BaseLM) -> dict[str, Any]:
        engine = getattr(lm, "engine", None)
        settings = {name: v for name, v in (getattr(lm, "kwargs", None) or {}).items() if _decides_answers(name, v)}
        return {
            "class": _qualified(type(lm)),
            "model": getattr(lm, "model", None),
            "model_type": getattr(lm, "model_type", None),
            "engine": engine if engine is None or isinstance(engine, str) else _qualified(type(engine)),
            "settings": self._named(settings),
        }

    def other(self, value: Any) -> Any:
        return _qualified(type(value))

    def _by_kind(self, value: Any) -> Any:
        for kind, describe in _KINDS:
            if isinstance(value, kind):
                return describe(self, value)
        if get_origin(value) is not None:
            return _annotation(value)
        if "__wrapped__" in getattr(value, "__dict__", {}) and not isinstance(value, type):  # functools.lru_cache
            return self.callable(value.__wrapped__)
        if is_dataclass(value):
            return {"class": _qualified(type(value))} | self._named(_attributes(value))
        if callable(value):
            written_in_python = isinstance(getattr(type(value), "__call__", None), FunctionType)  # noqa: B004
            return self.object(value) if written_in_python else _shown(value)
        return self.other(value)

    def _named(self, values: Mapping[Any, Any]) -> dict[str, Any]:
        return {_key(name): _HIDDEN if self._hides(name, v) else self.value(v) for name, v in values.items()}

    def _hides(self, name: Any, value: Any) -> bool:
        return isinstance(name, str) and any(isinstance(v, str) and is_secret(name, v) for v in _items(value))

    def _module(self, module: Any) -> dict[str, Any]:
        if not isinstance(module, dspy.Predict):
            return self.object(module, _BOOKKEEPING)
        config = {name: value for name, value in module.config.items() if name != "rollout_id"}
        demos = _ContentDescriber(self._modules, self._inside).value(module.demos)
        return self.object(module, _OF_PREDICTORS) | {"config": self._named(config), "demos": demos}

    def _tool(self, tool: dspy.Tool) -> dict[str, Any]:
        function = self.callable(tool.func)
        return {"tool": tool.name, "desc": tool.desc, "args": self.value(tool.args), "function": function}

    def _signature(self, signature: Any) -> dict[str, Any]:
        return {"instructions": no_secrets.mask(signature.instructions)} | {
            "fields": [self._field(name, field) for name, field in signature.fields.items()]
        }

    def _field(self, name: str, field: Any) -> dict[str, Any]:
        told = {"name": name, "type": _annotation(field.annotation), "schema": _schema(field.annotation)}
        default = {} if field.is_required() else {"default": field.default}
        return told | self._named(default | (field.json_schema_extra or {}))

    def _function(self, function: FunctionType) -> dict[str, Any]:
        told: dict[str, Any] = {"function": f"{function.__module__}.{function.__qualname__}"}
        if not _is_known(function.__module__):
            told["code"] = code_of_function(function)
        made_with = {"closure": _closure(function), "defaults": _defaults(function)}
        return told | {what: self._named(values) for what, values in made_with.items() if values}

    def _method(self, method: MethodType) -> dict[str, Any]:
        holder = method.__self__
        described = self.callable(holder) if isinstance(holder, type | dspy.Module) else self.object(holder)
        return {"method": method.__name__, "of": described, "function": self.callable(method.__func__)}

    def _partial(self, partial: functools.partial[Any]) -> dict[str, Any]:
        return {
            "partial": self.callable(partial.func),
            "arguments": self.value(list(partial.args)),
            "keywords": self._named(partial.keywords),
        }

    def _type(self, cls: type) -> Any:
        return self._signature(cls) if issubclass(cls, dspy.Signature) else _qualified(cls)

    def _class(self, cls: type) -> Any:
        """The name of a class, with the code of it and its bases where that is not DSPy's or Python's own."""
        written = [base for base in cls.__mro__ if not _is_known(base.__module__)]
        if not written:
            return _qualified(cls)
        functions = [f for base in written for f in _written_in(base).values() if isinstance(f, FunctionType)]
        closure = {f"{f.__qualname__}.{name}": value for f in functions for name, value in _closure(f).items()}
        described = {"name": _qualified(cls), "code": {_qualified(base): self._code_of_class(base) for base in written}}
        return described | ({"closure": self._named(closure)} if closure else {})

    def _code_of_class(self, cls: type) -> str:
        source = source_of(cls, f"class {cls.__name__}")
        if source is not None:
            return hash_of_text(source)
        kept = {n: v for n, v in _written_in(cls).items() if isinstance(v, FunctionType) or not n.startswith("__")}
        return fingerprint(self._named(kept))


class _ContentDescriber(_Describer):
    """Describes data: all of it counts, so objects of unknown classes are told by what they hold or show."""

    def other(self, value: Any) -> Any:
        for export in ("tolist", "to_dict", "tobytes"):  # arrays, tables and images, whose repr does not show all
            if callable(getattr(value, export, None)):
                return {"class": _qualified(type(value)), export: self.value(getattr(value, export)())}
        kind: Any = type(value)
        if kind.__repr__ is object.__repr__ and _attributes(value):
            return {"class": _qualified(type(value))} | self._named(_attributes(value))
        return _shown(value)

    def _hides(self, name: Any, value: Any) -> bool:
        return False


_Kind = tuple[Any, Callable[[_Describer, Any], Any]]
_KINDS: tuple[_Kind, ...] = (
    (Enum, lambda d, v: {"enum": f"{_qualified(type(v))}.{v.name}", "value": d.value(v.value)}),
    (str, lambda d, v: no_secrets.mask(str(v))),
    (Integral, lambda d, v: int(v)),
    (Real, lambda d, v: float(v) if math.isfinite(v) else f"float {float(v)}"),
    ((bytes, bytearray), lambda d, v: {"bytes": len(v), "sha256": sha256(v).hexdigest()}),
    (dspy.Module, _Describer.program),
    (dspy.BaseLM, _Describer.lm),
    (dspy.Tool, _Describer._tool),
    (dspy.Parallel, lambda d, v: _qualified(type(v))),  # it counts its errors
    (dspy.Example, lambda d, v: d._named(dict(v.items(include_dspy=True)))),
    (Mapping, _Describer._named),
    ((list, tuple, deque), lambda d, v: [d.value(item) for item in v]),
    ((set, frozenset), lambda d, v: sorted((d.value(item) for item in v), key=canonical)),
    (pydantic.BaseModel, lambda d, v: {"class": _qualified(type(v))} | d._named(dict(v))),
    (FunctionType, _Describer._function),
    (MethodType, _Describer._method),
    (functools.partial, _Describer._partial),
    (BuiltinFunctionType, lambda d, v: f"{v.__module__}.{v.__qualname__}"),
    (type, lambda d, v: d._type(v)),
    ((complex, range, Decimal, PurePath, re.Pattern), lambda d, v: _shown(v)),
)


def _compact(described: Any) -> Any:
    text = canonical(described) if isinstance(described, dict | list | str) else ""
    if len(text) <= _MAX_CHARACTERS:
        return described
    return {"characters": len(text), "sha256": hash_of_text(text)}


def _attributes(value: Any, without: frozenset[str] = frozenset()) -> dict[str, Any]:
    slots = {f.name: getattr(value, f.name, None) for f in fields(value)} if is_dataclass(value) else {}
    attributes = slots | dict(getattr(value, "__dict__", {}))
    return {name: item for name, item in attributes.items() if name not in without}


def _items(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else (value,)


def _key(key: Any) -> str:
    return key if isinstance(key, str) else f"({_shown(key)})"


def _shown(value: Any) -> str:
    """The repr of a value without what differs from process to process."""
    try:
        return no_secrets.mask(without_addresses(repr(value)))
    except Exception:  # whatever a user's __repr__ raises
        return _qualified(type(value))


def _decides_answers(name: str, value: Any) -> bool:
    if value is None or _WHEREABOUTS.fullmatch(name):
        return False
    return not looks_secret(name) or all(isinstance(item, int | float) for item in _items(value))


def _annotation(annotation: Any) -> str:
    return without_addresses(inspect.formatannotation(annotation))


def _schema(annotation: Any) -> Any:
    """The JSON schema that adapters write into prompts; None for a type that has none."""
    try:
        return pydantic.TypeAdapter(annotation).json_schema()
    except Exception:  # pydantic raises many kinds of errors for types it cannot handle
        return None


def _qualified(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _is_known(module: str | None) -> bool:
    """Whether code of this module is told by its name: DSPy's by the version, Python's own does not change."""
    return (module or "").partition(".")[0] in _WITHOUT_CODE


def _closure(function: FunctionType) -> dict[str, Any]:
    """The values a function found around it when it was made."""
    held = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a variable that has no value yet
            held[name] = cell.cell_contents
    return {name: value for name, value in held.items() if name != "__class__"}


def _defaults(function: FunctionType) -> dict[str, Any]:
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    return dict(zip(names, values, strict=True)) | (function.__kwdefaults__ or {})


def _written_in(cls: type) -> dict[str, Any]:
    """What is written in a class, with the functions inside ``staticmethod``, ``classmethod`` and ``property``."""
    return {n: getattr(v, "__func__", None) or getattr(v, "fget", None) or v for n, v in vars(cls).items()}
