"""What learning is worth: the loop in its variants beside DSPy's few-shot optimizers, cell by cell.

``python -m benchmarks.learning --task country_records --variants student paper full --seeds 0 1 2`` measures every cell
(task, variant, seed) that has no file yet and writes one JSON for each; ``--table`` prints what the files say, and
which cells are missing. A cell that was interrupted goes on where it was. Answers are shared between cells through
DSPy's cache, and charged to each of them in full.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import dspy

from benchmarks.cells import Cell, Models, is_measured, measure
from benchmarks.learning_table import Result, read, table
from benchmarks.tasks import tasks
from benchmarks.variants import Demonstrations, Direct, MissingFeatureError, Ours, Student, Variant
from programs.local_lm import QWEN_CODER_1_5B, lm_from_env, reflection_lm_from_env
from programs.task import MissingDataError, Sizes

_PAPER: Mapping[str, Any] = {
    "sampling": {"solved_score": None},
    "reflection": {"learn_from_failures": False, "alike_together": False, "groups_per_call": 1},
    "validation": {"acceptance": "last"},
}
_POOLED = {**_PAPER, "reflection": {**_PAPER["reflection"], "groups_per_call": 8}}

# What acceptance="last" returns depends on no validation set, so the paper's loop is given none and pays for none.
VARIANTS: Mapping[str, Variant] = {
    "student": Student("the program as it is"),
    "paper": Ours("the paper's loop", _PAPER, validates=False),
    "paper_pooled": Ours("the paper's loop, eight groups in a reflection call", _POOLED, validates=False),
    "full": Ours("all defaults"),
    "full_trial": Ours("with experiences on trial", {"sampling": {"trial": "randomized"}}),
    "full_exemplars": Ours("with up to four exemplars", {"limits": {"exemplars": 4}}),
    "no_ground_truth": Ours("without labels and rewards", {"use_ground_truth": False}),
    "no_group": Ours("one rollout an example: no group computation", {"group_size": 1}),
    "direct": Direct("experiences written from the description alone"),
    "labeled_fewshot_2": Demonstrations("two labelled examples", dspy.LabeledFewShot, {"k": 2}),
    "labeled_fewshot_4": Demonstrations("four labelled examples", dspy.LabeledFewShot, {"k": 4}),
    "labeled_fewshot_8": Demonstrations("eight labelled examples", dspy.LabeledFewShot, {"k": 8}),
    "labeled_fewshot_16": Demonstrations("sixteen labelled examples", dspy.LabeledFewShot, {"k": 16}),
    # DSPy's own defaults; without the threshold it takes any prediction with feedback for a success.
    "bootstrap_fewshot": Demonstrations(
        "own right answers and labelled examples", dspy.BootstrapFewShot, {"metric_threshold": 1.0}, scored=True
    ),
}

RESULTS = Path(__file__).parent / "results" / "learning"
_SIZES = tuple(field.name for field in fields(Sizes))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, or print the tables; 1 when a cell could not be measured."""
    parser = _parser()
    args = parser.parse_args(arguments)
    if not (args.task or args.table):
        parser.error("name a --task, or ask for the --table")
    if args.table:
        print(tables(args.out, args.task, args.variants, args.seeds))
        return 0
    return measure_missing(_cells(args), out=args.out, runs=args.runs_dir.expanduser(), threads=args.threads)


def measure_missing(cells: Sequence[Cell], *, out: Path, runs: Path, threads: int) -> int:
    """Measure the cells that have no result yet, one after another; 1 when one of them could not be."""
    missing = [cell for cell in cells if not is_measured(cell, out)]
    print(f"{len(cells) - len(missing)} of {len(cells)} cells are there already", flush=True)
    failed = 0
    for cell in missing:
        try:
            result = measure(cell, VARIANTS[cell.variant], out=out, runs=runs, threads=threads)
        except (MissingDataError, MissingFeatureError) as error:
            print(f"{cell.name}: {error}", file=sys.stderr, flush=True)
            failed = 1
        except Exception:  # the other cells are worth measuring all the same
            print(f"{cell.name}: {traceback.format_exc()}", file=sys.stderr, flush=True)
            failed = 1
        else:
            print(f"{cell.name}: {_brief(result)}", flush=True)
    return failed


def tables(folder: Path, names: Sequence[str], variants: Sequence[str], seeds: Sequence[int]) -> str:
    """A Markdown table for each of the tasks, or for all that the folder has results of."""
    by_task: defaultdict[str, list[Result]] = defaultdict(list)
    for result in read(folder):
        by_task[result["task"]].append(result)
    wanted = names or list(by_task)
    written = [table(by_task[name], variants, seeds) for name in wanted if by_task[name]]
    unmeasured = [f"### {name}\n\nNothing is measured yet." for name in wanted if not by_task[name]]
    return "\n\n".join([*written, *unmeasured]) or f"{folder} has no results."


def _brief(result: Result) -> str:
    calls = sum(role["calls"] for role in result["usage"].values())
    means = [f"{name} {fmean(scores):.3f}" for name, scores in result["scores"].items() if scores]
    return f"{', '.join(means)}; {calls} LM calls, {result['this_try']['seconds']:.0f} s"


def _cells(args: argparse.Namespace) -> list[Cell]:
    """The cells asked for: a whole comparison first, then the next seed."""
    known = tasks(args.data_dir)
    models = _models(args.lm)
    sizes = {name: getattr(args, name) for name in _SIZES if getattr(args, name) is not None}
    return [
        Cell(task=task, variant=variant, seed=seed, sizes=replace(task.sizes, **sizes), models=models)
        for seed in args.seeds
        for task in (known[name] for name in args.task)
        for variant in args.variants
    ]


def _models(name: str | None) -> Models:
    """The model of that name, or that of the environment, or else the local one; opened once."""

    @cache
    def opened() -> tuple[dspy.BaseLM, dspy.BaseLM | None]:
        return dspy.LM(name) if name else lm_from_env(), reflection_lm_from_env()

    return Models(
        lm=name or os.environ.get("TGRPO_LM", "").strip() or f"openai/{QWEN_CODER_1_5B.name}",
        reflection_lm=os.environ.get("TGRPO_REFLECTION_LM", "").strip() or None,
        open=opened,
    )


def _parser() -> argparse.ArgumentParser:
    data_dir = Path(os.environ.get("TGRPO_DATA_DIR", "../shared/data"))
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__)
    names = list(tasks(data_dir))
    parser.add_argument("--task", nargs="+", choices=names, default=[], metavar="NAME", help=f"{', '.join(names)}")
    parser.add_argument(
        "--variants",
        nargs="+",
        choices=VARIANTS,
        default=list(VARIANTS),
        metavar="NAME",
        help=f"{', '.join(VARIANTS)} (default: all)",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--table", action="store_true", help="print what is measured, and measure nothing")
    parser.add_argument("--lm", help="a LiteLLM model name (default: TGRPO_LM, or the local model)")
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=data_dir,
        help="folder of the public data sets (default: TGRPO_DATA_DIR, or %(default)s)",
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument(
        "--runs-dir",
        type=Path,
        default=Path("~/.cache/tgrpo_dspy/runs"),
        help="folder of unfinished runs (default: %(default)s)",
    )
    parser.add_argument("--threads", type=int, default=4, help="LM calls at once (default: %(default)s)")
    sizes = parser.add_argument_group("sizes", "examples of each set, and how much is learned from them")
    for name in _SIZES:
        sizes.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help="default: what fits the task")
    return parser


if __name__ == "__main__":
    sys.exit(main())
