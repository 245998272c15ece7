"""Groups of rollouts as bounded text, best attempt first, with what differs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import dspy

from tgrpo_dspy.library.instructions import without_block
from tgrpo_dspy.library.library import ExperienceLibrary
from tgrpo_dspy.library.limits import estimate_tokens
from tgrpo_dspy.records import Group, Rollout
from tgrpo_dspy.sampling.traces import shorten

_VALUE_CHARS = (1200, 600, 300, 150, 80, 40)
_MOST_ATTEMPTS = (2,)
_MOST_CORRECTIONS = 5
_ONE_LINE_CHARS = 300
NO_LESSONS = "none yet"


@dataclass(frozen=True, slots=True)
class _Attempt:
    """Rollouts of a group that came out the same."""

    outputs: Mapping[str, str]
    reward: float
    feedback: str
    count: int


def render_groups(groups: Sequence[Group], *, max_tokens: int, with_labels: bool) -> str:
    """The groups as text of about ``max_tokens`` tokens at most, then what was written beside what is right.

    Long values are shortened in the middle first, then attempts between the best and the worst are left out.
    """
    corrections = _corrections(groups) if with_labels else {}
    text = ""
    for chars in _VALUE_CHARS:
        for most_attempts in _MOST_ATTEMPTS:
            parts = [
                _render_group(number, group, chars, most_attempts, with_labels, corrections)
                for number, group in enumerate(groups, start=1)
            ]
            text = "\n\n".join([*parts, *_render_corrections(corrections, chars)])
            if estimate_tokens(text) <= max_tokens:
                return text
    return shorten(text, max_tokens * 4)


def group_tokens(group: Group) -> int:
    """Tokens (estimated) of a group when nothing of it is shortened."""
    return estimate_tokens(_render_group(1, group, _VALUE_CHARS[0], _MOST_ATTEMPTS[0], True, {}))


def render_library(library: ExperienceLibrary) -> str:
    """The lessons with their ids, one a line."""
    lines = [f"{e.id}: {e.text}" + (f" (for {e.target})" if e.target else "") for e in library]
    return "\n".join(lines) or NO_LESSONS


def render_task(program: dspy.Module) -> str:
    """What a program does: its predictors in order with their fields and instructions, without any experience block."""
    predictors = program.named_predictors()
    parts = [_render_predictor(name, predictor, named=len(predictors) > 1) for name, predictor in predictors]
    return "\n\n".join(parts)


def _render_predictor(name: str, predictor: dspy.Predict, *, named: bool) -> str:
    signature = predictor.signature
    fields = f"{', '.join(signature.input_fields)} -> {', '.join(signature.output_fields)}"
    heading = f"Predictor {name}: {fields}" if named else fields
    return f"{heading}\n{without_block(signature.instructions)}"


def _render_group(
    number: int,
    group: Group,
    chars: int,
    most_attempts: int,
    with_labels: bool,
    corrections: Mapping[str, Sequence[tuple[str, str]]],
) -> str:
    lines = [f"### Example {number}", *_fields(group.inputs, chars)]
    if with_labels and group.labels:
        lines.append("right answer: " + _inline(group.labels, chars))
    attempts = _distinct(group.rollouts)
    shown = attempts if len(attempts) <= most_attempts else [*attempts[: most_attempts - 1], attempts[-1]]
    seen: set[str] = set()
    for attempt in shown:
        times = f", {attempt.count} times" if attempt.count > 1 else ""
        lines.append(f"reward {attempt.reward:g}{times}: {_inline(attempt.outputs, chars)}")
        remarks = [
            remark
            for remark in shorten(attempt.feedback, 2 * chars).splitlines()
            if remark.strip() and remark not in seen and not _repeats_correction(remark, corrections)
        ]
        lines += [f"  grader: {remark}" for remark in remarks]
        seen.update(remarks)
    return "\n".join(lines)


def _corrections(groups: Sequence[Group]) -> dict[str, list[tuple[str, str]]]:
    """By output field: what was written where the label says something else, and what the label says."""
    found: dict[str, dict[tuple[str, str], None]] = {name: {} for group in groups for name in group.labels}
    for group in groups:
        for attempt in _distinct(group.rollouts):
            for name, right in group.labels.items():
                written = attempt.outputs.get(name, right)
                if written.strip() != right.strip():
                    found[name][written, right] = None
    return {name: list(pairs) for name, pairs in found.items() if pairs}


def _render_corrections(corrections: Mapping[str, Sequence[tuple[str, str]]], chars: int) -> list[str]:
    if not corrections:
        return []
    lines = ["### What was written, and what is right"]
    for name, pairs in corrections.items():
        lines.append(f"{name}:")
        lines += [
            f"  wrong: {shorten(written, chars)}  ->  right: {shorten(right, chars)}"
            for written, right in pairs[:_MOST_CORRECTIONS]
        ]
    return ["\n".join(lines)]


def _repeats_correction(remark: str, corrections: Mapping[str, Sequence[tuple[str, str]]]) -> bool:
    """Whether a remark of the grader only says what stands beside each other below anyway."""
    return any(written in remark and right in remark for pairs in corrections.values() for written, right in pairs)


def _distinct(rollouts: Sequence[Rollout]) -> list[_Attempt]:
    """The scored rollouts, best first, equal ones counted once."""
    same: dict[tuple[object, ...], list[Rollout]] = {}
    for rollout in rollouts:
        if rollout.reward is not None:
            key = (rollout.reward, rollout.feedback, tuple(sorted(_shown(rollout).items())))
            same.setdefault(key, []).append(rollout)
    ordered = sorted(same.values(), key=lambda alike: (-(alike[0].reward or 0.0), alike[0].number))
    return [_Attempt(_shown(a[0]), a[0].reward or 0.0, _verdict(a[0]), len(a)) for a in ordered]


def _shown(rollout: Rollout) -> Mapping[str, str]:
    """What a reader needs of a rollout: the fields of every turn when there were several, else its outputs."""
    if len(rollout.turns) > 1:
        named = {f"{i}. {t.name}": _inline(t.outputs, 10**6) for i, t in enumerate(rollout.turns, start=1)}
        return named | dict(rollout.outputs)
    return rollout.outputs


def _verdict(rollout: Rollout) -> str:
    if rollout.failure is None:
        return rollout.feedback
    answer = f"\nthe answer was: {rollout.failure.completion}" if rollout.failure.completion else ""
    return f"failed with {rollout.failure.error}: {rollout.failure.message}{answer}"


def _inline(fields: Mapping[str, str], chars: int) -> str:
    """The fields on one line where they are short, else one a line."""
    values = [f"{name}={shorten(value, chars)}" for name, value in fields.items()]
    short = sum(map(len, values)) <= _ONE_LINE_CHARS and not any("\n" in value for value in values)
    return "; ".join(values) if short else "\n  " + "\n  ".join(values)


def _fields(fields: Mapping[str, str], chars: int) -> list[str]:
    return [f"{name}: {shorten(value, chars)}" for name, value in fields.items()]
