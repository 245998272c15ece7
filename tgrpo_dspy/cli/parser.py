"""The arguments of the command."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tgrpo_dspy import __version__
from tgrpo_dspy.cli import commands, estimating
from tgrpo_dspy.cli.sources import SOURCE

_SAVED = "what program.save('….json') wrote"


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command; ``run`` of its result is what to call."""
    whole = argparse.ArgumentParser(
        prog="tgrpo",
        description="Look at libraries of experiences that TrainingFreeGRPO has learned, compare them, move them, and "
        "see what learning would take.",
        epilog="Exit code: 0, or 2 for wrong usage and for files that cannot be used. No pickle is ever loaded.",
    )
    whole.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = whole.add_subparsers(title="commands", metavar="COMMAND", required=True)

    show = subparsers.add_parser("show", help="print a library", description=f"Print the library in {SOURCE}.")
    show.add_argument("file", metavar="FILE", type=Path, help=SOURCE)
    _finish(show, commands.show, json=True)

    compare = subparsers.add_parser(
        "diff",
        help="how two libraries differ",
        description="What turns library A into library B, by id: + added, - removed, ~ changed.",
    )
    compare.add_argument("before", metavar="A", type=Path, help=SOURCE)
    compare.add_argument("after", metavar="B", type=Path, help=SOURCE)
    _finish(compare, commands.diff, json=True)

    merge = subparsers.add_parser(
        "merge",
        help="bring libraries together",
        description="Add the experiences of other libraries to A, which keeps its ids. Equal texts become one; lessons "
        "that overlap or contradict each other all stay (tgrpo_dspy.merge can settle them with an LM).",
    )
    merge.add_argument("base", metavar="A", type=Path, help=SOURCE)
    merge.add_argument("others", metavar="B", type=Path, nargs="+", help="the same, one or more")
    _finish(merge, commands.merge, json=True, output="library to write: Markdown for .md, else JSON")

    apply = subparsers.add_parser(
        "apply",
        help="put a library into a saved program",
        description="Write a copy of a saved program whose predictors carry the library, in place of one they carried.",
    )
    apply.add_argument("program", metavar="PROGRAM", type=Path, help=_SAVED)
    apply.add_argument("library", metavar="LIBRARY", type=Path, help=SOURCE)
    _finish(apply, commands.apply, json=True, output="program to write")

    strip = subparsers.add_parser(
        "strip",
        help="take the library out of a saved program",
        description="Write a copy of a saved program without experiences in its instructions.",
    )
    strip.add_argument("program", metavar="PROGRAM", type=Path, help=_SAVED)
    _finish(strip, commands.strip, json=True, output="program to write")

    report = subparsers.add_parser(
        "report",
        help="write the HTML page of a run",
        description="Write one self-contained HTML file of a run that has ended, and print where it is.",
    )
    report.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="the run_dir that compile was given")
    report.add_argument("-o", "--output", metavar="FILE", type=Path, help="default: RUN_DIR/report.html")
    _finish(report, commands.report)

    export = subparsers.add_parser(
        "export",
        help="a library as Markdown, JSON or text",
        description="Write a library to standard output or a file. Only JSON keeps counts and evidence.",
    )
    export.add_argument("file", metavar="FILE", type=Path, help=SOURCE)
    export.add_argument(
        "--format",
        choices=sorted(commands.FORMATS),
        required=True,
        help="markdown: to edit; json: everything; text: one lesson a line, after its predictor if it is for one",
    )
    export.add_argument("-o", "--output", metavar="FILE", type=Path, help="default: standard output")
    _finish(export, commands.export)

    estimate = subparsers.add_parser(
        "estimate",
        help="what compiling a program would take",
        description="Print the rollouts, LM calls, tokens and cost that compile would take. No model is called; the "
        "program is imported.",
    )
    estimating.add_estimate(estimate)
    _finish(estimate, estimating.estimate, json=True)
    return whole


def _finish(parser: argparse.ArgumentParser, run: Any, *, json: bool = False, output: str = "") -> None:
    if output:
        parser.add_argument("-o", "--output", metavar="OUT", type=Path, required=True, help=output)
    if json:
        parser.add_argument("--json", action="store_true", help="print JSON for programs")
    parser.set_defaults(run=run)
