"""What happens in a run, told to listeners while it happens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tgrpo_dspy.library.edits import Edit
from tgrpo_dspy.records import CompileReport, Evaluation, Group, Rollout, StepRecord

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """A run begins; ``program_runs`` is how often the program will run, evaluation included."""

    steps: int
    program_runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted:
    """A step begins with ``examples`` groups of ``group_size`` rollouts."""

    step: int
    examples: int
    group_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFinished:
    """A rollout of an example ended, in an evaluation or while learning."""

    rollout: Rollout
    evaluation: bool
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFinished:
    """All rollouts of a group ended."""

    group: Group
    informative: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectionFinished:
    """A reflection call gave ``edits`` edits, or its groups were lost."""

    edits: int
    lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A library was scored on the validation set; ``step`` 0 is the student."""

    step: int
    evaluation: Evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class EditDecided:
    """An edit of a step was carried out, or refused for a reason. In a step that is rolled back both are undone."""

    step: int
    edit: Edit
    refused: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDecided:
    """Learning goes on from a step's library, or from where the step began; the verdict says why."""

    step: int
    accepted: bool
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinished:
    """A step ended. The next one may have begun: where it does not depend on the score, it does not wait for it."""

    record: StepRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSpent:
    """After a step, how much of the budget is gone: ``spent`` of ``most``, for the bound that is nearest."""

    bound: str
    spent: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """Something is not as it should be, and the run goes on."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStopped:
    """Something ends the run before its last step: its budget, or an LM that fails for good."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """The run ended."""

    report: CompileReport


Event = (
    RunStarted
    | StepStarted
    | RolloutFinished
    | GroupFinished
    | ReflectionFinished
    | Evaluated
    | EditDecided
    | StepDecided
    | StepFinished
    | BudgetSpent
    | Warned
    | RunStopped
    | RunFinished
)
"""Something that happened."""

Listener = Callable[[Event], None]
"""Is called with every event of a run."""


class Announcer:
    """Hands events to listeners, and warnings to the log as well.

    A listener that raises is reported once in the log and never harms the run.
    """

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self._listeners = list(listeners)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Warned):
            logger.warning(event.message)
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception:  # a listener is the user's code; the run is worth more
                logger.exception("listener %r failed and is not called again", listener)
                self._listeners.remove(listener)
