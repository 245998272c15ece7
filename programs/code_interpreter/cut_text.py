"""Text of any length in bounded memory: its beginning and its end."""

from __future__ import annotations


class CutText:
    """Takes text piece by piece, and gives it back with at most `limit` of its characters: the middle goes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._end_length = limit // 2
        self._start = ""
        self._end = ""
        self._length = 0

    def add(self, text: str) -> None:
        """Append a piece."""
        room = self._limit - len(self._start)
        self._length += len(text)
        self._start += text[:room]
        self._end = (self._end + text[room:])[-self._end_length :]

    def __str__(self) -> str:
        left_out = self._length - self._limit
        if left_out <= 0:
            return self._start
        kept = self._limit - self._end_length
        end = (self._start[kept:] + self._end)[-self._end_length :]
        return f"{self._start[:kept]}\n[... {left_out:,} characters left out ...]\n{end}"


def cut(text: str, limit: int) -> str:
    """A text without its middle, when it is longer than `limit`."""
    pieces = CutText(limit)
    pieces.add(text)
    return str(pieces)
