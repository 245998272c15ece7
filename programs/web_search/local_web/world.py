"""The countries of the CIA World Factbook, and what they say about each other: regions, borders, trade partners."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from programs.country_records.data import country_name, raw_countries, raw_text
from programs.web_search.folding import fold

REGIONS: Mapping[str, str] = {
    "africa": "Africa",
    "antarctica": "Antarctica",
    "australia-oceania": "Australia and Oceania",
    "central-america-n-caribbean": "Central America and the Caribbean",
    "central-asia": "Central Asia",
    "east-n-southeast-asia": "East and Southeast Asia",
    "europe": "Europe",
    "middle-east": "Middle East",
    "north-america": "North America",
    "south-america": "South America",
    "south-asia": "South Asia",
}
"""Regions of the source by name."""

_WHOLE_WORLD = "world"
"""Region of the source's entry on the whole world, which is no country and has no page."""

UNION = "ee"
"""The European Union: it has a page, but is compared with no country."""

# What the source's own lists of borders call them; its short forms are odd ("The Dominican", "DRC") or missing.
_NAMES: Mapping[str, str] = {
    "cf": "Republic of the Congo",
    "cg": "Democratic Republic of the Congo",
    "dr": "Dominican Republic",
    "ee": "European Union",
    "gz": "Gaza Strip",
    "sv": "Svalbard",
    "um": "United States Pacific Island Wildlife Refuges",
}

# Other names for a country in the lists of borders and partners.
_ALIASES: Mapping[str, str] = {
    "us": "us",
    "usa": "us",
    "uk": "uk",
    "uae": "ae",
    "nz": "nz",
    "s. korea": "ks",
    "czech republic": "ez",
    "macedonia": "mk",
    "micronesia": "fm",
}

NAMED_NUMBER = re.compile(r"(?P<name>[A-Z][^;,:()\d%]*?)(?:\s*\([^)]*\))?\s+(?P<number>\d[\d,]*(?:\.\d+)?)")
"""A country and its number in lists such as "Austria 158 km; France 525 km" and "Germany 14%, China 12%"."""


@dataclass(frozen=True, kw_only=True)
class Country:
    """One country or territory; ``raw`` is everything the source says of it."""

    code: str
    name: str
    region: str
    raw: Any = field(repr=False, compare=False)

    def text(self, *path: str) -> str:
        """The text under a path of keys in one line, "" where there is none."""
        return raw_text(self.raw, *path)

    @property
    def slug(self) -> str:
        """The name in letters that an address may have."""
        return slug(self.name)

    @property
    def path(self) -> str:
        """Path of its page on the site."""
        return f"/countries/{self.slug}"

    @property
    def spoken(self) -> str:
        """The name inside a sentence: "the Netherlands", "the Gambia", "France"."""
        return spoken(self.name)


_WITH_ARTICLE = re.compile(
    r"(Islands|Emirates|Kingdom|States|Netherlands|Philippines|Maldives|Comoros|Republic|Union|Refuges"
    r"|Territory|Lands|Gaza Strip|West Bank|Middle East)$"
    r"|^(Republic|Democratic Republic|Federated|Holy See|Isle|Falkland)"
)


@dataclass(frozen=True, kw_only=True)
class Share:
    """A country named with a number in a list of another one: kilometres of border, or percent of trade."""

    country: Country | None
    name: str
    number: float


class World:
    """All countries, by code in alphabetical order of their names.

    Args:
        raw: code, region and content of every entry of the source.

    Raises:
        ValueError: for an entry of an unknown region, or without a name.
    """

    def __init__(self, raw: Iterable[tuple[str, str, Any]]) -> None:
        countries = [_country(*entry) for entry in raw if entry[1] != _WHOLE_WORLD]
        self.countries: Mapping[str, Country] = {
            country.code: country
            for country in sorted(countries, key=lambda country: (_key(country.name), country.code))
        }

    def __iter__(self) -> Iterator[Country]:
        return iter(self.countries.values())

    def in_region(self, region: str) -> list[Country]:
        """The countries of a region, by name."""
        return [country for country in self if country.region == region]

    def named(self, name: str) -> Country | None:
        """The country that the source's lists call so; None for places without a page (French Guiana, …)."""
        code = self._codes.get(_key(name))
        return self.countries.get(code) if code else None

    def borders(self, country: Country) -> list[Share]:
        """The neighbours on land with the kilometres of their common border, as the country's page lists them."""
        return self._shares(country.text("Geography", "Land boundaries", "border countries"))

    def export_partners(self, country: Country) -> list[Share]:
        """The countries that buy most, with the percent of the exports, as the country's page lists them."""
        return self._shares(country.text("Economy", "Exports - partners"))

    def neighbours(self, country: Country) -> set[str]:
        """Codes of the countries that list this one as a neighbour, or that it lists."""
        return self._neighbours[country.code]

    def _shares(self, text: str) -> list[Share]:
        numbers: dict[str, float] = {}
        for match in NAMED_NUMBER.finditer(text):
            numbers[match["name"]] = numbers.get(match["name"], 0.0) + float(match["number"].replace(",", ""))
        return [Share(country=self.named(name), name=name, number=number) for name, number in numbers.items()]

    @cached_property
    def _codes(self) -> Mapping[str, str]:
        codes = dict(_ALIASES)
        for country in self:
            forms = [
                country.text("Government", "Country name", f"conventional {form} form") for form in ("long", "short")
            ]
            codes.update(
                {_key(form): country.code for form in [*forms, country.name] if _key(form) not in ("", "none")}
            )
        return codes

    @cached_property
    def _neighbours(self) -> Mapping[str, set[str]]:
        found: dict[str, set[str]] = {country.code: set() for country in self}
        for country in self:
            for share in self.borders(country):
                if share.country and UNION not in (country.code, share.country.code):
                    found[country.code].add(share.country.code)
                    found[share.country.code].add(country.code)
        return found


def _country(code: str, region: str, content: Any) -> Country:
    if region not in REGIONS:
        raise ValueError(f"{code} is in the unknown region {region!r}; known are {', '.join(REGIONS)}")
    return Country(code=code, name=_NAMES.get(code) or country_name(content), region=region, raw=content)


def region_path(region: str) -> str:
    """Path of a region's page on the site."""
    return f"/regions/{region}"


@cache
def the_world() -> World:
    """The world of the installed package, read once."""
    return World(raw_countries())


def spoken(name: str) -> str:
    """A name inside a sentence, with the article that it takes there."""
    if name.startswith("The "):
        return "t" + name[1:]
    return f"the {name}" if _WITH_ARTICLE.search(name) else name


def slug(text: str) -> str:
    """The text in lower-case ASCII letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", fold(text)).strip("-") or "page"


def _key(name: str) -> str:
    """What is the same for all spellings of a name: "Côte d'Ivoire", "Cote d'Ivoire"; "St. Lucia", "Saint Lucia"."""
    plain = fold(re.sub(r"\([^)]*\)", "", name)).replace("&", "and").replace("st. ", "saint ")
    return " ".join(plain.split()).removeprefix("the ")
