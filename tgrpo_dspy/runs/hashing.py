"""Hashes of data and texts that are the same in every process."""

from __future__ import annotations

import json
from hashlib import sha256


def fingerprint(data: object) -> str:
    """The sha256 of JSON-able data, whatever the order of its keys.

    Example:
        >>> fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": [2], "a": 1}) != fingerprint({"a": 1, "b": [3]})
        True
    """
    return hash_of_text(canonical(data))


def canonical(data: object) -> str:
    """JSON-able data as text, whatever the order of its keys."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def hash_of_text(text: str) -> str:
    """The sha256 of a text, lone surrogates allowed."""
    return sha256(text.encode()).hexdigest()
