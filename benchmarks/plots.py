"""Drawings of measured cells: what a score costs to learn, and what it costs in every prompt from then on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.rows import Result, Row, rows_of
from benchmarks.variants import MissingFeatureError

_AXES: Mapping[str, tuple[str, str]] = {
    "calls": ("LM calls to learn", "linear"),
    "prompt": ("tokens of a prompt afterwards", "log"),
}
# Colours that the colour-blind can tell apart (Okabe and Ito); shapes for a print without colours.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666")
_SHAPES = "osD^vPX*<>h"


def draw(
    task: str, results: Sequence[Result], variants: Sequence[str], seeds: Sequence[int], folder: Path
) -> Iterator[Path]:
    """Write two drawings of a task: held-out score over the calls of the learning, and over the prompt's length.

    A point is the mean over the seeds of one variant at one budget, with the standard error over items; the budgets of
    a variant are joined.

    Yields:
        The files.

    Raises:
        MissingFeatureError: without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import LogLocator, NullLocator
    except ImportError as error:
        raise MissingFeatureError("drawing needs matplotlib: pip install matplotlib") from error
    folder.mkdir(parents=True, exist_ok=True)
    points = _points(results, variants, seeds)
    for name, (label, scale) in _AXES.items():
        figure = Figure(figsize=(7, 4.5), layout="constrained")
        axes = figure.subplots()
        for number, (variant, found) in enumerate(points.items()):
            x, y, errors = zip(*sorted((point[name], point["score"], point["error"]) for point in found), strict=True)
            colour, shape = _COLOURS[number % len(_COLOURS)], _SHAPES[number % len(_SHAPES)]
            axes.errorbar(x, y, yerr=errors, label=variant, color=colour, marker=shape, capsize=2, linewidth=1)
        axes.set(xlabel=label, ylabel="held-out score (± standard error over items)", xscale=scale, title=task)
        if scale == "log":
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
            axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.grid(alpha=0.3)
        figure.legend(loc="outside right upper", fontsize="small", frameon=False)
        file = folder / f"{task}-{name}.svg"
        _write(figure, file)
        yield file


def _write(figure: Any, file: Path) -> None:
    """The same drawing is the same file: no date, and the same names inside."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": file.name, "svg.fonttype": "none"}):
        figure.savefig(file, metadata={"Date": None})


def _points(
    results: Sequence[Result], variants: Sequence[str], seeds: Sequence[int]
) -> dict[str, list[dict[str, float]]]:
    """By variant, a point for each budget."""
    by_budget: defaultdict[Any, list[Result]] = defaultdict(list)
    for result in results:
        by_budget[result.get("budget")].append(result)
    points: defaultdict[str, list[dict[str, float]]] = defaultdict(list)
    for found in by_budget.values():
        for variant, row in rows_of(found, variants, seeds).items():
            if row.by_seed:
                points[variant].append(_point(row))
    return dict(points)


def _point(row: Row) -> dict[str, float]:
    measured = row.measured("held-out")
    return {
        "score": measured.mean,
        "error": measured.standard_error,
        "calls": row.calls(),
        "prompt": row.prompt_tokens()[0],
    }
