"""Rollouts of earlier calls of ``compile``, from a run's store: its events tell of the last call only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from tgrpo_dspy.records import CompileReport, Rollout
from tgrpo_dspy.runs.store import DiskStore
from tgrpo_dspy.sampling.policy import rollout_id
from tgrpo_dspy.views.recorded import Recorded, cut_rollout

_ROLLOUTS = "work/rollout/"


def add_kept(recorded: Recorded, report: CompileReport, store: Path, *, seed: int) -> None:
    """Add the rollouts of the report that ``recorded`` lacks, as far as the store has them.

    Raises:
        RunDirError: when the store cannot be read.
    """
    missing = {
        str(rollout_id(seed, step.step, group.key, rollout.number)): ((step.step, group.key, rollout.number), rollout)
        for step in report.steps
        for group in step.groups
        for rollout in group.rollouts
        if (step.step, group.key, rollout.number) not in recorded.attempts
    }
    if not missing or not store.is_dir():
        return
    codec: TypeAdapter[tuple[Rollout, Any]] = TypeAdapter(tuple[Rollout, Any])
    kept = DiskStore(store)
    try:
        for key, text in kept.items(_ROLLOUTS):
            place, brief = missing.get(key.rpartition("/")[2], (None, None))
            if place is None or brief is None:
                continue
            rollout = codec.validate_json(text)[0]
            # The same example may have been run with another library before; what it said tells which is which.
            if rollout.brief().outputs == brief.outputs:
                recorded.attempts[place] = cut_rollout(rollout)
    finally:
        kept.close()
