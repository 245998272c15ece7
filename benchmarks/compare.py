"""What learning is worth: every optimizer on the same students, models and examples, cell by cell.

``python -m benchmarks.compare --task country_records --optimizers tgrpo MIPROv2 GEPA --seeds 0 1 2 --budget 300``
measures every cell (task, optimizer, seed, budget) that has no file yet and writes one JSON for each; ``--table``
prints what the files say and which cells are missing, ``--summary`` one table of all tasks. An interrupted cell goes on
where it was. Answers are shared between cells through DSPy's cache, and charged to each of them in full.

With a budget the names are those of ``benchmarks.optimizers``, without one those of ``benchmarks.learning``. The budget
is in LM calls spent while learning, and is counted and enforced the same way for all: once it is spent, the next call
fails. What the optimizer returns then is scored; scoring is not counted. ``--lm simulated/0`` plays a model.
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

import dspy

from benchmarks.cells import Cell, Models, is_measured, measure
from benchmarks.learning import VARIANTS
from benchmarks.learning_table import Result, read, summary, table
from benchmarks.optimizers import OPTIMIZERS
from benchmarks.simulated import PREFIX, simulated_lm
from benchmarks.tasks import tasks
from benchmarks.variants import MissingFeatureError, Variant
from programs.local_lm import QWEN_CODER_1_5B, lm_from_env, reflection_lm_from_env
from programs.task import MissingDataError, Sizes

NAMES: Mapping[str, Variant] = {**VARIANTS, **OPTIMIZERS}
RESULTS = Path(__file__).parent / "results" / "learning"
_SIZES = tuple(field.name for field in fields(Sizes))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, or print the tables; 1 when a cell could not be measured."""
    parser = _parser()
    args = parser.parse_args(arguments)
    args.optimizers = args.optimizers or list(VARIANTS if args.budget is None else OPTIMIZERS)
    if args.table or args.summary:
        shown = tables if args.table else summaries
        print(shown(args.out, args.task, args.optimizers, args.seeds, budget=args.budget))
        return 0
    if not args.task:
        parser.error("name a --task, or ask for the --table or the --summary")
    return measure_missing(_cells(args), out=args.out, runs=args.runs_dir.expanduser(), threads=args.threads)


def measure_missing(cells: Sequence[Cell], *, out: Path, runs: Path, threads: int) -> int:
    """Measure the cells that have no result yet, one after another; 1 when one of them could not be.

    One that cannot be measured here, since a package is missing or the budget too small, says so and is left out.
    """
    missing = [cell for cell in cells if not is_measured(cell, out)]
    print(f"{len(cells) - len(missing)} of {len(cells)} cells are there already", flush=True)
    failed = 0
    for cell in missing:
        try:
            result = measure(cell, NAMES[cell.variant], out=out, runs=runs, threads=threads)
        except MissingFeatureError as error:
            print(f"{cell.name}: {error}", file=sys.stderr, flush=True)
        except MissingDataError as error:
            print(f"{cell.name}: {error}", file=sys.stderr, flush=True)
            failed = 1
        except Exception:  # the other cells are worth measuring all the same
            print(f"{cell.name}: {traceback.format_exc()}", file=sys.stderr, flush=True)
            failed = 1
        else:
            print(f"{cell.name}: {_brief(result)}", flush=True)
    return failed


def tables(
    folder: Path, names: Sequence[str], variants: Sequence[str], seeds: Sequence[int], *, budget: int | None = None
) -> str:
    """A Markdown table for each of the tasks, or for all that the folder has results of with that budget."""
    by_task = _by_task(folder, budget)
    wanted = names or list(by_task)
    written = [table(by_task[name], variants, seeds) for name in wanted if by_task.get(name)]
    unmeasured = [f"### {name}\n\nNothing is measured yet." for name in wanted if not by_task.get(name)]
    return "\n\n".join([*written, *unmeasured]) or f"{folder} has no results."


def summaries(
    folder: Path, names: Sequence[str], variants: Sequence[str], seeds: Sequence[int], *, budget: int | None = None
) -> str:
    """One table of the tasks, or of all that the folder has results of with that budget."""
    by_task = {name: found for name, found in _by_task(folder, budget).items() if not names or name in names}
    return summary(by_task, variants, seeds) if by_task else f"{folder} has no results."


def _by_task(folder: Path, budget: int | None) -> dict[str, list[Result]]:
    by_task: defaultdict[str, list[Result]] = defaultdict(list)
    for result in read(folder):
        if result.get("budget") == budget:
            by_task[result["task"]].append(result)
    return dict(by_task)


def _brief(result: Result) -> str:
    if "failed" in result:
        return f"failed: {result['failed']}"
    calls = sum(role["calls"] for role in result["usage"].values())
    means = [f"{name} {fmean(scores):.3f}" for name, scores in result["scores"].items() if scores]
    return f"{', '.join(means)}; {calls} LM calls, {result['this_try']['seconds']:.0f} s"


def _cells(args: argparse.Namespace) -> list[Cell]:
    """The cells asked for: a whole comparison first, then the next seed."""
    known = tasks(args.data_dir)
    models = _models(args.lm)
    sizes = {name: getattr(args, name) for name in _SIZES if getattr(args, name) is not None}
    return [
        Cell(
            task=task,
            variant=variant,
            seed=seed,
            sizes=replace(task.sizes, **sizes),
            models=models,
            budget=args.budget,
        )
        for seed in args.seeds
        for task in (known[name] for name in args.task)
        for variant in args.optimizers
    ]


def _models(name: str | None) -> Models:
    """The model of that name, or that of the environment, or else the local one; opened once."""

    simulated = name is not None and name.startswith(PREFIX)

    @cache
    def opened() -> tuple[dspy.BaseLM, dspy.BaseLM | None]:
        if name and simulated:
            # Its answers cost nothing, and would only fill the disk.
            dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)
            return simulated_lm(name), None
        return dspy.LM(name) if name else lm_from_env(), reflection_lm_from_env()

    return Models(
        lm=name or os.environ.get("TGRPO_LM", "").strip() or f"openai/{QWEN_CODER_1_5B.name}",
        reflection_lm=None if simulated else os.environ.get("TGRPO_REFLECTION_LM", "").strip() or None,
        open=opened,
    )


def _budget(text: str) -> int:
    if not (text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of LM calls above 0")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    data_dir = Path(os.environ.get("TGRPO_DATA_DIR", "../shared/data"))
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    names = list(tasks(data_dir))
    parser.add_argument("--task", nargs="+", choices=names, default=[], metavar="NAME", help=f"{', '.join(names)}")
    parser.add_argument(
        "--optimizers",
        "--variants",
        nargs="+",
        choices=NAMES,
        metavar="NAME",
        help=f"with a budget: {', '.join(OPTIMIZERS)}; without: {', '.join(VARIANTS)} (default: all)",
    )
    parser.add_argument(
        "--budget", type=_budget, metavar="N", help="LM calls that may be spent while learning (default: no bound)"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--table", action="store_true", help="print what is measured, and measure nothing")
    parser.add_argument("--summary", action="store_true", help="the same in one table of all tasks")
    parser.add_argument("--lm", help=f"a LiteLLM model name, or {PREFIX}0 (default: TGRPO_LM, or the local model)")
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
