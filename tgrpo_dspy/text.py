"""Texts that can be written, sent and read."""

from __future__ import annotations


def whole(text: str) -> str:
    """The text with a question mark for every half of a character (a lone surrogate), which no file or model takes.

    Example:
        >>> whole("cut \\ud83d off")
        'cut ? off'
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def shorten(text: str, limit: int) -> str:
    """Cut the middle out of a text longer than ``limit`` characters, saying how much is gone."""
    if len(text) <= limit:
        return text
    keep = max(0, limit - 15)
    head, tail = keep - keep // 2, keep // 2
    return f"{text[:head]} …[{len(text) - keep} more]… {text[len(text) - tail :]}"
