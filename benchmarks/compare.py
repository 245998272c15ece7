"""What learning is worth: every optimizer on the same students, models and examples, cell by cell.

``python -m benchmarks.compare --task country_records --optimizers tgrpo MIPROv2 GEPA --seeds 0 1 2 --budget 300``
measures every cell (task, optimizer, seed, budget) that has no file yet and writes one JSON for each; ``--table``
prints what the files say and which cells are missing, ``--summary`` one table of all tasks, ``--plots`` draws them.
An interrupted cell goes on where it was. Answers are shared between cells through DSPy's cache, and charged to each of
them in full.

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
from benchmarks.learning import ABLATIONS, VARIANTS
from benchmarks.optimizers import OPTIMIZERS
from benchmarks.rows import Result, read
from benchmarks.simulated import PREFIX, simulated_lm
from benchmarks.tables import BASELINES, summary, table
from benchmarks.tasks import tasks
from benchmarks.variants import MissingFeatureError, Variant
from programs.local_lm import QWEN_CODER_1_5B, lm_from_env, reflection_lm_from_env
from programs.task import MissingDataError, Sizes, Task

NAMES: Mapping[str, Variant] = {**VARIANTS, **ABLATIONS, **OPTIMIZERS}
PROG = "python -m benchmarks.compare"
RESULTS = Path(__file__).parent / "results" / "learning"
_SIZES = tuple(field.name for field in fields(Sizes))


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG, about: str | None = __doc__) -> int:
    """Measure what is missing, or print and draw what is there; 1 when a cell could not be measured."""
    parser = _parser(prog, about)
    args = parser.parse_args(arguments)
    args.optimizers = args.optimizers or list(OPTIMIZERS if args.budget else VARIANTS)
    args.budget = args.budget or [None]
    if args.table or args.summary:
        print((_tables if args.table else _summaries)(args))
        return 0
    if args.plots:
        print("\n".join(map(str, _plots(args))) or f"{args.out} has no results.")
        return 0
    if not args.task:
        parser.error("name a --task, or ask for the --table, the --summary or the --plots")
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


def _tables(args: argparse.Namespace) -> str:
    """A Markdown table for each of the tasks and budgets, or for all tasks that have results."""
    written = []
    for budget in args.budget:
        by_task = _by_task(args.out, budget)
        for name in args.task or by_task:
            results = by_task.get(name)
            none = f"### {name}\n\nNothing is measured yet."
            written.append(table(results, args.optimizers, args.seeds, against=args.against) if results else none)
    return "\n\n".join(written) or f"{args.out} has no results."


def _summaries(args: argparse.Namespace) -> str:
    """For each budget one table of the tasks, or of all that have results."""
    found = [_chosen(args, budget) for budget in args.budget]
    written = [summary(by_task, args.optimizers, args.seeds) for by_task in found if by_task]
    return "\n\n".join(written) or f"{args.out} has no results."


def _plots(args: argparse.Namespace) -> list[Path]:
    """Drawings of the tasks, all budgets in one."""
    from benchmarks.plots import draw

    found: defaultdict[str, list[Result]] = defaultdict(list)
    for budget in args.budget:
        for task, results in _chosen(args, budget).items():
            found[task] += results
    return [
        file for task, results in found.items() for file in draw(task, results, args.optimizers, args.seeds, args.plots)
    ]


def _chosen(args: argparse.Namespace, budget: int | None) -> dict[str, list[Result]]:
    return {name: found for name, found in _by_task(args.out, budget).items() if not args.task or name in args.task}


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
    models = {name: _models(args.lm, known[name]) for name in args.task}
    sizes = {name: getattr(args, name) for name in _SIZES if getattr(args, name) is not None}
    return [
        Cell(
            task=task,
            variant=variant,
            seed=seed,
            sizes=replace(task.sizes, **sizes),
            models=models[task.name],
            budget=budget,
        )
        for seed in args.seeds
        for budget in args.budget
        for task in (known[name] for name in args.task)
        for variant in args.optimizers
    ]


def _models(name: str | None, task: Task) -> Models:
    """The model of that name, or that of the environment, or else the local one; opened once."""
    simulated = name is not None and name.startswith(PREFIX)

    @cache
    def opened() -> tuple[dspy.BaseLM, dspy.BaseLM | None]:
        if name and simulated:
            # Its answers cost nothing, and would only fill the disk.
            dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)
            return simulated_lm(name), None
        return dspy.LM(name) if name else lm_from_env(**task.local_lm), reflection_lm_from_env()

    return Models(
        lm=name or os.environ.get("TGRPO_LM", "").strip() or f"openai/{QWEN_CODER_1_5B.name}",
        reflection_lm=None if simulated else os.environ.get("TGRPO_REFLECTION_LM", "").strip() or None,
        open=opened,
    )


def _budget(text: str) -> int:
    if not (text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of LM calls above 0")
    return int(text)


def _parser(prog: str, about: str | None) -> argparse.ArgumentParser:
    data_dir = Path(os.environ.get("TGRPO_DATA_DIR", "../shared/data"))
    parser = argparse.ArgumentParser(prog=prog, description=about)
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
        "--budget",
        type=_budget,
        nargs="+",
        metavar="N",
        help="LM calls that may be spent while learning (default: no bound)",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--table", action="store_true", help="print what is measured, and measure nothing")
    parser.add_argument("--summary", action="store_true", help="the same in one table of all tasks")
    parser.add_argument(
        "--against",
        nargs="+",
        choices=NAMES,
        default=BASELINES,
        metavar="NAME",
        help=f"what the rows of the --table are compared with, as far as it is there (default: {' '.join(BASELINES)})",
    )
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw what is measured into this folder, as SVG")
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
