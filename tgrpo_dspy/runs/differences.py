"""What is not the same in two descriptions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tgrpo_dspy.runs.hashing import canonical

_SHOWN = 48  # characters of a value in a message


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is not the same in two descriptions, one line each, in the order of their paths.

    Example:
        >>> differences({"settings": {"group_size": 5}, "seed": 0}, {"settings": {"group_size": 3}, "valset": "x"})
        ['seed: removed (was 0)', 'settings.group_size: 5 -> 3', 'valset: added ("x")']
    """
    return list(_differences("", json.loads(canonical(dict(before))), json.loads(canonical(dict(now)))))


def _differences(path: str, before: Any, now: Any) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            at = f"{path}.{key}" if path else key
            if key not in before:
                yield f"{at}: added ({_short(_text(now[key]))})"
            elif key not in now:
                yield f"{at}: removed (was {_short(_text(before[key]))})"
            else:
                yield from _differences(at, before[key], now[key])
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from _differences(f"{path}[{index}]", old, new)
    elif canonical(before) != canonical(now):
        old, new = _text(before), _text(now)
        same = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        start = max(0, same - _SHOWN // 3)  # long texts are shown from where they differ
        yield f"{path}: {_short(old, start)} -> {_short(new, start)}"


def _text(data: Any) -> str:
    text = json.dumps(data, sort_keys=True, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate could not be printed


def _short(text: str, start: int = 0) -> str:
    if len(text) <= _SHOWN:
        return text
    start = min(start, len(text) - _SHOWN)
    return "…" * (start > 0) + text[start : start + _SHOWN] + "…" * (start + _SHOWN < len(text))
