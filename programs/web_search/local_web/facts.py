"""Single facts of a country that have one plain reading; whatever is vague, double or disputed is left out."""

from __future__ import annotations

import re
from dataclasses import dataclass

from programs.web_search.local_web.figures import highest_metres
from programs.web_search.local_web.question import Evidence
from programs.web_search.local_web.world import Country

_DATE = r"\d{1,2} (?:January|February|March|April|May|June|July|August|September|October|November|December)"


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A value as the page writes it, and the place on the page."""

    value: str
    evidence: Evidence


def capital(country: Country) -> Fact | None:
    """The only capital, under its only name: "Bern", not "Hanoi (Ha Noi)" or "Pretoria (administrative capital)"."""
    keys = ("Government", "Capital", "name")
    return _read(country, "Name", keys, r"([A-Z][^;,()]*?)(?: \((?:on|located on) [^()]*\))?")


def currency(country: Country) -> Fact | None:
    """The three-letter code of the currency, as the source gives it: "CHF"."""
    return _read(
        country, "Currency", ("Economy", "Exchange rates", "Currency"), r"[^()]+ \(([A-Z]{3})\) per US dollar(?: -)?"
    )


def highest_point(country: Country) -> Fact | None:
    """The only name of a single highest point: "Ben Nevis", not "Mount Hermon (Jabal a-Shayk)"."""
    remark = r"(?: \((?!alternatively)[a-z][^()]*\))?"
    fact = _read(country, "Highest point", _HIGHEST, rf"([A-Z][^()\d;,/.]*?){remark} [\d,]+(?: m)?{remark}")
    return None if fact is None or re.search(r"\b(on|in|at|near|summit|location|elevation)\b", fact.value) else fact


def highest_elevation(country: Country) -> Fact | None:
    """The height of the highest point in metres: "1,345"."""
    text = country.text(*_HIGHEST)
    metres = highest_metres(text)
    return None if metres is None else _fact(country, "Highest point", text, f"{metres:,.0f}")


def internet_code(country: Country) -> Fact | None:
    """The internet country code: ".ch"."""
    return _read(country, "Internet country code", ("Communications", "Internet country code"), r"(\.[a-z]{2})")


def national_holiday(country: Country) -> Fact | None:
    """Day and month of the only national holiday: "5 July"."""
    keys = ("Government", "National holiday")
    return _read(country, "National holiday", keys, rf"[^,;]+, ({_DATE})(?: \(\d{{4}}\))?")


def independence(country: Country) -> Fact | None:
    """The year of independence where the source has a single date: "1962"."""
    return _read(country, "Independence", ("Government", "Independence"), rf"{_DATE} (\d{{4}}) \(from [^();]+\)")


def aircraft_prefix(country: Country) -> Fact | None:
    """What the registrations of civil aircraft begin with: "HB"."""
    name = "Civil aircraft registration country code prefix"
    return _read(country, name, ("Transportation", name), r"([A-Z0-9][A-Z0-9-]{0,4})")


def coastline(country: Country) -> Fact | None:
    """The length of the coastline in kilometres, none without a coast: "998"."""
    return _read(country, "Coastline", ("Geography", "Coastline"), r"([1-9][\d,.]*) km")


def land_boundaries(country: Country) -> Fact | None:
    """The length of all land boundaries in kilometres, none without any: "1,770"."""
    return _read(country, "Total", ("Geography", "Land boundaries", "total"), r"([1-9][\d,.]*) km")


def median_age(country: Country) -> Fact | None:
    """The median age in years: "44.4"."""
    return _read(country, "Total", ("People and Society", "Median age", "total"), r"(\d+(?:\.\d+)?) years.*")


def airports(country: Country) -> Fact | None:
    """The number of airports: "66"."""
    return _read(country, "Airports", ("Transportation", "Airports"), r"(\d[\d,]*) \(\d{4}\)")


def borders(country: Country) -> Evidence:
    """The place on the page that lists the neighbours on land."""
    return Evidence(
        path=country.path, text=f"Border countries {country.text('Geography', 'Land boundaries', 'border countries')}"
    )


def export_partners(country: Country) -> Evidence:
    """The place on the page that lists who buys most."""
    return Evidence(path=country.path, text=f"Exports - partners {country.text('Economy', 'Exports - partners')}")


_HIGHEST = ("Geography", "Elevation", "highest point")


def _read(country: Country, label: str, keys: tuple[str, ...], pattern: str) -> Fact | None:
    """The first group of a pattern that the whole text must match."""
    text = country.text(*keys)
    match = re.fullmatch(pattern, text)
    return _fact(country, label, text, match[1]) if match else None


def _fact(country: Country, label: str, text: str, value: str) -> Fact:
    return Fact(value=value, evidence=Evidence(path=country.path, text=f"{label} {text.removesuffix(' -')}"))
