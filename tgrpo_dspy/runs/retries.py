"""Trying again what failed for a passing reason, after a wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import anyio
import dspy

T = TypeVar("T")

_LONGEST_WAIT = 60.0


@dataclass(frozen=True, slots=True)
class Retries:
    """How often, and after how long.

    Args:
        count: retries after the first attempt, 0 or more.
        delay: seconds before the first; each later one waits twice as long, a minute at most, or as long as the
            provider asks for.
    """

    count: int
    delay: float

    async def run(self, attempt: Callable[[], Awaitable[tuple[T, Exception | None]]]) -> tuple[T, Exception | None]:
        """What the first attempt without an error gave, or the last attempt with its error.

        An attempt that has begun is finished, also after Ctrl-C.
        """
        number = 0
        while True:
            with anyio.CancelScope(shield=True):
                result, error = await attempt()
            if error is None or not await self._wait(number, error):
                return result, error
            number += 1

    async def _wait(self, attempt: int, error: Exception) -> bool:
        """Whether to try again after ``attempt`` (from 0) failed with ``error``; True only when the wait is over."""
        if attempt >= self.count or not dspy.is_retryable_lm_error(error):
            return False
        asked = getattr(error, "retry_after", None)
        seconds = asked if isinstance(asked, int | float) and self.delay else self.delay * 2**attempt
        await anyio.sleep(min(max(seconds, 0.0), _LONGEST_WAIT))
        return True
