"""Markdown fences, which models put round code even where code alone is asked for."""

from __future__ import annotations

import re

_INLINE = re.compile(r"\s*(`+)(?:python3?\b|py\b)?([^`\n]*)\1\s*")
_OPENING = re.compile(r"^[ \t]*```[^\n`]*\n", re.MULTILINE)
_CLOSING = re.compile(r"^[ \t]*```[ \t]*$", re.MULTILINE)


def without_fences(text: str) -> str:
    """The code in a text: that of its fenced blocks, when it has any, else all of it.

    >>> without_fences("Here it is:\\n```python\\nprint(1)\\n```\\nThat prints 1.")
    'print(1)\\n'

    A fence inside of a triple-quoted string is part of the code.
    """
    if inline := _INLINE.fullmatch(text):
        return inline[2].strip()
    opening = _OPENING.search(text)
    if not opening or re.search(r"\"\"\"|'''", text[: opening.start()]):
        return text
    blocks = []
    while opening:
        closing = _CLOSING.search(text, opening.end())
        blocks.append(text[opening.end() : closing.start() if closing else len(text)])
        opening = _OPENING.search(text, closing.end()) if closing else None
    return "\n".join(blocks)
