"""Hashes of data and texts that are the same in every process."""

from __future__ import annotations

import json
import re
from hashlib import sha256

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


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


def without_addresses(text: str) -> str:
    """A repr without what differs from process to process.

    Example:
        >>> without_addresses("<Client at 0x7f30>")
        '<Client>'
    """
    return _ADDRESS.sub("", text)
