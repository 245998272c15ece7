"""The rollouts of a run in full, as far as a page shows them: a report keeps them in brief."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tgrpo_dspy.records import Rollout
from tgrpo_dspy.runs.events import Evaluated, Event, GroupFinished, RolloutFinished, StepStarted

_VALUE_CHARS = 4_000
_ROLLOUT_CHARS = 20_000
_LEAST_CHARS = 200
_TURNS = 50

Fields = Mapping[str, str]


@dataclass(slots=True)
class Recorded:
    """A listener that keeps every rollout with its turns, its texts cut to what a page shows.

    Attributes:
        attempts: the rollouts of the learning by step, example and number.
        evaluations: by step (0: the student) and example, the rollouts behind a validation score.
        examples: inputs and labels of the training examples.
        unread: lines of ``events.jsonl`` that could not be read.

    Example:
        >>> recorded = Recorded()
        >>> recorded(StepStarted(step=1, examples=1, group_size=1))
        >>> recorded(RolloutFinished(rollout=Rollout(number=0, feedback="good"), evaluation=False, example="a"))
        >>> recorded.attempts[1, "a", 0].feedback
        'good'
    """

    attempts: dict[tuple[int, str, int], Rollout] = field(default_factory=dict)
    evaluations: dict[int, dict[str, list[Rollout]]] = field(default_factory=dict)
    examples: dict[str, tuple[Fields, Fields]] = field(default_factory=dict)
    unread: int = 0
    _step: int = 0
    _scoring: dict[str, list[Rollout]] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> Recorded:
        """What ``events.jsonl`` of a run's folder holds; nothing when there is no such file.

        Raises:
            OSError: when it cannot be read.
        """
        recorded = cls()
        if file.exists():
            with file.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    recorded._line(line)
        return recorded

    def __call__(self, event: Event) -> None:
        """Keep what an event tells."""
        if isinstance(event, StepStarted):
            self._step = event.step
        elif isinstance(event, RolloutFinished):
            self._rollout(event.rollout, event.example, evaluation=event.evaluation)
        elif isinstance(event, GroupFinished):
            self.examples[event.group.key] = (cut_values(event.group.inputs), cut_values(event.group.labels))
        elif isinstance(event, Evaluated):
            self._evaluated(event.step)

    def _line(self, line: str) -> None:
        """An event as ``RunFiles`` writes it. A line that was torn by a killed process is counted, not more."""
        try:
            told = json.loads(line)
            kind = told["event"]
            if kind == "StepStarted":
                self._step = int(told["step"])
            elif kind == "RolloutFinished":
                self._rollout(_rollouts().validate_python(told["rollout"]), told["example"], told["evaluation"])
            elif kind == "GroupFinished" and "inputs" in told["group"]:
                group = told["group"]
                self.examples[group["example"]] = (cut_values(group["inputs"]), cut_values(group["labels"]))
            elif kind == "Evaluated":
                self._evaluated(int(told["step"]))
        except (ValueError, KeyError, TypeError, AttributeError, ValidationError):
            self.unread += 1

    def _rollout(self, rollout: Rollout, example: str, evaluation: bool) -> None:
        shown = cut_rollout(rollout)
        if evaluation:
            self._scoring.setdefault(example, []).append(shown)
        else:
            self.attempts[self._step, example, rollout.number] = shown

    def _evaluated(self, step: int) -> None:
        if self._scoring:  # a library that was scored before runs nothing again
            self.evaluations.setdefault(step, self._scoring)
        self._scoring = {}


def cut_rollout(rollout: Rollout) -> Rollout:
    """The rollout with texts of bounded length: how much is left out stands where it was."""
    turns = rollout.turns[:_TURNS]
    values = sum(len(turn.inputs) + len(turn.outputs) for turn in turns) + len(rollout.outputs) + 1
    limit = min(_VALUE_CHARS, max(_LEAST_CHARS, _ROLLOUT_CHARS // values))
    failure = rollout.failure and replace(
        rollout.failure,
        message=cut_text(rollout.failure.message, limit),
        completion=cut_text(rollout.failure.completion, limit),
        partial=cut_values(rollout.failure.partial, limit),
    )
    return replace(
        rollout,
        outputs=cut_values(rollout.outputs, limit),
        turns=tuple(
            replace(turn, inputs=cut_values(turn.inputs, limit), outputs=cut_values(turn.outputs, limit))
            for turn in turns
        ),
        feedback=cut_text(rollout.feedback, limit),
        failure=failure,
        demonstrations=(),
    )


def cut_values(values: Mapping[str, Any], limit: int = _VALUE_CHARS) -> dict[str, str]:
    """Every value as text of bounded length."""
    return {str(name): cut_text(str(value), limit) for name, value in values.items()}


def cut_text(text: str, limit: int = _VALUE_CHARS) -> str:
    """A text of at most ``limit`` characters and a note of what is missing.

    Example:
        >>> cut_text("abcdef", 4)
        'abcd… (2 more characters)'
    """
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit:,} more characters)"


@cache
def _rollouts() -> TypeAdapter[Rollout]:
    return TypeAdapter(Rollout)
