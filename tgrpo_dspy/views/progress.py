"""A progress bar with the time left, on standard error."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tgrpo_dspy.records import StepRecord
from tgrpo_dspy.runs.events import (
    Evaluated,
    Event,
    ReflectionFinished,
    RolloutFinished,
    RunFinished,
    RunStarted,
    RunStopped,
    StepFinished,
    StepStarted,
)

_ESTIMATE_FROM_SECONDS = 600.0


class ProgressBar:
    """A listener that shows the runs of the program done and to do, and one line per finished step.

    Without a terminal it prints the lines only.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            speed_estimate_period=_ESTIMATE_FROM_SECONDS,
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=None)
        self._steps = 0

    def __call__(self, event: Event) -> None:
        """Show an event."""
        if isinstance(event, RunStarted):
            self._steps = event.steps
            self._bar.update(self._task, total=event.program_runs, description="scoring the student")
            if self._console.is_terminal:
                self._bar.start()
        elif isinstance(event, StepStarted):
            self._bar.update(self._task, description=f"step {event.step}/{self._steps}: rollouts")
        elif isinstance(event, RolloutFinished):
            self._bar.advance(self._task)
        elif isinstance(event, ReflectionFinished):
            self._bar.update(self._task, description="reflecting")
        elif isinstance(event, Evaluated) and event.step == 0:
            self._console.print(
                f"student: validation score {event.evaluation.mean:.3f}", highlight=False, soft_wrap=True
            )
        elif isinstance(event, StepFinished):
            self._say(_line(event.record, self._steps))
        elif isinstance(event, RunStopped):
            self._say(f"stopping with what there is ({event.reason})")
        elif isinstance(event, RunFinished):
            self.close()

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Take the bar off the screen; also after an error."""
        if self._bar.live.is_started:
            self._bar.stop()


def _line(record: StepRecord, steps: int) -> str:
    """What a step did, in the 80 columns of a terminal as long as nothing is refused or lost."""
    edits = len(record.applied)
    parts = [
        f"step {record.step}/{steps}: reward {record.mean_reward:.3f}",
        f"{record.informative}/{len(record.groups)} groups differ" + (f" ({record.lost} lost)" if record.lost else ""),
        f"{edits} edit{'' if edits == 1 else 's'}" + (f" ({len(record.refused)} refused)" if record.refused else ""),
        *([] if record.evaluation is None else [f"validation {record.evaluation.mean:.3f}"]),
        f"{record.seconds:.0f} s",
    ]
    return ", ".join(parts)
