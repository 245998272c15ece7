"""Rewards without ground truth: how far the rollouts of a group agree with each other (self-consistency)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from tgrpo_dspy.records import Group, Rollout

# Ways to an answer, which differ between rollouts that agree.
_NOT_ANSWERS = frozenset(("reasoning", "rationale", "trajectory", "history", "termination_reason"))
_NUMBER = re.compile(r"[-+]?(?=\.?\d)(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)?(?:\.\d+)?", re.ASCII)
_POINT = re.compile(r"(?<!\.)\.$")
_AROUND = " .,;:!?\"'`*$()[]{}"


def with_agreement(group: Group, *, answer_field: str | None = None) -> Group:
    """The group with every rollout's agreement, 0 to 1, as its reward.

    For every answer field of the program it is the share of the group's rollouts that came to the same value (after
    ``normalised``), averaged over the fields. A rollout that failed agrees with none; one that failed on the LM's side
    stays without a reward.

    Args:
        group: rollouts without rewards.
        answer_field: the field that counts; None: every output of the program but its reasoning, where it has others.

    Example:
        >>> rollouts = tuple(Rollout(number=i, outputs={"answer": text}) for i, text in enumerate(["7", "7.0", "8"]))
        >>> [round(r, 2) for r in with_agreement(Group(key="k", inputs={}, labels={}, rollouts=rollouts)).rewards]
        [0.67, 0.67, 0.33]
    """
    answered = [rollout.outputs for rollout in group.rollouts if rollout.failure is None]
    fields = [answer_field] if answer_field is not None else _answer_fields(answered)
    counts = {name: Counter(_values(name, answered)) for name in fields}
    of = sum(not _is_excluded(rollout) for rollout in group.rollouts)

    def agreement(rollout: Rollout) -> float:
        if rollout.failure is not None or not fields:
            return 0.0
        alike = sum(counts[name][value] for name in fields for value in _values(name, [rollout.outputs]))
        return alike / (of * len(fields))

    scored = (r if _is_excluded(r) else replace(r, reward=agreement(r)) for r in group.rollouts)
    return replace(group, rollouts=tuple(scored))


def normalised(text: str) -> str:
    """An answer as it is compared: case, spaces and punctuation at its ends do not count, numbers by their value.

    Example:
        >>> normalised(" (The Answer). "), normalised("1,000.0"), normalised("-.5")
        ('the answer', '1000', '-0.5')
    """
    plain = " ".join(text.casefold().split())
    bare = plain.strip(_AROUND)
    pointed = _POINT.search(plain[: plain.index(bare)]) is not None  # a point before a number belongs to it
    for number in (f".{bare}" if pointed else bare, bare):
        if _NUMBER.fullmatch(number):
            return _written_out(Decimal(number.replace(",", "")))
    return bare or plain


def _written_out(number: Decimal) -> str:
    """All digits of a number, without those that do not change it."""
    text = format(number, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def _answer_fields(answered: Sequence[Mapping[str, str]]) -> list[str]:
    """The output fields of a program that hold its answer; all of them when none of them looks like one."""
    names = {name for outputs in answered for name in outputs}
    return sorted(names - _NOT_ANSWERS or names)


def _values(name: str, answered: Iterable[Mapping[str, str]]) -> Iterator[str]:
    """What was answered in a field, as it is compared; nothing where it is missing."""
    return (normalised(outputs[name]) for outputs in answered if name in outputs)


def _is_excluded(rollout: Rollout) -> bool:
    return rollout.failure is not None and rollout.failure.kind in ("lm", "metric")
