"""What one call of an interpreter may use."""

from __future__ import annotations

import math
from dataclasses import dataclass

MIN_MEMORY_MB = 64
"""Below this CPython itself does not start."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one call may use. A program that wants more is stopped and told so.

    Args:
        seconds: wall-clock time of the program, above 0; starting the interpreter does not count.
        memory_mb: megabytes (2**20 bytes) of memory, 64 or more; where programs may start others, of each process.
        disk_mb: megabytes of files in `/tmp`, 1 or more; they are kept in memory and are gone after the call.
        processes: processes and threads at once, the program itself among them, 1 or more.
        output_chars: characters of output that are handed back, 100 or more; longer output loses its middle.

    Raises:
        ValueError: when a value is out of range.
    """

    seconds: float = 10.0
    memory_mb: int = 512
    disk_mb: int = 64
    processes: int = 8
    output_chars: int = 10_000

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise ValueError(f"seconds={self.seconds!r} cannot work: use a number above 0")
        for name, least in (("memory_mb", MIN_MEMORY_MB), ("disk_mb", 1), ("processes", 1), ("output_chars", 100)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name}={value!r} cannot work: use a whole number, {least} or more")
