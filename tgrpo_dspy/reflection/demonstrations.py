"""Worked reflections that go with every reflection prompt, from domains of their own.

The attempts are records rendered by the same code as real ones, so a demonstration never drifts from the form in
which a model meets its task.
"""

from __future__ import annotations

from functools import cache

import dspy

from tgrpo_dspy.records import Group, Rollout
from tgrpo_dspy.reflection.signatures import ProposedEdit
from tgrpo_dspy.reflection.trajectory import render_groups

_TOKENS = 2000


def _group(inputs: dict[str, str], labels: dict[str, str], *attempts: tuple[float, dict[str, str], str]) -> Group:
    rollouts = tuple(
        Rollout(number=n, outputs=outputs, reward=reward, feedback=feedback)
        for n, (reward, outputs, feedback) in enumerate(attempts)
    )
    return Group(key="demonstration", inputs=inputs, labels=labels, rollouts=rollouts)


def _add(lesson: str) -> ProposedEdit:
    return ProposedEdit(operation="ADD", lesson=lesson)


@cache
def _bird_attempts() -> str:
    groups = [
        _group(
            {"note": "Saw about a dozen lapwings over the east meadow at half past six in the evening."},
            {"species": "LAPWING", "count": "12", "time": "18:30"},
            (0.67, {"species": "LAPWING", "count": "a dozen", "time": "18:30"}, ""),
            (0.0, {"species": "lapwings", "count": "a dozen", "time": "6:30 pm"}, ""),
        ),
        _group(
            {"note": "Two barn owls hunting by the weir, quarter to five in the morning."},
            {"species": "BARN OWL", "count": "2", "time": "04:45"},
            (0.33, {"species": "Barn owls", "count": "2", "time": "4:45 am"}, ""),
        ),
    ]
    return render_groups(groups, max_tokens=_TOKENS, with_labels=True)


@cache
def _parcel_attempts() -> str:
    groups = [
        _group(
            {"request": "Can I send a 2.4 kg parcel to my aunt?"},
            {"answer": "yes, class M"},
            (1.0, {"answer": "yes, class M"}, ""),
            (
                0.0,
                {"answer": "Yes! Your parcel weighs 2.4 kg, so it should be fine to send."},
                "the answer must be yes or no, a comma and the class",
            ),
        ),
        _group(
            {"request": "Would a box of 31 kg be taken?"},
            {"answer": "no, class none"},
            (0.5, {"answer": "no"}, "the class is missing"),
            (0.0, {"answer": "yes, class XL"}, "parcels over 30 kg are refused"),
        ),
    ]
    return render_groups(groups, max_tokens=_TOKENS, with_labels=True)


@cache
def _bird_attempts_by_agreement() -> str:
    agreed = {"species": "LAPWING", "count": "12", "time": "18:30"}
    groups = [
        _group(
            {"note": "Saw about a dozen lapwings over the east meadow at half past six in the evening."},
            {},
            (0.75, agreed, ""),
            (0.75, agreed, ""),
            (0.67, {"species": "LAPWING", "count": "a dozen", "time": "18:30"}, ""),
            (0.33, {"species": "lapwings", "count": "12", "time": "6:30 pm"}, ""),
        )
    ]
    return render_groups(groups, max_tokens=_TOKENS, with_labels=False)


_BIRD_TASK = "note -> species, count, time\nEnter the bird note into the log."
_BIRD_ADVANTAGE = (
    "species: the wrong values are plural or in small letters, the right ones are singular and in capitals. "
    "count: the wrong values are words, the right ones are digits. "
    "time: the wrong values have am or pm, the right ones are HH:MM on the 24-hour clock."
)
_BIRD_AGREEMENT = (
    "species: most attempts write the singular in capitals, one a plural in small letters. "
    "count: most write digits, one writes words. time: most write HH:MM on the 24-hour clock, one writes am or pm."
)
_SPECIES = "species: write the singular name of the bird in capital letters, whatever form the note uses."
_COUNT = "count: write a plain number in digits, never a number word."
_TIME = "time: write 24-hour HH:MM with two digits for the hour, without am or pm."


def for_first_lessons(*, with_labels: bool = True) -> list[dspy.Example]:
    """The demonstration for ``FirstLessons``, or for ``FirstLessonsByAgreement``."""
    rules = "\n".join([_SPECIES, _COUNT, _TIME])
    if not with_labels:
        attempts = _bird_attempts_by_agreement()
        return [dspy.Example(task=_BIRD_TASK, attempts=attempts, advantage=_BIRD_AGREEMENT, rules=rules)]
    return [dspy.Example(task=_BIRD_TASK, attempts=_bird_attempts(), advantage=_BIRD_ADVANTAGE, rules=rules)]


def for_revision(*, with_labels: bool = True) -> list[dspy.Example]:
    """The demonstrations for ``ReviseLessons``: lessons that do harm or fall short, and lessons that lack one.

    For ``ReviseLessonsByAgreement`` it is the latter alone.
    """
    birds = dspy.Example(
        task=_BIRD_TASK,
        lessons=f"e1: {_COUNT}\ne3: time: write the hour and the minutes.",
        attempts=_bird_attempts() if with_labels else _bird_attempts_by_agreement(),
        advantage=_BIRD_ADVANTAGE if with_labels else _BIRD_AGREEMENT,
        edits=[
            ProposedEdit(operation="KEEP", ids=["e1"]),
            ProposedEdit(operation="UPDATE", ids=["e3"], lesson=_TIME),
            _add(_SPECIES),
        ],
    )
    return [_parcel_revision(), birds] if with_labels else [birds]


def _parcel_revision() -> dspy.Example:
    return dspy.Example(
        task="request -> answer\nAnswer the parcel desk's question.",
        lessons="e1: Explain the answer in a full sentence.\ne2: Start the answer with yes or no.",
        attempts=_parcel_attempts(),
        advantage=(
            "The better attempts give yes or no and the class, nothing else. Full sentences lose, so e1 does harm. "
            "Starting with yes or no helps, but the class belongs to it, also when a heavy parcel is refused."
        ),
        edits=[
            ProposedEdit(operation="DELETE", ids=["e1"]),
            ProposedEdit(
                operation="UPDATE",
                ids=["e2"],
                lesson="Answer with yes or no in lower case, a comma and the class, and nothing else.",
            ),
            _add("Refuse a parcel that weighs more than 30 kg, and write 'class none' as its class."),
        ],
    )


def for_reconciliation() -> list[dspy.Example]:
    """The demonstration for ``ReconcileEdits``."""
    return [
        dspy.Example(
            lessons="e4: time: write the hour and the minute.",
            proposals=(
                f"ADD (3 times): {_TIME}\n"
                "ADD (1 time): time: write HH:MM with am or pm.\n"
                "UPDATE e4 (1 time): time: write the hour with two digits, then the minute."
            ),
            edits=[ProposedEdit(operation="UPDATE", ids=["e4"], lesson=_TIME)],
        )
    ]
