"""One cell of a measurement: a task, a variant and a seed on a model. It is measured once and is one JSON file."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dspy

from benchmarks.charging import charging
from benchmarks.quiet import quiet
from benchmarks.scoring import prompt_tokens, score
from benchmarks.variants import Bench, FailedError, Learned, Variant
from programs.task import Sizes, Task
from tgrpo_dspy import CompileReport, StepRecord, __version__, read_library
from tgrpo_dspy.library.files import write_atomically
from tgrpo_dspy.runs.hashing import fingerprint
from tgrpo_dspy.sampling.examples import items_of

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Models:
    """The models of a measurement by name, and how to get them: a local one starts a server, so not before it must."""

    lm: str
    reflection_lm: str | None
    open: Callable[[], tuple[dspy.BaseLM, dspy.BaseLM | None]]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is measured.

    Args:
        task: the task.
        variant: name of the variant.
        seed: of the splits and of the rollouts.
        sizes: how many examples, and how much is learned from them.
        models: what it runs on.
        budget: LM calls that may be spent while learning; None: no bound.
    """

    task: Task
    variant: str
    seed: int
    sizes: Sizes
    models: Models
    budget: int | None = None

    @property
    def name(self) -> str:
        """What its files are called."""
        budget = "" if self.budget is None else f"-budget{self.budget}"
        return f"{self.task.name}-{self.variant}-{self.seed}{budget}"

    @property
    def identity(self) -> dict[str, Any]:
        """What must be the same for two measurements to be of the same cell."""
        return {
            "task": self.task.name,
            "variant": self.variant,
            "seed": self.seed,
            "lm": self.models.lm,
            "reflection_lm": self.models.reflection_lm,
            "sizes": asdict(self.sizes),
            **({} if self.budget is None else {"budget": self.budget}),
        }

    def file(self, folder: Path) -> Path:
        """Where its result belongs."""
        return folder / f"{self.name}.json"

    def run_dir(self, folder: Path) -> Path:
        """Where its unfinished work is kept."""
        return folder / f"{self.name}-{fingerprint(self.identity)[:8]}"


def is_measured(cell: Cell, folder: Path) -> bool:
    """Whether the folder has the cell's result.

    Raises:
        ValueError: when the file of that name is of another cell: other sizes or another model.
    """
    file = cell.file(folder)
    if not file.exists():
        return False
    found = json.loads(file.read_text(encoding="utf-8"))
    differ = [name for name, value in cell.identity.items() if found.get(name) != value]
    if differ:
        raise ValueError(f"{file} was measured with another {' and '.join(differ)}; use another --out")
    return True


def measure(cell: Cell, variant: Variant, *, out: Path, runs: Path, threads: int) -> dict[str, Any]:
    """Measure a cell, going on where an earlier try ended, and write its result.

    An optimizer that ends without a program is a result too: it says ``failed`` and why, and has no scores.

    Raises:
        UnfinishedError, LMUnavailableError: when the LM failed; nothing is written then.
        MissingFeatureError, MissingDataError: when the cell cannot be measured here.
        ValueError: for a budget on an LM without cache, where it could not be counted.
    """
    bench = _bench(cell, runs, threads)
    with dspy.context(lm=bench.lm, disable_history=True), charging(cell.budget) as cache, quiet():
        resumed, started = bench.run_dir.exists(), time.monotonic()
        learned, failed = _learn(variant, bench)
        this_try = {
            "seconds": round(time.monotonic() - started, 1),
            "from_cache": cache.charged,
            "resumed": resumed,
            "spent": cache.spent,
            "refused": cache.refused,
        }
        cache.budget = None
        outcome = {**_learned(learned), **_scored(learned.program, bench)} if learned else {"failed": failed}
    result = {**_described(cell, variant), "this_try": this_try, **outcome}
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(cell.file(out), json.dumps(result, indent=1, ensure_ascii=False, default=str) + "\n")
    return result


def _learn(variant: Variant, bench: Bench) -> tuple[Learned | None, str]:
    try:
        return variant.learn(bench), ""
    except FailedError as error:
        return None, str(error)


def _bench(cell: Cell, runs: Path, threads: int) -> Bench:
    data = cell.task.splits(cell.seed, cell.sizes)  # first: without data no model is needed
    lm, reflection_lm = cell.models.open()
    if cell.budget is not None and not all(each.cache for each in (lm, reflection_lm) if each is not None):
        raise ValueError("a budget is counted where DSPy caches answers; open the LM with cache=True")
    return Bench(
        task=cell.task,
        data=data,
        seed=cell.seed,
        sizes=cell.sizes,
        lm=lm,
        reflection_lm=reflection_lm,
        threads=threads,
        run_dir=cell.run_dir(runs),
        budget=cell.budget,
    )


def _described(cell: Cell, variant: Variant) -> dict[str, Any]:
    return {
        "format": FORMAT,
        **cell.identity,
        "about": variant.about,
        "source": cell.task.source,
        "versions": {"tgrpo_dspy": __version__, "dspy": dspy.__version__, "python": platform.python_version()},
    }


def _learned(learned: Learned) -> dict[str, Any]:
    """What the program carries, how it came to it, and what that took."""
    named = learned.program.named_predictors()
    return {
        "settings": learned.settings,
        "usage": {role: asdict(usage) for role, usage in learned.usage.items()},
        "library": [experience.text for experience in read_library(learned.program)],
        "demos": {name: [dict(demo) for demo in predictor.demos] for name, predictor in named},
        "course": _course(learned.report) if learned.report else None,
    }


def _scored(program: dspy.Module, bench: Bench) -> dict[str, Any]:
    """What the program is worth on each set, and what it takes to run it."""
    sets = {"validation": bench.data.val, "held-out": bench.data.test, "out-of-domain": bench.data.ood}
    scored = {name: score(program, examples, bench.task.metric, bench.threads) for name, examples in sets.items()}
    return {
        "items": {name: _keys(examples) for name, examples in sets.items()},
        "scores": {name: each.scores for name, each in scored.items()},
        "scoring_usage": {name: asdict(each.usage) for name, each in scored.items()},
        "prompt_tokens_per_call": {
            "estimated": prompt_tokens(program, bench.data.test),
            "provider": scored["held-out"].prompt_tokens_per_call,
        },
    }


def _keys(examples: Sequence[dspy.Example]) -> list[str]:
    return [item.key for item in items_of(examples, "examples")] if examples else []


def _course(report: CompileReport) -> dict[str, Any]:
    """How the learning went, in numbers and lessons."""
    return {
        "student_validation": report.student.mean if report.student else None,
        "best_step": report.best_step,
        "steps": [_step(record) for record in report.steps],
    }


def _step(record: StepRecord) -> dict[str, Any]:
    return {
        "mean_reward": record.mean_reward,
        "groups": len(record.groups),
        "rollouts": sum(len(group.rollouts) for group in record.groups),
        "informative": record.informative,
        "lost": record.lost,
        "proposed": len(record.proposed),
        "applied": len(record.applied),
        "refused": [refusal.reason for refusal in record.refused],
        "dropped": [experience.text for experience in record.dropped],
        "effects": {identifier: asdict(effect) for identifier, effect in record.effects.items()},
        "experiences": [experience.text for experience in record.after],
        "validation": record.evaluation.mean if record.evaluation else None,
        "accepted": record.accepted,
        "verdict": record.verdict,
        "seconds": round(record.seconds, 1),
    }
