"""Tasks to measure on, by name. Each is one file: data, student, metric, splits; a new one is a line here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.tasks import applications, banking77, bbh, factbook_values, hidden_rules, reasoning
from programs.country_records.task import task as country_records
from programs.task import Task


def tasks(data_dir: Path) -> Mapping[str, Task]:
    """All tasks; their data is read when it is asked for, public data sets from ``data_dir``."""
    found = [country_records(), factbook_values.task(), *bbh.tasks(data_dir / "bbh")]
    found += [banking77.task(data_dir / "banking77"), *reasoning.tasks(), *applications.tasks(data_dir)]
    found += hidden_rules.tasks()
    return {task.name: task for task in found}
