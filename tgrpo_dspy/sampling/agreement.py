"""Rewards without ground truth: how far the rollouts of a group agree with each other (self-consistency)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from tgrpo_dspy.records import Group, Rollout

# Ways to an answer, which differ between rollouts that agree.
_NOT_ANSWERS = frozenset(("reasoning", "rationale", "trajectory", "history", "termination_reason"))
_NUMBER = re.compile(r"[-+]?\d*\.?\d+", re.ASCII)
_AROUND = " ;:!?\"'`*$()[]{}"


def with_agreement(group: Group, *, answer_field: str | None = None) -> Group:
    """The group with every rollout's agreement, 0 to 1, as its reward.

    For every answer field of the program it is the share of the group's rollouts that came to the same value (after
    ``normalised``), averaged over the fields. A rollout that failed agrees with none; one that failed on the LM's side
    stays without a reward.

    Args:
        group: rollouts without rewards.
        answer_field: the field that counts; None: every output of the program but its reasoning.

    Example:
        >>> rollouts = tuple(Rollout(number=i, outputs={"answer": text}) for i, text in enumerate(["7", "7.0", "8"]))
        >>> [round(r, 2) for r in with_agreement(Group(key="k", inputs={}, labels={}, rollouts=rollouts)).rewards]
        [0.67, 0.67, 0.33]
    """
    answered = [_answers(rollout, answer_field) for rollout in group.rollouts if rollout.failure is None]
    counts: dict[str, Counter[str]] = {}
    for answers in answered:
        for name, answer in answers.items():
            counts.setdefault(name, Counter())[answer] += 1
    scored = tuple(
        rollout if _is_excluded(rollout) else replace(rollout, reward=_share(rollout, counts, group, answer_field))
        for rollout in group.rollouts
    )
    return replace(group, rollouts=scored)


def normalised(text: str) -> str:
    """An answer as it is compared: case, spaces and punctuation at its ends do not count, numbers by their value.

    Example:
        >>> normalised(" The Answer. "), normalised("1,000.0"), normalised("-.5")
        ('the answer', '1000', '-0.5')
    """
    plain = " ".join(text.casefold().split()).strip(_AROUND)
    number = plain.rstrip(".,").replace(",", "")
    if _NUMBER.fullmatch(number):
        return format(Decimal(number).normalize(), "f")
    return plain.strip(".,")


def _answers(rollout: Rollout, answer_field: str | None) -> Mapping[str, str]:
    named = {answer_field} if answer_field is not None else rollout.outputs.keys() - _NOT_ANSWERS
    return {name: normalised(rollout.outputs[name]) for name in rollout.outputs if name in named}


def _share(rollout: Rollout, counts: Mapping[str, Counter[str]], group: Group, answer_field: str | None) -> float:
    if rollout.failure is not None or not counts:
        return 0.0
    answers, of = _answers(rollout, answer_field), sum(not _is_excluded(r) for r in group.rollouts)
    shares: Sequence[float] = [counts[name][answers[name]] / of if name in answers else 0.0 for name in counts]
    return sum(shares) / len(shares)


def _is_excluded(rollout: Rollout) -> bool:
    return rollout.failure is not None and rollout.failure.kind in ("lm", "metric")
