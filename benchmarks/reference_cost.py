"""What a run's reflection cost, beside the structure of the public reference pipeline on the very same groups.

``python -m benchmarks.reference_cost RUN_DIR…`` reads finished runs (folders given as ``run_dir`` to ``compile``) and
prints, for every step, LM calls and tokens of the reflection as they were, and what the other structure would have
taken at least. It reflects on the groups whose rewards differ, and asks for each of them a summary of every rollout,
one advantage from the summaries, and one update of the library from the advantage; then one update for the batch.

Only what must be in its prompts is counted there (the attempts, the example, the texts written before, the library)
and none of its instructions; each text it writes is taken to be as long as ours were on average. So its tokens are a
lower bound. Tokens are estimated from the texts for it, and counted by the provider for ours.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tables import markdown
from tgrpo_dspy import RunDirError, Usage
from tgrpo_dspy.library.limits import estimate_tokens
from tgrpo_dspy.records import CompileReport, Group, Rollout, StepRecord
from tgrpo_dspy.reflection.trajectory import render_library
from tgrpo_dspy.views.html import recorded_run
from tgrpo_dspy.views.recorded import Recorded

_COLUMNS = (
    *("step", "groups", "informative", "our calls", "reference calls"),
    *("our tokens in", "reference tokens in", "our tokens out", "reference tokens out"),
)


@dataclass(frozen=True)
class StepCost:
    """What reflecting on one step took, and what it would take in the reference's structure."""

    step: int
    groups: int
    informative: int
    ours: Usage
    reference: Usage

    def cells(self) -> Iterator[str]:
        """The row of the table."""
        yield from map(str, (self.step, self.groups, self.informative))
        yield from _pairs(self.ours, self.reference)


def costs(report: CompileReport, recorded: Recorded) -> list[StepCost]:
    """The cost of every step's reflection, both ways.

    Args:
        report: of the run.
        recorded: its rollouts with their turns.
    """
    return [_step_cost(record, recorded) for record in report.steps]


def _step_cost(record: StepRecord, recorded: Recorded) -> StepCost:
    ours = record.usage.get("reflection", Usage())
    written = ours.completion_tokens // max(1, ours.calls)
    informative = [group for group in record.groups if group.spread > 0]
    calls = prompt_tokens = 0
    library = estimate_tokens(render_library(record.before))
    for group in informative:
        rollouts = [recorded.attempts.get((record.step, group.key, r.number), r) for r in group.rollouts]
        example = _example_tokens(group, recorded)
        calls += len(rollouts) + 2
        prompt_tokens += sum(_attempt_tokens(rollout) + example for rollout in rollouts)
        prompt_tokens += example + len(rollouts) * written + library
        prompt_tokens += written + library
    if informative:
        calls += 1
        prompt_tokens += len(informative) * written + library
    reference = Usage(calls=calls, prompt_tokens=prompt_tokens, completion_tokens=calls * written)
    return StepCost(record.step, len(record.groups), len(informative), ours, reference)


def _attempt_tokens(rollout: Rollout) -> int:
    texts = [text for turn in rollout.turns for text in (*turn.inputs.values(), *turn.outputs.values())]
    return estimate_tokens("\n".join([*texts, rollout.feedback]))


def _example_tokens(group: Group, recorded: Recorded) -> int:
    inputs, labels = recorded.examples.get(group.key, (group.inputs, group.labels))
    return estimate_tokens("\n".join([*inputs.values(), *labels.values()]))


def _pairs(ours: Usage, reference: Usage) -> Iterator[str]:
    for name in ("calls", "prompt_tokens", "completion_tokens"):
        mine, theirs = getattr(ours, name), getattr(reference, name)
        yield f"{mine:,}"
        yield f"{theirs:,}" + (f" ({mine / theirs:.2f})" if theirs else "")


def as_table(steps: Sequence[StepCost]) -> str:
    """A Markdown table: in brackets, ours as a part of the reference's."""
    total = [sum((getattr(step, who) for step in steps), Usage()) for who in ("ours", "reference")]
    counts = [str(sum(getattr(step, name) for step in steps)) for name in ("groups", "informative")]
    return "\n".join(markdown(_COLUMNS, [*(list(step.cells()) for step in steps), ["all", *counts, *_pairs(*total)]]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table for each run; 1 when one of them could not be read."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reference_cost", description=__doc__)
    parser.add_argument("run_dir", nargs="+", type=Path, help="folder of a finished run")
    failed = 0
    for folder in parser.parse_args(arguments).run_dir:
        try:
            report, recorded, _ = recorded_run(folder)
            table = as_table(costs(report, recorded))
        except RunDirError as error:
            print(error, file=sys.stderr)
            failed = 1
        else:
            print(f"### {folder.name}\n\n{table}\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
