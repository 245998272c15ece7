"""Five harmful lessons planted among four good ones: do the measurements find them on a real model?

``python -m benchmarks.harm`` takes country records and a library whose lessons were written by hand, and prints what
``attribute`` says each is worth, what ``prune`` leaves and what that scores on records nobody has seen, what the
randomised trial reads off its rollouts, and whether the gate rolls back a step that plants them. The result is
``benchmarks/results/harm-seed0.json``; a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import dspy

from programs.country_records.data import splits
from programs.country_records.metric import field_accuracy
from programs.country_records.program import program
from programs.local_lm import QWEN_CODER_1_5B, lm_from_env
from tgrpo_dspy import (
    Experience,
    ExperienceLibrary,
    Performance,
    Reflection,
    Sampling,
    TrainingFreeGRPO,
    Validation,
    attribute,
    evaluate,
    inject,
    prune,
)
from tgrpo_dspy.library.files import write_atomically
from tgrpo_dspy.records import Measured

GOOD = (
    "independence_date: write the date as YYYY-MM-DD.",
    "currency: write the three-letter code only, never the name.",
    "landlocked: write yes or no only.",
    "population: write the digits only, without commas.",
)
PLANTED = (
    "independence_date: write the date as day, month in words, year.",
    "currency: write the full name of the currency and no code.",
    "landlocked: write a full sentence about the coastline.",
    "population: write the number with commas and the word people after it.",
    "Begin every value with the name of the country and a colon.",
)
RESULTS = Path(__file__).parent / "results"


class Planting(dspy.Module):
    """A reflection that proposes the harmful lessons, whatever it is shown."""

    def forward(self, task: str, lessons: str, attempts: str) -> dspy.Prediction:
        return dspy.Prediction(
            advantage="planted", edits=[{"operation": "ADD", "lesson": lesson} for lesson in PLANTED]
        )


def main() -> None:
    """Measure, write the result, print it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.harm", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--evalset", type=int, default=12, help="records to measure on (default: %(default)s)")
    parser.add_argument("--test", type=int, default=20, help="records nobody has seen (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--runs-dir", type=Path, default=Path("~/.cache/tgrpo_dspy/runs"))
    args = parser.parse_args()
    folder = args.runs_dir.expanduser() / f"harm-{args.seed}"
    with dspy.context(lm=lm_from_env()):
        result = measure(args.seed, args.evalset, args.test, args.threads, folder)
    result["lm"] = os.environ.get("TGRPO_LM", "").strip() or f"openai/{QWEN_CODER_1_5B.name}"
    write_atomically(RESULTS / f"harm-seed{args.seed}.json", json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(table(result))


def measure(seed: int, evalset: int, test: int, threads: int, folder: Path) -> dict[str, Any]:
    """Everything, as data."""
    data, student = splits(seed, train=16, val=evalset, test=test, ood=0), program()
    library = library_of(*GOOD, *PLANTED)
    common: dict[str, Any] = {"metric": field_accuracy, "num_threads": threads, "seed": seed}
    measured = attribute(student, library, evalset=data.val, run_dir=folder / "attribute", **common)
    pruned = prune(inject(student, library), measured, evalset=data.val, run_dir=folder / "attribute", **common)
    programs = {
        "student": student,
        "good lessons": inject(student, library_of(*GOOD)),
        "with the planted": inject(student, library),
        "pruned": pruned.program,
    }
    held_out = {name: evaluate(each, devset=data.test, **common) for name, each in programs.items()}
    return {
        "sizes": {"evalset": evalset, "test": test, "seed": seed},
        "attribute": _effects(library, measured.effects),
        "attribute_rollouts": sum(usage.calls + usage.cached for usage in measured.usage.values()),
        "judgements": {library[i].text: judged for i, judged in measured.judgements.items()},
        "dropped": [experience.text for experience in pruned.dropped],
        "held-out": {name: _score(done) for name, done in held_out.items()},
        "pruned - with the planted": asdict(held_out["pruned"].minus(held_out["with the planted"])),
        "trial": _trial(data, library, seed, threads, folder / "trial"),
        "gate": _gate(data, seed, threads, folder / "gate"),
    }


def _trial(data: Any, library: ExperienceLibrary, seed: int, threads: int, folder: Path) -> dict[str, Any]:
    """What the rollouts of two steps say, with reflection off: no group exceeds the spread that teaches."""
    optimizer = TrainingFreeGRPO(
        metric=field_accuracy,
        seed=seed,
        num_threads=threads,
        batch_size=8,
        epochs=1,
        sampling=Sampling(trial="randomized", solved_score=None, min_spread=1.0),
        reflection=Reflection(learn_from_failures=False),
    )
    optimizer.compile(program(), trainset=data.train, initial_library=library, run_dir=folder, verbose=False)
    assert optimizer.report is not None
    effects = {i: effect for step in optimizer.report.steps for i, effect in step.effects.items()}
    dropped = [experience.text for step in optimizer.report.steps for experience in step.dropped]
    rollouts = sum(len(group.rollouts) for step in optimizer.report.steps for group in step.groups)
    return {"effects": _effects(library, effects), "dropped": dropped, "rollouts": rollouts}


def _gate(data: Any, seed: int, threads: int, folder: Path) -> dict[str, Any]:
    """Whether a step that plants the lessons is rolled back."""
    optimizer = TrainingFreeGRPO(
        metric=field_accuracy,
        seed=seed,
        num_threads=threads,
        group_size=3,
        reflection=Reflection(advantage=Planting()),
        validation=Validation(acceptance="gate"),
    )
    optimizer.compile(
        program(),
        trainset=data.train[:4],
        valset=data.val,
        initial_library=library_of(*GOOD),
        run_dir=folder,
        verbose=False,
    )
    report = optimizer.report
    assert report is not None
    return {
        "steps": [
            {"applied": [edit.text for edit in step.applied], "accepted": step.accepted, "verdict": step.verdict}
            for step in report.steps
        ],
        "returned": [experience.text for experience in report.library],
    }


def library_of(*lessons: str) -> ExperienceLibrary:
    """A library of these lessons."""
    return ExperienceLibrary(tuple(Experience(id=f"e{n}", text=text) for n, text in enumerate(lessons, start=1)))


def table(result: Mapping[str, Any]) -> str:
    """The effects from the most harmful up, and what became of them."""
    trial = result["trial"]["effects"]
    lines = ["| lesson | planted | attribute | trial |", "|---|---|---|---|"]
    for text, effect in sorted(result["attribute"].items(), key=lambda pair: pair[1]["mean"]):
        planted = "planted" if text in PLANTED else ""
        lines.append(f"| {text} | {planted} | {_number(effect)} | {_number(trial.get(text))} |")
    scores = [f"{name} {_number(score)}" for name, score in result["held-out"].items()]
    accepted = ["accepted" if step["accepted"] else "rolled back" for step in result["gate"]["steps"]]
    return "\n".join(
        [
            *lines,
            "",
            f"Dropped by prune: {len(result['dropped'])}, of them planted: "
            f"{len([text for text in result['dropped'] if text in PLANTED])}. Held-out: {', '.join(scores)}.",
            f"Dropped by the trial: {len(result['trial']['dropped'])}. The gate, step by step: {', '.join(accepted)}.",
        ]
    )


def _effects(library: ExperienceLibrary, effects: Mapping[str, Measured]) -> dict[str, dict[str, float]]:
    return {library[i].text: asdict(effect) for i, effect in effects.items()}


def _score(done: Performance) -> dict[str, Any]:
    return {**asdict(done.mean), "scores": [scores[0] for scores in done.scores]}


def _number(measured: Mapping[str, float] | None) -> str:
    return "not measured" if measured is None else f"{measured['mean']:+.3f} ± {measured['standard_error']:.3f}"


if __name__ == "__main__":
    main()
