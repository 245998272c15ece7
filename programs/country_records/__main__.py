"""``python -m programs.country_records``: compile, show what was learned, compare on unseen countries, save."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from statistics import fmean

import dspy
from rich.console import Console
from rich.table import Table

from programs.country_records.data import load_records, splits
from programs.country_records.experiment import FEW_SHOT_K, SETS, Outcome, run
from programs.country_records.metric import field_accuracy
from programs.local_lm import lm_from_env, reflection_lm_from_env
from tgrpo_dspy import TrainingFreeGRPO
from tgrpo_dspy.views.report import report_to_json, report_to_markdown


def main() -> None:
    """Parse the arguments and run one experiment."""
    args = _arguments()
    console = Console(soft_wrap=True)
    data = splits(args.seed, train=args.train, val=args.val, test=args.test, ood=args.ood)
    _show_task(console, data.train[0])
    logging.getLogger("dspy.evaluate").setLevel(logging.WARNING)  # its scores come as a table below
    dspy.configure(lm=lm_from_env())
    optimizer = TrainingFreeGRPO(
        metric=field_accuracy,
        group_size=args.group_size,
        epochs=args.epochs,
        batch_size=args.batch_size,
        seed=args.seed,
        num_threads=args.threads,
        reflection_lm=reflection_lm_from_env(),
    )
    outcome = run(optimizer, data)
    _show_outcome(console, outcome)
    _save(outcome, args.output)
    console.print(f"\nSaved compiled.json, experiences.md, report.md and report.json in {args.output}/")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m programs.country_records", description=__doc__)
    parser.add_argument("--train", type=int, default=8, help="training records (default %(default)s)")
    parser.add_argument("--val", type=int, default=6, help="validation records (default %(default)s)")
    parser.add_argument("--test", type=int, default=10, help="held-out records (default %(default)s)")
    parser.add_argument("--ood", type=int, default=8, help="records of the held-out region (default %(default)s)")
    parser.add_argument("--group-size", type=int, default=5, help="rollouts a group (default %(default)s)")
    parser.add_argument("--epochs", type=int, default=1, help="passes over the training records (default %(default)s)")
    parser.add_argument("--batch-size", type=int, default=8, help="records a step (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the split and the rollouts (default %(default)s)")
    parser.add_argument("--threads", type=int, default=4, help="calls at once (default %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("runs/demo"), help="folder (default %(default)s)")
    return parser.parse_args()


def _show_task(console: Console, example: dspy.Example) -> None:
    loaded = load_records()
    skipped = ", ".join(f"{reason}: {count}" for reason, count in loaded.skipped.most_common())
    console.print(f"{len(loaded.records)} countries can be read; left out: {skipped or 'none'}", highlight=False)
    console.print(f"Text:   {example.text}", highlight=False)
    console.print(f"Record: {', '.join(f'{k}={v}' for k, v in example.labels().items())}\n", highlight=False)


def _show_outcome(console: Console, outcome: Outcome) -> None:
    console.print("\n" + outcome.report.library.to_markdown() + "\n", highlight=False, markup=False)
    labels = list(outcome.scores[SETS[0]])
    table = Table("", *labels, "compiled - student (95 % interval)", title="Share of fields right")
    for name in SETS:
        means = [f"{fmean(outcome.scores[name][label]):.3f}" for label in labels]
        size = len(outcome.scores[name]["student"])
        table.add_row(f"{name} ({size})", *means, str(outcome.difference(name)))
    console.print(table)
    console.print(
        f"few-shot: LabeledFewShot(k={FEW_SHOT_K}), two labelled training records in every prompt.", highlight=False
    )


def _save(outcome: Outcome, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    outcome.compiled.save(folder / "compiled.json")
    (folder / "experiences.md").write_text(outcome.report.library.to_markdown() + "\n", encoding="utf-8")
    (folder / "report.md").write_text(report_to_markdown(outcome.report), encoding="utf-8")
    (folder / "report.json").write_text(report_to_json(outcome.report), encoding="utf-8")


if __name__ == "__main__":
    main()
