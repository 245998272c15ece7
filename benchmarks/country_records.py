"""The measurement behind the README's table: country records over several seeds.

``python -m benchmarks.country_records --seeds 0 1 2`` writes one JSON a seed into ``benchmarks/results/`` and prints
the table over all of them. A seed whose file exists is not run again; every LM answer is in DSPy's cache besides, so a
run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

import dspy

from programs.comparing import paired_difference
from programs.country_records.data import splits
from programs.country_records.experiment import SETS, Outcome, run
from programs.country_records.metric import field_accuracy
from programs.local_lm import lm_from_env, reflection_lm_from_env
from tgrpo_dspy import TrainingFreeGRPO, __version__
from tgrpo_dspy.library.files import write_atomically

RESULTS = Path(__file__).parent / "results"
_SIZES = ("train", "val", "test", "ood", "epochs", "batch_size", "group_size")


def main() -> None:
    """Run the seeds that have no result yet, then print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.country_records", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--train", type=int, default=16)
    parser.add_argument("--val", type=int, default=12)
    parser.add_argument("--test", type=int, default=40)
    parser.add_argument("--ood", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=5)
    parser.add_argument("--threads", type=int, default=4)
    args = parser.parse_args()
    files = [RESULTS / f"country_records-seed{seed}.json" for seed in args.seeds]
    for seed, file in zip(args.seeds, files, strict=True):
        if not file.exists():
            _write(file, _measure(seed, args))
    print(table([json.loads(file.read_text(encoding="utf-8")) for file in files]))


def _measure(seed: int, args: argparse.Namespace) -> dict[str, Any]:
    lm = lm_from_env()
    optimizer = TrainingFreeGRPO(
        metric=field_accuracy,
        group_size=args.group_size,
        epochs=args.epochs,
        batch_size=args.batch_size,
        seed=seed,
        num_threads=args.threads,
        reflection_lm=reflection_lm_from_env(),
    )
    with dspy.context(lm=lm):
        data = splits(seed, train=args.train, val=args.val, test=args.test, ood=args.ood)
        outcome = run(optimizer, data, few_shot=False)
    return _result(seed, args, lm.model, outcome)


def _result(seed: int, args: argparse.Namespace, model: str, outcome: Outcome) -> dict[str, Any]:
    report = outcome.report
    return {
        "seed": seed,
        "model": model,
        "sizes": {name: getattr(args, name) for name in _SIZES},
        "versions": {"dspy": dspy.__version__, "tgrpo_dspy": __version__},
        "scores": outcome.scores,
        "student_validation": report.student.mean if report.student else None,
        "steps": [
            {
                "mean_reward": step.mean_reward,
                "informative": step.informative,
                "groups": len(step.groups),
                "lost": step.lost,
                "proposed": len(step.proposed),
                "applied": len(step.applied),
                "refused": [refusal.reason for refusal in step.refused],
                "experiences": [experience.text for experience in step.after],
                "validation": step.evaluation.mean if step.evaluation else None,
                "seconds": round(step.seconds, 1),
            }
            for step in report.steps
        ],
        "best_step": report.best_step,
        "experiences": [experience.text for experience in report.library],
        "usage": {role: asdict(usage) for role, usage in report.usage.items()},
        "compile_seconds": round(report.seconds, 1),
    }


def table(results: list[dict[str, Any]]) -> str:
    """A Markdown table over all seeds. Every item's scores are averaged over the seeds first, so that the standard
    errors and the paired interval are over different countries.
    """
    lines = [
        "| set | student | compiled, mean over seeds | by seed | compiled - student (95 % interval) |",
        "|---|---|---|---|---|",
    ]
    for name in SETS:
        student = _over_seeds([result["scores"][name]["student"] for result in results])
        compiled = _over_seeds([result["scores"][name]["compiled"] for result in results])
        by_seed = ", ".join(f"{statistics.fmean(result['scores'][name]['compiled']):.3f}" for result in results)
        difference = paired_difference(compiled, student)
        lines.append(f"| {name} ({len(student)}) | {_mean(student)} | {_mean(compiled)} | {by_seed} | {difference} |")
    return "\n".join(lines)


def _over_seeds(scores: list[list[float]]) -> list[float]:
    return [statistics.fmean(item) for item in zip(*scores, strict=True)]


def _mean(scores: list[float]) -> str:
    return f"{statistics.fmean(scores):.3f} \u00b1 {statistics.stdev(scores) / len(scores) ** 0.5:.3f}"


def _write(file: Path, result: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
