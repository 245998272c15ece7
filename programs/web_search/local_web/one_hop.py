"""Questions that one page answers: a single fact of a country that the question names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from programs.web_search.folding import fold
from programs.web_search.local_web import facts
from programs.web_search.local_web.facts import Fact
from programs.web_search.local_web.question import Question, worded
from programs.web_search.local_web.world import UNION, Country, World


@dataclass(frozen=True, kw_only=True)
class _Kind:
    name: str
    read: Callable[[Country], Fact | None]
    wordings: tuple[str, ...]


_KINDS = (
    _Kind(
        name="capital",
        read=facts.capital,
        wordings=(
            "What is the capital of {country}?",
            "Which city is the capital of {country}?",
            "Name the capital of {country}.",
        ),
    ),
    _Kind(
        name="currency",
        read=facts.currency,
        wordings=(
            "Which three-letter code does the World Factbook give for the currency of {country}?",
            "In the World Factbook, what is the three-letter code of the currency of {country}?",
            "What is the currency of {country} in the World Factbook, as a three-letter code?",
        ),
    ),
    _Kind(
        name="highest_point",
        read=facts.highest_point,
        wordings=(
            "What is the highest point of {country} called?",
            "What is the name of the highest point in {country}?",
            "Which place is the highest point of {country}?",
        ),
    ),
    _Kind(
        name="highest_elevation",
        read=facts.highest_elevation,
        wordings=(
            "How many metres above sea level is the highest point of {country}, according to the World Factbook?",
            "How high in metres is the highest point of {country} in the World Factbook?",
        ),
    ),
    _Kind(
        name="internet_code",
        read=facts.internet_code,
        wordings=(
            "What is the internet country code of {country}?",
            "Which country code do internet addresses of {country} end with?",
        ),
    ),
    _Kind(
        name="national_holiday",
        read=facts.national_holiday,
        wordings=(
            "On which day and month is the national holiday of {country}?",
            "When is the national holiday of {country}? Give the day and the month.",
        ),
    ),
    _Kind(
        name="independence",
        read=facts.independence,
        wordings=(
            "In which year did {country} become independent?",
            "What is the year of independence of {country}?",
        ),
    ),
    _Kind(
        name="aircraft_prefix",
        read=facts.aircraft_prefix,
        wordings=(
            "Which country code prefix do civil aircraft registered in {country} have?",
            "What is the civil aircraft registration country code prefix of {country}?",
        ),
    ),
    _Kind(
        name="coastline",
        read=facts.coastline,
        wordings=(
            "How many kilometres long is the coastline of {country}, according to the World Factbook?",
            "What length of the coastline of {country} does the World Factbook give, in kilometres?",
        ),
    ),
    _Kind(
        name="land_boundaries",
        read=facts.land_boundaries,
        wordings=(
            "How long are the land boundaries of {country} in total, in kilometres, according to the World Factbook?",
            "What total length of the land boundaries of {country} does the World Factbook give, in kilometres?",
        ),
    ),
    _Kind(
        name="median_age",
        read=facts.median_age,
        wordings=(
            "What is the median age of the people of {country} in years, according to the World Factbook?",
            "Which median age, in years, does the World Factbook give for {country}?",
        ),
    ),
    _Kind(
        name="airports",
        read=facts.airports,
        wordings=(
            "How many airports does {country} have, according to the World Factbook?",
            "Which number of airports does the World Factbook give for {country}?",
        ),
    ),
)


def one_hop_questions(world: World) -> Iterator[Question]:
    """A question for every kind and country with a plain fact, but none that names its own answer."""
    for kind in _KINDS:
        for country in world:
            fact = kind.read(country)
            if fact is None or country.code == UNION or fold(fact.value) in fold(country.name):
                continue
            yield Question(
                question=worded(kind.wordings, f"{kind.name} {country.code}", country=country.spoken),
                answer=fact.value,
                kind=kind.name,
                hops=1,
                countries=frozenset({country.code}),
                evidence=(fact.evidence,),
            )
