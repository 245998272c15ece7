"""The figures by which countries are compared, and the order they stand in."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from programs.web_search.local_web.world import UNION, Country, World

_SCALES = {"million": 1e6, "billion": 1e9, "trillion": 1e12}


def leading_number(text: str) -> float | None:
    """The number a text begins with: "$936.564 billion (2024 est.)" is 936564000000."""
    match = re.match(r"(-?)\$?(\d[\d,]*(?:\.\d+)?)(?: (million|billion|trillion)\b)?", text)
    if not match:
        return None
    return float(f"{match[1]}{match[2].replace(',', '')}") * _SCALES.get(match[3], 1.0)


def highest_metres(text: str) -> float | None:
    """The height of a single highest point: "Mont Blanc 4,810" is 4810; None where several places share the text."""
    remark = re.split(r"\bnote\b", re.sub(r"\([^)]*\)", "", text))[0].strip()
    heights = [found for part in remark.split(";") if (found := re.findall(r"(\d[\d,]*)(?: m\b|$)", part.strip()))]
    return float(heights[0][-1].replace(",", "")) if len(heights) == 1 else None


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Something that countries are ranked by, the greatest first.

    Args:
        key: last part of the address of its list.
        name: what it is called inside a sentence.
        about: one sentence for the list.
        most: what the first country has, in words behind "the" or "the second": "largest population".
        keys: where the source has it; the newest of its years where it is given by year.
        number: reads the source's wording; None leaves a country out.
    """

    key: str
    name: str
    about: str
    most: str
    keys: tuple[str, ...]
    number: Callable[[str], float | None] = leading_number

    @property
    def path(self) -> str:
        """Path of its list on the site."""
        return f"/lists/{self.key}"

    @property
    def title(self) -> str:
        """The name as a heading."""
        return self.name[0].upper() + self.name[1:]

    def wording(self, country: Country) -> str:
        """The figure as the source words it, "" where there is none."""
        text = country.text(*self.keys)
        return text or country.text(*self.keys, newest_year(country, self.keys))


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of a list; countries with the same number have the same rank."""

    rank: int
    country: Country
    number: float
    wording: str


FIGURES = (
    Figure(
        key="population",
        name="population",
        about="Number of inhabitants.",
        most="largest population",
        keys=("People and Society", "Population", "total"),
    ),
    Figure(
        key="area",
        name="area",
        about="Land and inland water together.",
        most="largest total area",
        keys=("Geography", "Area", "total"),
    ),
    Figure(
        key="highest-point",
        name="highest point",
        about="Height of the highest point above sea level.",
        most="highest summit",
        keys=("Geography", "Elevation", "highest point"),
        number=highest_metres,
    ),
    Figure(
        key="coastline",
        name="coastline",
        about="Length of the boundary between land and sea, islands included.",
        most="longest coastline",
        keys=("Geography", "Coastline"),
    ),
    Figure(
        key="land-boundaries",
        name="land boundaries",
        about="Length of all borders on land together.",
        most="longest land boundaries",
        keys=("Geography", "Land boundaries", "total"),
    ),
    Figure(
        key="forest",
        name="forest",
        about="Share of the land that is forest.",
        most="largest share of forest",
        keys=("Geography", "Land use", "forest"),
    ),
    Figure(
        key="median-age",
        name="median age",
        about="Age that half of the people are older than.",
        most="highest median age",
        keys=("People and Society", "Median age", "total"),
    ),
    Figure(
        key="life-expectancy",
        name="life expectancy at birth",
        about="Years that a newborn child lives on average.",
        most="highest life expectancy at birth",
        keys=("People and Society", "Life expectancy at birth", "total population"),
    ),
    Figure(
        key="fertility-rate",
        name="total fertility rate",
        about="Children that a woman has on average.",
        most="highest total fertility rate",
        keys=("People and Society", "Total fertility rate"),
    ),
    Figure(
        key="urban-population",
        name="urban population",
        about="Share of the people who live in towns.",
        most="largest share of urban population",
        keys=("People and Society", "Urbanization", "urban population"),
    ),
    Figure(
        key="gdp-per-head",
        name="GDP per head",
        about="Real gross domestic product per head at purchasing power parity, in the newest year the source gives.",
        most="highest real GDP per head",
        keys=("Economy", "Real GDP per capita"),
    ),
    Figure(
        key="gdp",
        name="GDP at the official exchange rate",
        about="Gross domestic product in US dollars.",
        most="largest GDP at the official exchange rate",
        keys=("Economy", "GDP (official exchange rate)"),
    ),
    Figure(
        key="internet-users",
        name="internet users",
        about="Share of the people who use the internet.",
        most="largest share of internet users",
        keys=("Communications", "Internet users", "percent of population"),
    ),
    Figure(
        key="airports",
        name="airports",
        about="Number of airports and airfields.",
        most="largest number of airports",
        keys=("Transportation", "Airports"),
    ),
    Figure(
        key="railways",
        name="railways",
        about="Length of the railways.",
        most="longest railway network",
        keys=("Transportation", "Railways", "total"),
    ),
    Figure(
        key="carbon-dioxide",
        name="carbon dioxide emissions",
        about="Carbon dioxide from energy in a year.",
        most="largest carbon dioxide emissions",
        keys=("Environment", "Carbon dioxide emissions", "total emissions"),
    ),
)


def newest_year(country: Country, keys: tuple[str, ...]) -> str:
    """The last by year of the keys under a path ("Real GDP per capita 2024"), "" where none has a year."""
    node = country.raw
    for key in keys:
        node = node.get(key, {}) if isinstance(node, dict) else {}
    years = [key for key in node if re.search(r"\b\d{4}$", key)] if isinstance(node, dict) else []
    return max(years, key=lambda key: key[-4:], default="")


def ranking(world: World, figure: Figure) -> tuple[Entry, ...]:
    """The countries that have the figure, the greatest first; zero is no place in a list."""
    found = [
        (number, country, wording)
        for country in world
        if country.code != UNION
        and (wording := figure.wording(country))
        and (number := figure.number(wording)) is not None
        and number > 0
    ]
    found.sort(key=lambda item: -item[0])
    numbers = [number for number, _, _ in found]
    return tuple(
        Entry(rank=numbers.index(number) + 1, country=country, number=number, wording=wording)
        for number, country, wording in found
    )
