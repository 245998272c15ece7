"""Groups of rollouts as bounded text, best attempt first, with what differs side by side."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import dspy

from tgrpo_dspy.library.guards import label_classes
from tgrpo_dspy.library.instructions import without_block
from tgrpo_dspy.library.library import ExperienceLibrary
from tgrpo_dspy.library.limits import estimate_tokens
from tgrpo_dspy.library.outside import without_orders
from tgrpo_dspy.records import Group, Rollout, Turn
from tgrpo_dspy.sampling.traces import render_call
from tgrpo_dspy.text import shorten, whole

Summaries = Mapping[tuple[str, int], str]
_Corrections = Mapping[str, Sequence[tuple[str, str]]]
_Numbered = tuple[int, Turn]

_VALUE_CHARS = (1200, 600, 300, 150, 80)
_MODERATE_CHARS = 300
_FEWEST_CHARS = 40
_FEWEST_TURNS = 2
_MOST_CORRECTIONS = 5
_CLASS_CHARS = 40
_ONE_LINE_CHARS = 300
_WORTH_A_REFERENCE_CHARS = 40
_BYTES_PER_TOKEN = 4
_FIELD_MARKER = re.compile(r"\[\[ ## (\w+) ## \]\]")
NO_LESSONS = "none yet"


@dataclass(frozen=True, slots=True)
class _Attempt:
    """Rollouts of a group that came out the same, told by the first."""

    rollout: Rollout
    count: int


@dataclass(frozen=True, slots=True)
class _View:
    """How much is shown of everything: characters of a value, turns of an attempt."""

    chars: int
    turns: int
    with_labels: bool
    corrections: _Corrections = field(default_factory=dict)
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    summaries: Summaries = field(default_factory=dict)


def render_groups(
    groups: Sequence[Group], *, max_tokens: int, with_labels: bool, summaries: Summaries | None = None
) -> str:
    """The best and the worst attempt of every group, then what was written beside what is right.

    Long values are shortened in the middle first, then turns between the first and the last ones are left out, then
    every part is cut to its share.

    Args:
        groups: what is shown.
        max_tokens: bound on the text (estimated tokens), 1 or more.
        with_labels: whether the right answers are shown.
        summaries: by key of the group and number of the rollout, texts that stand in for the turns of an attempt.
    """
    corrections = _corrections(groups) if with_labels else {}
    classes = _classes(groups) if with_labels else {}
    views = [_View(chars, turns, with_labels, corrections, classes, summaries or {}) for chars, turns in _sizes(groups)]
    for view in views:
        text = _plain(_render(groups, view))
        if estimate_tokens(text) <= max_tokens:
            return text
    return _squeeze(groups, views[-1], max_tokens * _BYTES_PER_TOKEN)


def oversized(groups: Sequence[Group], *, max_tokens: int, with_labels: bool) -> list[tuple[Group, Rollout]]:
    """The attempts to summarise: those of several turns that take more than their share of a text that is too long."""
    view = _View(_MODERATE_CHARS, _longest(groups), with_labels, _corrections(groups) if with_labels else {})
    if estimate_tokens(_plain(_render(groups, view))) <= max_tokens:
        return []
    share = max_tokens // (2 * len(groups))
    return [
        (group, attempt.rollout)
        for group in groups
        for attempt in _best_and_worst(group)
        if len(attempt.rollout.turns) > 1 and estimate_tokens(_render_attempt(group, attempt, view, set())) > share
    ]


def group_tokens(group: Group) -> int:
    """Tokens (estimated) of a group when nothing of it is shortened."""
    return estimate_tokens(_render_group(1, group, _View(_VALUE_CHARS[0], _longest([group]), with_labels=True)))


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


def _sizes(groups: Sequence[Group]) -> Iterator[tuple[int, int]]:
    """Characters of a value and turns of an attempt, from everything to the least that can be read."""
    turns = _longest(groups)
    for chars in _VALUE_CHARS:
        yield chars, turns
    while turns > _FEWEST_TURNS:
        turns = max(_FEWEST_TURNS, turns * 3 // 4)
        yield _VALUE_CHARS[-1], turns
    yield _FEWEST_CHARS, turns


def _longest(groups: Sequence[Group]) -> int:
    return max((len(rollout.turns) for group in groups for rollout in group.rollouts), default=0)


def _render(groups: Sequence[Group], view: _View) -> str:
    parts = [_render_group(number, group, view) for number, group in enumerate(groups, start=1)]
    return "\n\n".join([*parts, *_render_corrections(view)])


def _render_group(number: int, group: Group, view: _View) -> str:
    return "\n".join(_parts(number, group, view))


def _parts(number: int, group: Group, view: _View) -> list[str]:
    """The example, then its attempts."""
    lines = [f"### Example {number}", *_fields(group.inputs, view.chars)]
    if view.with_labels and group.labels:
        lines.append("right answer: " + _inline(group.labels, view.chars))
    seen: set[str] = set()
    return ["\n".join(lines), *(_render_attempt(group, attempt, view, seen) for attempt in _best_and_worst(group))]


def _render_attempt(group: Group, attempt: _Attempt, view: _View, seen: set[str]) -> str:
    """An attempt and what the grader said of it; ``seen`` is what the attempts before it said."""
    rollout = attempt.rollout
    lines = [f"{_graded(attempt, view)}: {_told(group, rollout, view, seen)}"]
    remarks = [
        remark
        for remark in shorten(_verdict(rollout), 2 * view.chars).splitlines()
        if remark.strip() and remark not in seen and not _repeats_correction(remark, view.corrections)
    ]
    seen.update(remarks)
    return "\n".join([*lines, *(f"  grader: {remark}" for remark in remarks)])


def _graded(attempt: _Attempt, view: _View) -> str:
    times = f", {attempt.count} times" if attempt.count > 1 else ""
    # Without ground truth the number is how far the attempts of the group agree, and it must not pass for a reward.
    return f"{'reward' if view.with_labels else 'agreement'} {attempt.rollout.reward or 0.0:.3g}{times}"


def _told(group: Group, rollout: Rollout, view: _View, seen: set[str]) -> str:
    """What happened in a rollout: its outputs, and before them its turns when there were several."""
    if len(rollout.turns) < 2:
        return _inline(rollout.outputs, view.chars)
    summary = view.summaries.get((group.key, rollout.number))
    if summary is None:
        told = _turn_lines(rollout.turns, view, {*group.inputs.values()}, seen)
        ended = rollout.outputs.items() <= rollout.turns[-1].outputs.items()
    else:
        told = [f"in short: {_indented(summary, 4 * view.chars)}"]
        ended = not rollout.outputs
    if not ended:
        told.append(f"outputs: {_assignments(rollout.outputs, view.chars)}")
    return "\n  " + "\n  ".join(told)


def _turn_lines(turns: Sequence[Turn], view: _View, known: set[str], seen: set[str]) -> list[str]:
    """One line a turn; of more turns than the view shows, the first and the last."""
    numbered = list(enumerate(turns, start=1))
    left_out = len(turns) - view.turns
    if left_out <= 0:
        return _lines(numbered, view, known, seen)
    tail = view.turns // 2
    first, last = numbered[: view.turns - tail], numbered[len(turns) - tail :]
    gap = f"… {left_out} {'turn' if left_out == 1 else 'turns'} left out …"
    return [*_lines(first, view, known, seen), gap, *_lines(last, view, known, seen)]


def _lines(turns: Sequence[_Numbered], view: _View, known: set[str], seen: set[str]) -> list[str]:
    lines = []
    for position, (number, turn) in enumerate(turns):
        if turn.kind == "tool":
            call = f"tool {render_call(turn.name, _short(turn.inputs, view.chars))}"
            error = f"error: {turn.outputs['error']}" if "error" in turn.outputs else ""
            result = _indented(error or without_orders(turn.outputs.get("observation", "")), view.chars)
        else:
            call = render_call(turn.name, _short(_new_inputs(turn, known, seen), view.chars))
            result = _assignments(_untold_outputs(turn, turns[position + 1 :]), view.chars)
        lines.append(f"{number}. {call} -> {result}")
    return lines


def _new_inputs(turn: Turn, known: set[str], seen: set[str]) -> dict[str, str]:
    """The inputs of a turn but for those of the program, which the example shows; a long one is shown once."""
    new = {name: text for name, text in turn.inputs.items() if text.strip() and text not in known}
    shown = {name: "(as above)" if text in seen else text for name, text in new.items()}
    seen.update(text for text in new.values() if len(text) > _WORTH_A_REFERENCE_CHARS)
    return shown


def _untold_outputs(turn: Turn, following: Sequence[_Numbered]) -> Mapping[str, str]:
    """The outputs of a turn but for the tool calls it asked for, where the lines after it show them."""
    calls = [called for _, called in takewhile(lambda numbered: numbered[1].kind == "tool", following)]
    if not calls:
        return turn.outputs
    told = {"next_tool_name", "next_tool_args"} if turn.outputs.get("next_tool_name") == calls[0].name else set()
    asked = "; ".join(render_call(call.name, call.inputs) for call in calls)
    return {name: text for name, text in turn.outputs.items() if name not in told and text != asked}


def _corrections(groups: Sequence[Group]) -> dict[str, list[tuple[str, str]]]:
    """By output field: what was written where the label says something else, and what the label says."""
    found: dict[str, dict[tuple[str, str], None]] = {name: {} for group in groups for name in group.labels}
    for group in groups:
        for attempt in _distinct(group.rollouts):
            for name, right in group.labels.items():
                written = attempt.rollout.outputs.get(name, right)
                if written.strip() != right.strip():
                    found[name][written, right] = None
    return {name: list(pairs) for name, pairs in found.items() if pairs}


def _classes(groups: Sequence[Group]) -> dict[str, list[str]]:
    """By output field, the right values where they are few and short."""
    found = label_classes(group.labels for group in groups)
    return {n: values for n, values in found.items() if len(values) > 1 and max(map(len, values)) <= _CLASS_CHARS}


def _render_corrections(view: _View) -> list[str]:
    if not view.corrections:
        return []
    lines = ["### What was written, and what is right"]
    for name, pairs in view.corrections.items():
        classes = view.classes.get(name)
        lines.append(f"{name} (right is always one of: {', '.join(classes)}):" if classes else f"{name}:")
        lines += [
            f"  wrong: {shorten(written, view.chars)}  ->  right: {shorten(right, view.chars)}"
            for written, right in pairs[:_MOST_CORRECTIONS]
        ]
    return ["\n".join(lines)]


def _repeats_correction(remark: str, corrections: _Corrections) -> bool:
    """Whether a remark of the grader only says what stands beside each other below anyway."""
    return any(written in remark and right in remark for pairs in corrections.values() for written, right in pairs)


def _best_and_worst(group: Group) -> list[_Attempt]:
    attempts = _distinct(group.rollouts)
    return attempts if len(attempts) <= 2 else [attempts[0], attempts[-1]]


def _distinct(rollouts: Sequence[Rollout]) -> list[_Attempt]:
    """The scored rollouts, best first, equal ones counted once."""
    same: dict[object, list[Rollout]] = {}
    for rollout in rollouts:
        if rollout.reward is not None:
            same.setdefault((rollout.reward, rollout.feedback, _content(rollout)), []).append(rollout)
    ordered = sorted(same.values(), key=lambda alike: (-(alike[0].reward or 0.0), alike[0].number))
    return [_Attempt(alike[0], len(alike)) for alike in ordered]


def _content(rollout: Rollout) -> object:
    """What makes a rollout differ from another: its turns when there were several, and its outputs."""
    turns = rollout.turns if len(rollout.turns) > 1 else ()
    told = tuple((turn.name, *sorted(turn.inputs.items()), *sorted(turn.outputs.items())) for turn in turns)
    return told, tuple(sorted(rollout.outputs.items()))


def _verdict(rollout: Rollout) -> str:
    failure = rollout.failure
    if failure is None:
        return rollout.feedback
    missing = f"\nmissing: {', '.join(failure.missing)}" if failure.missing else ""
    answer = f"\nthe answer was: {failure.completion}" if failure.completion else ""
    return f"failed with {failure.error}: {failure.message}{missing}{answer}"


def _inline(fields: Mapping[str, str], chars: int) -> str:
    """The fields on one line where they are short, else one a line."""
    values = [f"{name}={shorten(value, chars)}" for name, value in fields.items()]
    short = sum(map(len, values)) <= _ONE_LINE_CHARS and not any("\n" in value for value in values)
    return "; ".join(values) if short else "\n  " + "\n  ".join(values)


def _assignments(fields: Mapping[str, str], chars: int) -> str:
    return "; ".join(f"{name}={_indented(value, chars)}" for name, value in fields.items())


def _short(fields: Mapping[str, str], chars: int) -> dict[str, str]:
    return {name: _indented(value, chars) for name, value in fields.items()}


def _indented(text: str, chars: int) -> str:
    """A value, shortened, whose further lines are set in from the number of its turn."""
    return "\n     ".join(shorten(text, chars).splitlines())


def _fields(fields: Mapping[str, str], chars: int) -> list[str]:
    return [f"{name}: {shorten(value, chars)}" for name, value in fields.items()]


def _plain(text: str) -> str:
    """A text that no adapter takes for fields, and that can be encoded."""
    return whole(_FIELD_MARKER.sub(r"\1:", text).replace("[[ ##", "[ [ ##"))


def _squeeze(groups: Sequence[Group], view: _View, size: int) -> str:
    """The text cut to ``size`` bytes: every group gets its share, and in it the example and every attempt theirs."""
    parts = [[_plain(part) for part in _parts(n, group, view)] for n, group in enumerate(groups, start=1)]
    parts += [[_plain(part)] for part in _render_corrections(view)]
    room = _shares([_bytes("\n".join(part)) for part in parts], size - 2 * (len(parts) - 1))
    text = "\n\n".join("\n".join(_fit(part, share)) for part, share in zip(parts, room, strict=True))
    return _cut(text, size)


def _fit(parts: Sequence[str], size: int) -> list[str]:
    room = _shares([_bytes(part) for part in parts], size - (len(parts) - 1))
    return [_cut(part, share) for part, share in zip(parts, room, strict=True)]


def _shares(wanted: Sequence[int], size: int) -> list[int]:
    """Divide ``size`` so that the small get what they want and the large get the same.

    Example:
        >>> _shares([10, 80, 90], 100)
        [10, 45, 45]
    """
    shares, left = [0] * len(wanted), max(0, size)
    for done, index in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        shares[index] = min(wanted[index], left // (len(wanted) - done))
        left -= shares[index]
    return shares


def _cut(text: str, size: int) -> str:
    """A text of at most ``size`` bytes: without its middle, or only its beginning where there is no room for more."""
    data = text.encode("utf-8")
    if len(data) <= size:
        return text
    mark = f" …[{len(data) - size} more]… "
    keep = size - _bytes(mark)
    if keep < _bytes(mark):
        return data[: max(0, size)].decode("utf-8", "ignore")
    head = data[: keep - keep // 2].decode("utf-8", "ignore")
    return head + mark + data[len(data) - keep // 2 :].decode("utf-8", "ignore")


def _bytes(text: str) -> int:
    return len(text.encode("utf-8"))
