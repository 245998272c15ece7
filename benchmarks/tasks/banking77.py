"""banking77, reduced to intents that are easily taken for each other. The intents to choose from are an input."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import dspy

from programs.task import HELD_OUT, Sizes, Splits, Task, exact_match, halves, require_file, take

TRANSFERS = (
    "balance_not_updated_after_bank_transfer",
    "declined_transfer",
    "failed_transfer",
    "pending_transfer",
    "transfer_not_received_by_recipient",
    "transfer_timing",
)
CARDS = (
    "activate_my_card",
    "card_arrival",
    "card_delivery_estimate",
    "card_linking",
    "get_physical_card",
    "order_physical_card",
)
_URL = "https://github.com/PolyAI-LDN/task-specific-datasets (CC BY 4.0, folder banking_data)"


class NameIntent(dspy.Signature):
    """Name the intent of the customer's message."""

    message: str = dspy.InputField()
    intents: str = dspy.InputField()
    intent: str = dspy.OutputField()


def task(folder: Path) -> Task:
    """The task, read from a folder with banking77's ``train.csv`` and ``test.csv``."""

    def splits(seed: int, sizes: Sizes) -> Splits:
        train, val = halves(_load(folder / "train.csv", TRANSFERS), seed)
        test, ood = (_load(folder / "test.csv", intents) for intents in (TRANSFERS, CARDS))
        return Splits(
            train=take(train, sizes.train, seed, _intent),
            val=take(val, sizes.val, seed, _intent),
            test=take(test, sizes.test, HELD_OUT, _intent),
            ood=take(ood, sizes.ood, HELD_OUT, _intent),
        )

    return Task(
        name="banking77",
        source="banking77 (CC BY 4.0), six intents about transfers; out-of-domain: six about cards",
        student=lambda: dspy.Predict(NameIntent),
        metric=exact_match("intent"),
        splits=splits,
        allowed=(*TRANSFERS, ", ".join(TRANSFERS)),
    )


def _intent(example: dspy.Example) -> str:
    return str(example.intent)


def _load(path: Path, intents: Sequence[str]) -> list[dspy.Example]:
    with require_file(path, _URL).open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["category"] in intents]
    given = {"intents": ", ".join(intents)}
    return [
        dspy.Example(message=row["text"], intent=row["category"], **given).with_inputs("message", "intents")
        for row in rows
    ]
