"""One experiment: compile the program, then score student, compiled and few-shot program on unseen countries."""

from __future__ import annotations

from dataclasses import dataclass

import dspy

from programs.comparing import PairedDifference, paired_difference, scores
from programs.country_records.data import Splits
from programs.country_records.metric import field_accuracy
from programs.country_records.program import program
from tgrpo_dspy import CompileReport, TrainingFreeGRPO

FEW_SHOT_K = 2
SETS = ("held-out", "out-of-domain")


@dataclass(frozen=True)
class Outcome:
    """The compiled program, the report of its run, and the scores by set and program, one per example."""

    compiled: dspy.Predict
    report: CompileReport
    scores: dict[str, dict[str, list[float]]]

    def difference(self, name: str) -> PairedDifference:
        """Compiled minus student on one of the sets."""
        return paired_difference(self.scores[name]["compiled"], self.scores[name]["student"])


def run(optimizer: TrainingFreeGRPO, splits: Splits, *, few_shot: bool = True, verbose: bool = True) -> Outcome:
    """Compile on training and validation data only, then score on the held-out and the out-of-domain set."""
    student = program()
    compiled = optimizer.compile(student, trainset=splits.train, valset=splits.val, verbose=verbose)
    assert optimizer.report is not None
    programs = {"student": student, "compiled": compiled}
    if few_shot:
        programs["few-shot"] = dspy.LabeledFewShot(k=FEW_SHOT_K).compile(student, trainset=splits.train)
    data = dict(zip(SETS, (splits.test, splits.ood), strict=True))
    table = {
        name: {
            label: scores(candidate, examples, field_accuracy, num_threads=optimizer.num_threads or 4, verbose=verbose)
            for label, candidate in programs.items()
        }
        for name, examples in data.items()
    }
    return Outcome(compiled, optimizer.report, table)
