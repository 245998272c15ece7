"""Shows how far a long piece of file work is, on stderr: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much is done, and how much there is (bytes or parts)."""

LINE_STEP = 10
"""Per cent between two plain lines about the same piece of work."""


@contextmanager
def console_progress() -> Iterator[Progress]:
    """A `Progress` for people: a rich bar when rich is installed and stderr is a terminal, else plain lines."""
    if not (sys.stderr.isatty() and find_spec("rich")):
        yield line_progress()
        return
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    with RichProgress(console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield report


def line_progress() -> Progress:
    """A `Progress` that writes a line at the start of each piece of work and every `LINE_STEP` per cent."""
    shown: dict[str, int] = {}

    def report(what: str, done: int, total: int) -> None:
        percent = 100 * done // total if total else 0
        if what not in shown or percent >= shown[what] + LINE_STEP or percent == 100 > shown[what]:
            shown[what] = percent
            sys.stderr.write(f"{what}: {percent}%\n")
            sys.stderr.flush()

    return report
