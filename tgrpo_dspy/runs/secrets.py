"""Secret values, and texts without them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import dspy
import pydantic

T = TypeVar("T")

_MASK = "***"
_SHORTEST = 8  # what is shorter may be any word, and masking it would spoil texts
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SURELY = re.compile(
    r"secret|passw(?:or)?d|passphrase|credential|authorization|cookie|api[_-]?key|(?:access|auth)[_-]?(?:key|token)",
    re.IGNORECASE,
)
_MAYBE = frozenset(("key", "keys", "token", "auth"))
# Well-known shapes, each with a text that is in all of its kind, so that most texts need no search by pattern.
_SHAPES = [
    (hint, re.compile(pattern))
    for hint, pattern in (
        # A digit or a capital: "sk-learn-compatible-estimators" is no key, "bearer instruments" no header.
        ("sk-", r"(?<![A-Za-z0-9])sk-(?=[\w-]*[0-9A-Z])[\w-]{16,}"),
        ("earer", r"\b[Bb]earer\s+(?=[\w.~+/=-]*[0-9]|[\w.~+/=-]{20})[\w.~+/=-]{8,}"),
        ("AKIA", r"\bAKIA[0-9A-Z]{16}\b"),
        ("gh", r"\bgh[opsru]_[A-Za-z0-9]{20,}"),
        ("github_pat_", r"\bgithub_pat_\w{20,}"),
        ("hf_", r"\bhf_[A-Za-z0-9]{20,}"),
        ("gsk_", r"\bgsk_[A-Za-z0-9]{20,}"),
        ("AIza", r"\bAIza[\w-]{30,}"),
        ("xox", r"\bxox[abprs]-[\w-]{10,}"),
        ("eyJ", r"\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+"),  # a JSON web token
        ("PRIVATE KEY", r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]+?-----END [A-Z ]*PRIVATE KEY-----"),
        ("://", r"(?<=://)[^\s/@:]+:[^\s/@]+(?=@)"),  # user and password in a URL
    )
]
_SCHEME = re.compile(r"(?i)(?:bearer|basic|token|apikey)\s+(\S+)")
_RANDOM = re.compile(r"(?=\S*\d)\S{8,}")
_NOTHING = re.compile(r"(?!)")


def looks_secret(name: str) -> bool:
    """Whether something of this name is likely to be a secret.

    Example:
        >>> [name for name in ("OPENAI_API_KEY", "x-api-key", "max_tokens", "keyboard") if looks_secret(name)]
        ['OPENAI_API_KEY', 'x-api-key']
    """
    return bool(_SURELY.search(name)) or not _MAYBE.isdisjoint(word.lower() for word in _WORD.findall(name))


def is_secret(name: str, text: str) -> bool:
    """Whether a text is a secret, by its name; under names that say little (``key``) by its looks as well.

    Example:
        >>> is_secret("key", "4f1c-99a0"), is_secret("sort_key", "last_name"), is_secret("password", "hunter")
        (True, False, True)
    """
    return bool(_SURELY.search(name)) or (looks_secret(name) and bool(_RANDOM.fullmatch(text)))


@dataclass(frozen=True, repr=False)
class Secrets:
    """Secret values to keep out of files, events and messages; ``Secrets.of`` collects them.

    What has the shape of a well-known kind of secret (``sk-…``, ``Bearer …``, a password in a URL) is masked too.

    Example:
        >>> secrets = Secrets.of([dspy.LM("openai/gpt-4o", api_key="correct horse battery")], environ={})
        >>> secrets, secrets.mask("401: the key 'correct horse battery' was refused")
        (Secrets(1 values), "401: the key '***' was refused")
    """

    values: frozenset[str] = frozenset()

    @classmethod
    def of(cls, lms: Iterable[dspy.BaseLM], environ: Mapping[str, str] | None = None) -> Secrets:
        """The secrets in the settings of LMs and in the environment (``os.environ`` when it is not given)."""
        named = [pair for lm in lms for pair in _settings(lm)]
        named += [(k, v) for k, v in (os.environ if environ is None else environ).items() if not _harmless(k, v)]
        values = (value for name, text in named for value in _secrets(name, text))
        return cls(frozenset(value for value in values if len(value) >= _SHORTEST and _MASK not in value))

    def mask(self, text: str) -> str:
        """The text with ``***`` for every secret in it."""
        masked = self._known.sub(_MASK, text)
        for hint, pattern in _SHAPES:
            masked = pattern.sub(_MASK, masked) if hint in masked else masked
        # Again, for what a replacement has put together. It ends: a secret is longer than its mask.
        return text if masked == text else self.mask(masked)

    def mask_in(self, value: T) -> T:
        """The value with every text in it masked; the same object when there is nothing to mask.

        Texts are looked for in lists, tuples, dicts (keys too) and frozen dataclasses.

        Example:
            >>> no_secrets.mask_in({"error": ["sent AKIAABCDEFGHIJKLMNOP"], "count": 1})
            {'error': ['sent ***'], 'count': 1}
        """
        masked = self._masked(value)
        return value if masked is None else masked  # type: ignore[return-value]

    def _masked(self, value: object) -> object:
        """A masked copy, or None when nothing is to be masked."""
        if isinstance(value, str):
            masked = self.mask(value)
            return None if masked == value else masked
        if isinstance(value, Mapping):
            pairs = [(k, v, self._masked(k), self._masked(v)) for k, v in value.items()]
            if all(key is None and item is None for _, _, key, item in pairs):
                return None
            return {k if key is None else key: v if item is None else item for k, v, key, item in pairs}
        if isinstance(value, list | tuple):
            return self._masked_items(value)
        if is_dataclass(value) and not isinstance(value, type):
            items = ((name, self._masked(getattr(value, name))) for name in _field_names(type(value)))
            changed = {name: item for name, item in items if item is not None}
            return replace(value, **changed) if changed else None
        return None

    def _masked_items(self, value: list[object] | tuple[object, ...]) -> object:
        items = [self._masked(item) for item in value]
        if all(item is None for item in items):
            return None
        merged = [old if new is None else new for old, new in zip(value, items, strict=True)]
        if isinstance(value, list):
            return merged
        return type(value)._make(merged) if hasattr(value, "_make") else tuple(merged)

    @cached_property
    def _known(self) -> re.Pattern[str]:
        written = {form for value in self.values for form in _forms(value) if len(form) > len(_MASK)}
        longest_first = sorted(written, key=lambda form: (-len(form), form))
        return re.compile("|".join(map(re.escape, longest_first))) if written else _NOTHING

    def __repr__(self) -> str:
        return f"Secrets({len(self.values)} values)"


def _settings(lm: dspy.BaseLM) -> Iterator[tuple[str, str]]:
    """Every named text in an LM and in the engine it was given."""
    for holder in (lm, getattr(lm, "engine", None), getattr(lm, "_async_engine_spec", None)):
        for name, value in getattr(holder, "__dict__", {}).items():
            if name != "history":
                yield from _texts(name, value)


def _texts(name: str, value: object, depth: int = 5) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, pydantic.SecretStr):
        yield name, value.get_secret_value()
    elif depth and isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(str(key), item, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for item in value:
            yield from _texts(name, item, depth - 1)


def _secrets(name: str, text: str) -> Iterator[str]:
    """The secrets in a named text: all of it and what follows ``Bearer``, or those in a URL."""
    if looks_secret(name):
        yield from (text.strip(), *_SCHEME.findall(text))
    if "://" in text:
        yield from _secrets_in_url(text.strip())


def _secrets_in_url(text: str) -> Iterator[str]:
    try:
        url = urlsplit(text)
    except ValueError:  # an address that is none
        return
    for part in (url.password or url.username or "", *(v for k, v in parse_qsl(url.query) if looks_secret(k))):
        yield from (part, unquote(part))


def _forms(value: str) -> set[str]:
    """The ways a value is written: as it is, in JSON, in a repr, in a URL."""
    return {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]} | {
        quote(value, safe=safe, errors="replace") for safe in ("", "/")
    }


def _harmless(name: str, value: str) -> bool:
    """Whether a variable of the environment holds a number or a path, whatever its name says."""
    try:
        float(value)
    except ValueError:
        return looks_secret(name) and _is_path(value)
    return True


def _is_path(text: str) -> bool:
    if re.match(r"~/|\.{1,2}/|[A-Za-z]:\\", text):
        return True
    # A random value may start with a slash as well, but then there is no such folder.
    first = text[1:].partition("/")[0]
    return text.startswith("/") and bool(first) and "\0" not in first and Path("/", first[:100]).exists()


no_secrets = Secrets()
"""Masks only what has the shape of a well-known kind of secret."""


@cache
def _field_names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.init)
