"""A run's report as files: JSON with everything, Markdown to read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from tgrpo_dspy.library.edits import Edit
from tgrpo_dspy.records import Choice, CompileReport, Exemplar, Measured, Role, StepRecord, Usage
from tgrpo_dspy.sampling.traces import render_call, render_value

_SHOWN_CHARS = 100


def report_to_json(report: CompileReport) -> str:
    """Everything the report holds, as JSON."""
    return to_json(asdict(report), indent=1, inf_nan_mode="null").decode()


def report_from_json(text: str) -> CompileReport:
    """The report in what ``report_to_json`` wrote.

    Raises:
        ValueError: when it is no such JSON, or one of another version.
    """
    try:
        data = json.loads(text, object_hook=_with_infinity)
    except ValueError as error:
        raise ValueError(f"not whole JSON ({error}); was it cut off?") from error
    try:
        return TypeAdapter(CompileReport).validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise ValueError(f"JSON, but not a report of this version of tgrpo_dspy: {where}: {first['msg']}") from error


def _with_infinity(part: dict[str, Any]) -> dict[str, Any]:
    """JSON has no number for a standard error that is infinite."""
    return part | {"standard_error": math.inf} if part.get("standard_error", 0) is None else part


def report_to_markdown(report: CompileReport) -> str:
    """What a reader wants of the report: the library, then every step with its scores, edits and cost."""
    best = f"step {report.best_step}" if report.best_step else "the student itself"
    if shown := len(report.exemplars):
        best += f", with {shown} exemplar{'s' if shown > 1 else ''}"
    lines = [report.library.to_markdown(), "", "# Run", "", f"Returned: {best}. {report.seconds:.0f} s."]
    if report.stopped_by is not None:
        lines.append(f"Stopped before its last step by {report.stopped_by}.")
    lines += left_alone(report)
    if report.student is not None:
        lines.append(f"Validation score of the student: {report.student.mean:.3f}.")
    lines += ["", *_usage_table(report.usage)]
    if report.choices:
        lines += ["", *_choices_table(report.choices)]
    if report.exemplars:
        lines += ["", "## Exemplars", "", *map(_exemplar, report.exemplars)]
    if report.effects:
        lines += ["", "## What each experience adds to the validation score", "", *_effects(report.effects)]
        lines += [f"- dropped, for it does harm: {e.id} {e.text}" for e in report.pruned]
    for step in report.steps:
        lines += ["", *_step(step)]
    return "\n".join(lines) + "\n"


def left_alone(report: CompileReport) -> list[str]:
    """Which parts of the program got no experience, and why, a sentence each."""
    told = {"Compiled before and left alone": report.frozen, "Never ran, so they got no experience": report.untouched}
    return [f"{why}: {', '.join(names)}." for why, names in told.items() if names]


def _effects(effects: Mapping[str, Measured]) -> list[str]:
    return [f"- {i}: {e.mean:+.3f} ± {e.standard_error:.3f} ({e.n} examples)" for i, e in effects.items()]


def _usage_table(usage: Mapping[Role, Usage]) -> list[str]:
    head = "| role | LM calls | from cache | failed | prompt tokens | completion tokens | cost |"
    rows = [
        f"| {role} | {u.calls} | {u.cached} | {u.failed} | {u.prompt_tokens} | {u.completion_tokens} | {_cost(u)} |"
        for role, u in sorted(usage.items())
    ]
    return [head, "|---|---|---|---|---|---|---|", *rows]


def _choices_table(choices: Sequence[Choice]) -> list[str]:
    head = "| candidate | experiences | exemplars | validation score | prompt tokens of a call | |"
    rows = [
        f"| {c.label} | {c.experiences} | {c.exemplars} | {_score(c)} | {c.prompt_tokens} | {'chosen' * c.chosen} |"
        for c in choices
    ]
    return [head, "|---|---|---|---|---|---|", *rows]


def _score(choice: Choice) -> str:
    score = choice.score
    return "unknown" if score is None else f"{score.mean:.3f} ± {score.standard_error:.3f}"


def _exemplar(exemplar: Exemplar) -> str:
    """An exemplar in one line."""
    calls = [
        render_call(shown.predictor, {name: render_value(value, _SHOWN_CHARS) for name, value in shown.values.items()})
        for shown in exemplar.demonstrations
    ]
    text = " ".join("; ".join(calls).split())
    origin = "its label" if exemplar.labelled else f"reward {exemplar.reward:.2f}"
    return f"- example {exemplar.example}, step {exemplar.step}, {origin}: {text}"


def _cost(usage: Usage) -> str:
    if not usage.unpriced:
        return f"${usage.cost:.4f}"
    return "unknown" if usage.unpriced == usage.calls else f"${usage.cost:.4f} and {usage.unpriced} calls unknown"


def _step(step: StepRecord) -> list[str]:
    score = "" if step.evaluation is None else f" Validation score {step.evaluation.mean:.3f}."
    lines = [
        f"## Step {step.step} (epoch {step.epoch})",
        "",
        f"Mean reward {step.mean_reward:.3f}; {step.informative} of {len(step.groups)} groups informative, "
        f"{step.lost} lost in reflection.{score} {step.seconds:.0f} s.",
        "",
    ]
    lines += [f"- rewards {', '.join(f'{r:.2f}' for r in group.rewards)} ({group.key})" for group in step.groups]
    lines += ["", f"Proposed {len(step.proposed)} edits, applied {len(step.applied)}, refused {len(step.refused)}."]
    lines += [f"- {_edit(edit)}" for edit in step.applied]
    lines += [f"- refused: {_edit(refusal.edit)} ({refusal.reason})" for refusal in step.refused]
    if not step.accepted or step.verdict:
        lines.append(f"- {'accepted' if step.accepted else 'rolled back'}: {step.verdict}")
    if step.effects:
        lines += ["", "What having an experience in added to the reward in the trial so far:", *_effects(step.effects)]
    lines += [f"- dropped by the trial: {e.id} {e.text}" for e in step.dropped]
    lines += [f"- dropped for lack of room: {e.id} {e.text}" for e in step.evicted]
    lines += [f"- joined with the older experience that says the same: {e.id} {e.text}" for e in step.joined]
    return lines


def _edit(edit: Edit) -> str:
    return " ".join(part for part in (edit.operation, *edit.ids, edit.text) if part)
