"""What the HTML page of a run shows, as plain JSON data: numbers, texts, and which group taught what."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from difflib import SequenceMatcher
from typing import Any

from tgrpo_dspy.evaluation.scores import mean_score
from tgrpo_dspy.library.edits import Edit
from tgrpo_dspy.library.experience import Evidence, Experience
from tgrpo_dspy.library.instructions import render_block, with_block, without_block
from tgrpo_dspy.library.library import ExperienceLibrary
from tgrpo_dspy.records import CompileReport, Evaluation, Group, Measured, Rollout, StepRecord, Usage
from tgrpo_dspy.sampling.traces import render_call, render_value
from tgrpo_dspy.views.recorded import Recorded, cut_rollout, cut_text, cut_values
from tgrpo_dspy.views.report import left_alone

_EXEMPLAR_CHARS = 400

_Taught = dict[tuple[str, tuple[float, ...]], list[tuple[int, str]]]  # step and id of groups by example and rewards


def page_data(report: CompileReport, recorded: Recorded, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Everything the page shows.

    Args:
        report: the run's report.
        recorded: the rollouts in full; a report alone has them in brief.
        settings: what ``settings.json`` of the run's folder holds, where there is one.
    """
    groups = [_group(step.step, group, recorded) for step in report.steps for group in step.groups]
    scored = [_scored(step, key, runs) for step, by in sorted(recorded.evaluations.items()) for key, runs in by.items()]
    taught: _Taught = {}
    for group in groups:
        rewards = tuple(a["reward"] for a in group["attempts"] if a["reward"] is not None)
        taught.setdefault((group["key"], rewards), []).append((group["step"], group["id"]))
    data: dict[str, Any] = _finite(
        {
            "summary": _summary(report),
            "scores": _scores(report),
            "best_step": report.best_step,
            "usage": [_usage(role, used) for role, used in (*sorted(report.usage.items()), ("total", _total(report)))],
            "library": [_experience(e, report.effects, taught) for e in report.library],
            "steps": [_step(step) for step in report.steps],
            "groups": [*groups, *scored],
            "prompts": _prompts(report, settings),
            "choices": [asdict(choice) | {"score": _measured(choice.score)} for choice in report.choices],
            "exemplars": [
                {
                    "example": shown.example,
                    "step": shown.step,
                    "reward": shown.reward,
                    "labelled": shown.labelled,
                    "calls": [
                        render_call(d.predictor, {n: render_value(v, _EXEMPLAR_CHARS) for n, v in d.values.items()})
                        for d in shown.demonstrations
                    ],
                }
                for shown in report.exemplars
            ],
            "pruned": [_named(e, report.effects.get(e.id)) for e in report.pruned],
            "notes": _notes(report, recorded),
            "settings": settings,
        }
    )
    return data


def _summary(report: CompileReport) -> list[list[str]]:
    best = f"step {report.best_step}" if report.best_step else "the student itself"
    if report.exemplars:
        best += f", {len(report.exemplars)} exemplar{'s' if len(report.exemplars) > 1 else ''}"
    total = _total(report)
    rows = [["Returned", best]]
    if report.student is not None:
        rows += [
            ["Its score", _measured(_best_score(report))],
            ["Student's score", _measured(mean_score(report.student.repeats))],
        ]
    return [
        *rows,
        ["Experiences", str(len(report.library))],
        ["LM calls", f"{total.calls:,}" + (f" (+ {total.cached:,} cached)" if total.cached else "")],
        ["Tokens in / out", f"{total.prompt_tokens:,} / {total.completion_tokens:,}"],
        ["Cost", _cost(total)],
        ["Time", _duration(report.seconds)],
        *([["Stopped by", report.stopped_by]] if report.stopped_by else []),
    ]


def _best_score(report: CompileReport) -> Measured | None:
    """The validation score of what is returned, as far as it was measured before pruning."""
    chosen = next((choice.score for choice in report.choices if choice.chosen), None)
    if chosen is not None:
        return chosen
    evaluation = next((s.evaluation for s in report.steps if s.step == report.best_step), report.student)
    return None if evaluation is None else mean_score(evaluation.repeats)


def _scores(report: CompileReport) -> list[dict[str, Any]]:
    """One point a step, the student first."""
    student = [] if report.student is None else [_point(0, report.student, None, accepted=True)]
    rewards = {step.step: step.mean_reward if any(step.rewards) else None for step in report.steps}
    return student + [_point(s.step, s.evaluation, rewards[s.step], accepted=s.accepted) for s in report.steps]


def _point(step: int, evaluation: Evaluation | None, reward: float | None, *, accepted: bool) -> dict[str, Any]:
    score = evaluation and mean_score(evaluation.repeats)
    return {
        "step": step,
        "score": score and score.mean,
        "error": score and score.standard_error,
        "reward": reward,
        "accepted": accepted,
        "shown": [_measured(score) if score else "", "" if reward is None else f"{reward:.3f}"],
    }


def _total(report: CompileReport) -> Usage:
    return sum(report.usage.values(), start=Usage())


def _usage(role: str, used: Usage) -> dict[str, Any]:
    return asdict(used) | {"role": role, "cost": _cost(used)}


def _cost(used: Usage) -> str:
    if not used.unpriced:
        return f"${used.cost:.4f}"
    return "unknown" if used.unpriced == used.calls else f"${used.cost:.4f} + {used.unpriced:,} calls of unknown price"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def _measured(measured: Measured | None) -> str:
    if measured is None:
        return "unknown"
    error = measured.standard_error
    return f"{measured.mean:.3f} ± {f'{error:.3f}' if math.isfinite(error) else 'unknown'}"


def _effect(measured: Measured | None) -> str:
    if measured is None:
        return ""
    sign = "+" if measured.mean >= 0 else ""
    return f"{sign}{_measured(measured)} ({measured.n} examples)"


def _experience(e: Experience, effects: Mapping[str, Measured], taught: _Taught) -> dict[str, Any]:
    effect = _effect(effects.get(e.id)) or ("" if e.effect is None else f"{e.effect:+.3f}")
    return {
        "id": e.id,
        "text": e.text,
        "target": e.target,
        "created": e.created,
        "changed": e.changed,
        "proposed": e.proposed,
        "contradicted": e.contradicted,
        "effect": effect,
        "evidence": [_evidence(piece, taught, e.created) for piece in e.evidence],
    }


def _evidence(piece: Evidence, taught: _Taught, created: int) -> Any:
    """The id of the first such group since the step that made the experience; of another run, what is known of it."""
    for step, name in taught.get((piece.example, piece.rewards), ()):
        if step >= created:
            return name
    return {"key": piece.example, "rewards": piece.rewards}


def _named(e: Experience, effect: Measured | None = None) -> dict[str, Any]:
    return {"id": e.id, "text": e.text, "effect": _effect(effect)}


def _step(step: StepRecord) -> dict[str, Any]:
    score = step.evaluation and mean_score(step.evaluation.repeats)
    return {
        "step": step.step,
        "epoch": step.epoch,
        "reward": f"{step.mean_reward:.3f}",
        "groups": len(step.groups),
        "informative": step.informative,
        "lost": step.lost,
        "score": _measured(score) if score else "",
        "seconds": _duration(step.seconds),
        "calls": sum(used.calls for used in step.usage.values()),
        "accepted": step.accepted,
        "verdict": step.verdict,
        "size": len(step.after),
        "changes": _changes(step),
        "advantages": [
            {
                "text": advantage.text,
                "groups": advantage.groups,
                "lost": advantage.edits is None,
                "surplus": advantage.surplus,
                "edits": [_edit(edit) for edit in advantage.edits or ()],
            }
            for advantage in step.advantages
        ],
        "applied": [_edit(edit) for edit in step.applied],
        "refused": [_edit(refusal.edit) | {"reason": refusal.reason} for refusal in step.refused],
        "effects": [_known(i, step.after, step.before) | {"effect": _effect(m)} for i, m in step.effects.items()],
    }


def _known(identifier: str, *libraries: ExperienceLibrary) -> dict[str, Any]:
    text = next((library[identifier].text for library in libraries if identifier in library), "")
    return {"id": identifier, "text": text}


def _edit(edit: Edit) -> dict[str, Any]:
    return {"operation": edit.operation, "ids": edit.ids, "text": edit.text, "target": edit.target}


def _changes(step: StepRecord) -> list[dict[str, Any]]:
    """What the step made of the library, one line an experience that is not as it was."""
    why = _reasons(step)
    changes = []
    before = {e.id: e for e in step.before}
    for new in step.after:
        old = before.get(new.id)
        if old is None or (old.text, old.target) != (new.text, new.target):
            changes.append(_change(old, new, ""))
    gone = {e.id: e for e in (*step.before, *step.evicted, *step.joined, *step.dropped) if e.id not in step.after}
    changes += [_change(old, None, why.get(old.id, "")) for old in gone.values()]
    return changes


def _change(old: Experience | None, new: Experience | None, why: str) -> dict[str, Any]:
    kind = "added" if old is None else "removed" if new is None else "changed"
    shown = new or old
    assert shown is not None
    moved = old is not None and new is not None and old.target != new.target
    if moved and old is not None and new is not None:
        why = f"from {old.target or 'all predictors'} to {new.target or 'all predictors'}"
    words = word_diff(old.text if old else "", new.text if new else "")
    return {"kind": kind, "id": shown.id, "target": shown.target, "words": words, "why": why}


def _reasons(step: StepRecord) -> dict[str, str]:
    """By id, why an experience is gone."""
    reasons: dict[str, str] = {}
    for edit in step.applied:
        if edit.operation == "DELETE":
            reasons |= dict.fromkeys(edit.ids, "deleted by an edit")
        elif edit.operation == "MERGE":
            reasons |= dict.fromkeys(edit.ids[1:], f"merged into {edit.ids[0]}")
    reasons |= {e.id: "evicted for lack of room" for e in step.evicted}
    reasons |= {e.id: "joined with an older experience that says the same" for e in step.joined}
    return reasons | {e.id: "dropped: the trial has shown harm" for e in step.dropped}


def word_diff(old: str, new: str) -> list[tuple[str, str]]:
    """How the words of one text become those of another: pieces marked ``=``, ``-`` or ``+``.

    Example:
        >>> word_diff("Write the date.", "Write the ISO date.")
        [('=', 'Write the'), ('+', 'ISO'), ('=', 'date.')]
    """
    before, after = old.split(), new.split()
    pieces: list[tuple[str, str]] = []
    for tag, i, j, k, m in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "equal":
            pieces.append(("=", " ".join(before[i:j])))
            continue
        pieces += [("-", " ".join(before[i:j]))] if j > i else []
        pieces += [("+", " ".join(after[k:m]))] if m > k else []
    return pieces


def _group(step: int, group: Group, recorded: Recorded) -> dict[str, Any]:
    inputs, labels = recorded.examples.get(group.key, (cut_values(group.inputs), cut_values(group.labels)))
    return {
        "id": f"group-{step}-{group.key}",
        "stage": "learning",
        "step": step,
        "key": group.key,
        "inputs": inputs,
        "labels": labels,
        "attempts": [_attempt(_whole(r, recorded.attempts.get((step, group.key, r.number)))) for r in group.rollouts],
    }


def _whole(brief: Rollout, full: Rollout | None) -> Rollout:
    """The rollout of a report with the texts and turns that the events have of it; its reward stays its own."""
    if full is None:
        return cut_rollout(brief)
    return replace(
        full,
        reward=brief.reward,
        left_out=brief.left_out,
        feedback=full.feedback or cut_text(brief.feedback),
        failure=full.failure if brief.failure else None,
        outputs=full.outputs or cut_values(brief.outputs),
    )


def _scored(step: int, key: str, runs: Sequence[Rollout]) -> dict[str, Any]:
    return {
        "id": f"validation-{step}-{key}",
        "stage": "validation",
        "step": step,
        "key": key,
        "inputs": {},
        "labels": {},
        "attempts": [_attempt(run) for run in sorted(runs, key=lambda run: run.number)],
    }


def _attempt(rollout: Rollout) -> dict[str, Any]:
    data = asdict(rollout)
    del data["demonstrations"]
    return data


def _prompts(report: CompileReport, settings: Mapping[str, Any]) -> list[dict[str, str]]:
    """The instructions of every predictor before and after; without settings, what was put at their end."""
    before = _instructions(settings, report.frozen)
    if not before:
        targets: Iterable[str | None] = sorted({e.target for e in report.library if e.target}) or [None]
        blocks = {t or "every predictor": render_block(report.library.for_predictor(t or "")) for t in targets}
        return [{"name": name, "before": "", "base": "", "after": block} for name, block in blocks.items()]
    return [_prompt(name, text, report) for name, text in before.items()]


def _prompt(name: str, before: str, report: CompileReport) -> dict[str, str]:
    after = before if name in report.untouched else with_block(before, report.library.for_predictor(name))
    return {"name": name, "before": before, "base": without_block(before), "after": after}


def _instructions(settings: Mapping[str, Any], frozen: Sequence[str]) -> dict[str, str]:
    """The student's instructions by predictor, from the description of the program in a run's settings."""
    found: dict[str, str] = {}
    program = settings.get("program")
    for path, module in program.items() if isinstance(program, dict) else ():
        name = path.removeprefix("self.")
        signature = module.get("signature") if isinstance(module, dict) else None
        text = signature.get("instructions") if isinstance(signature, dict) else None
        inside = any(name == part or name.startswith((f"{part}.", f"{part}[")) for part in frozen)
        if isinstance(text, str) and not inside:
            found[name] = text
    return found


def _notes(report: CompileReport, recorded: Recorded) -> list[str]:
    notes = left_alone(report)
    told = {(step, key) for step, key, _ in recorded.attempts}
    brief = sum((step.step, group.key) not in told for step in report.steps for group in step.groups)
    if brief:
        notes.append(
            f"{brief:,} groups are shown in brief, without their turns: events.jsonl, which holds them, is missing or "
            "tells of the last call of compile only, and the store does not have them."
        )
    if recorded.unread:
        notes.append(f"{recorded.unread:,} lines of events.jsonl could not be read.")
    return notes


def _finite(value: Any) -> Any:
    """The data with null for numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {str(name): _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
