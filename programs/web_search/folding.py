"""Texts that differ only in how they are written, made the same."""

from __future__ import annotations

import unicodedata


def fold(text: str) -> str:
    """The text without case and diacritics.

    Example:
        >>> fold("CÔTE d'Ivoire")
        "cote d'ivoire"
    """
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter)).casefold()
