"""``python -m programs.country_records``: compile, evaluate or compare on countries nobody has seen."""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager, nullcontext

from programs.command import Application, run
from programs.country_records.data import FIELDS
from programs.country_records.task import task
from programs.task import Task


def _open(args: argparse.Namespace) -> AbstractContextManager[Task]:
    return nullcontext(task())


APPLICATION = Application(
    name="country_records",
    about="Fills in a record of a country in a house format that the model is not told.",
    open=_open,
    inputs=("text",),
    outputs=FIELDS,
)

if __name__ == "__main__":
    sys.exit(run(APPLICATION))
