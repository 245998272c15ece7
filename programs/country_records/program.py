"""The program: one prediction, from the text to the fields. The house format is deliberately not told."""

from __future__ import annotations

import dspy


class CountryRecord(dspy.Signature):
    """Fill in the country record from the text."""

    text: str = dspy.InputField()
    independence_date: str = dspy.OutputField()
    currency: str = dspy.OutputField()
    landlocked: str = dspy.OutputField()
    population: str = dspy.OutputField()


def program() -> dspy.Predict:
    """A fresh student."""
    return dspy.Predict(CountryRecord)
