"""Questions that need two steps: over a neighbour, a trade partner, a list, or from a fact back to its country."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

from programs.web_search.folding import fold
from programs.web_search.local_web import facts
from programs.web_search.local_web.figures import FIGURES, Entry, ranking
from programs.web_search.local_web.question import Evidence, Question, worded
from programs.web_search.local_web.world import REGIONS, UNION, Country, Share, World, region_path, spoken

_PLACES = ("", "second ", "third ", "fourth ", "fifth ")


def two_hop_questions(world: World) -> Iterator[Question]:
    """All questions of all kinds that have one right answer."""
    yield from _longest_border(world)
    yield from _largest_customer(world)
    yield from _neighbour_by_currency(world)
    yield from _most_populous_neighbour(world)
    yield from _common_neighbour(world)
    yield from _place_in_region(world)
    yield from _capital_by_highest_point(world)
    yield from _code_by_capital(world)


def _longest_border(world: World) -> Iterator[Question]:
    wordings = (
        "What is the capital of the country with which {country} has its longest land border?",
        "{country_first} shares its longest land border with one country. What is the capital of that country?",
    )
    for country in _countries(world):
        yield from _capital_of(
            _greatest(world.borders(country)), country, "longest_border", wordings, facts.borders(country)
        )


def _largest_customer(world: World) -> Iterator[Question]:
    wordings = (
        "What is the capital of the country that takes the largest share of the exports of {country}?",
        "Name the capital of the largest export partner of {country}.",
    )
    for country in _countries(world):
        partner = _greatest(world.export_partners(country))
        yield from _capital_of(partner, country, "largest_customer", wordings, facts.export_partners(country))


def _capital_of(
    share: Share | None, country: Country, kind: str, wordings: Sequence[str], step: Evidence
) -> Iterator[Question]:
    """The question for the capital of a country that another one leads to."""
    other = share.country if share else None
    capital = facts.capital(other) if other else None
    if not other or not capital or other.code == country.code:
        return
    name = country.spoken
    yield Question(
        question=worded(wordings, f"{kind} {country.code}", country=name, country_first=name[0].upper() + name[1:]),
        answer=capital.value,
        kind=kind,
        hops=2,
        countries=frozenset({country.code, other.code}),
        evidence=(step, capital.evidence),
    )


def _neighbour_by_currency(world: World) -> Iterator[Question]:
    wordings = (
        "Which country that borders {country} has {code} as the code of its currency in the World Factbook?",
        "Which neighbour of {country} pays in the currency with the code {code}, according to the World Factbook?",
    )
    for country in _countries(world):
        for other in _listed(world, country):
            currency = facts.currency(other)
            if not currency or _is_ambiguous(other) or not _only(world, country, other, currency.value):
                continue
            yield Question(
                question=worded(
                    wordings, f"neighbour {country.code} {other.code}", country=country.spoken, code=currency.value
                ),
                answer=other.name,
                kind="neighbour_by_currency",
                hops=2,
                countries=frozenset({country.code, other.code}),
                evidence=(facts.borders(country), currency.evidence),
            )


def _only(world: World, country: Country, other: Country, code: str) -> bool:
    """Whether no further neighbour may pay with the code."""
    rest = (world.countries[neighbour] for neighbour in world.neighbours(country) - {other.code})
    return all(code not in third.text("Economy", "Exchange rates", "Currency") for third in rest)


def _most_populous_neighbour(world: World) -> Iterator[Question]:
    wordings = (
        "Which of the countries that border {country} has the largest population?",
        "Of all neighbours of {country} on land, which one has the most inhabitants?",
    )
    population = FIGURES[0]
    entries = {entry.country.code: entry for entry in ranking(world, population)}
    for country in _countries(world):
        neighbours = world.neighbours(country)
        if len(neighbours) < 2 or not neighbours <= entries.keys() or _unresolved(world, country):
            continue
        first = min((entries[code] for code in neighbours), key=lambda entry: entry.rank)
        if _is_ambiguous(first.country) or first.country not in _listed(world, country):
            continue
        yield Question(
            question=worded(wordings, f"populous {country.code}", country=country.spoken),
            answer=first.country.name,
            kind="most_populous_neighbour",
            hops=2,
            countries=frozenset({country.code, first.country.code}),
            evidence=(facts.borders(country), _line(population.path, first)),
        )


def _common_neighbour(world: World) -> Iterator[Question]:
    wordings = (
        "Which country borders both {one} and {two}?",
        "{one_first} and {two} have exactly one neighbour in common. Which country is it?",
    )
    for one, two in combinations(_countries(world), 2):
        common = world.neighbours(one) & world.neighbours(two)
        if len(common) != 1 or _unresolved(world, one) & _unresolved(world, two):
            continue
        (third,) = (world.countries[code] for code in common)
        if _is_ambiguous(third) or not all(_is_listed_as_named(world, country, third) for country in (one, two)):
            continue
        names = random.Random(f"common {one.code} {two.code}").sample([one.spoken, two.spoken], 2)
        first = names[0][0].upper() + names[0][1:]
        yield Question(
            question=worded(wordings, f"common {one.code} {two.code}", one=names[0], two=names[1], one_first=first),
            answer=third.name,
            kind="common_neighbour",
            hops=2,
            countries=frozenset({one.code, two.code, third.code}),
            evidence=(facts.borders(one), facts.borders(two)),
        )


def _place_in_region(world: World) -> Iterator[Question]:
    wordings = (
        "Among the countries and territories of {region}, which has the {place}{most} in the World Factbook?",
        "Which country or territory in {region} has the {place}{most}, according to the World Factbook?",
    )
    for figure in FIGURES:
        entries = ranking(world, figure)
        for region in REGIONS:
            inside = [entry for entry in entries if entry.country.region == region]
            for number, place in enumerate(_PLACES):
                if not _stands_alone(inside, number) or _is_ambiguous(inside[number].country):
                    continue
                entry = inside[number]
                yield Question(
                    question=worded(
                        wordings,
                        f"place {figure.key} {region} {number}",
                        region=spoken(REGIONS[region]),
                        place=place,
                        most=figure.most,
                    ),
                    answer=entry.country.name,
                    kind="place_in_region",
                    hops=2,
                    countries=frozenset({entry.country.code}),
                    evidence=(
                        Evidence(path=region_path(region), text=entry.country.name),
                        _line(figure.path, entry, rank=True),
                    ),
                )


def _capital_by_highest_point(world: World) -> Iterator[Question]:
    wordings = (
        "What is the capital of the country whose highest point is {point}?",
        "{point} is the highest point of a country. What is the capital of that country?",
    )
    points = {country.code: fold(country.text("Geography", "Elevation", "highest point")) for country in world}
    heights = [fact.value for country in world if (fact := facts.highest_elevation(country))]
    for country in _countries(world):
        point, height, capital = facts.highest_point(country), facts.highest_elevation(country), facts.capital(country)
        if (
            not (point and height and capital)
            or _is_used(point.value, country, points)
            or heights.count(height.value) > 1
        ):
            continue
        if fold(capital.value) in fold(point.value):
            continue
        yield Question(
            question=worded(wordings, f"by point {country.code}", point=point.value),
            answer=capital.value,
            kind="capital_by_highest_point",
            hops=2,
            countries=frozenset({country.code}),
            evidence=(point.evidence, capital.evidence),
        )


def _code_by_capital(world: World) -> Iterator[Question]:
    wordings = (
        "What is the internet country code of the country whose capital is {capital}?",
        "{capital} is the capital of a country. Which internet country code does that country have?",
    )
    capitals = {country.code: fold(country.text("Government", "Capital", "name")) for country in world}
    for country in _countries(world):
        capital, code = facts.capital(country), facts.internet_code(country)
        if not capital or not code or _is_used(capital.value, country, capitals):
            continue
        yield Question(
            question=worded(wordings, f"by capital {country.code}", capital=capital.value),
            answer=code.value,
            kind="code_by_capital",
            hops=2,
            countries=frozenset({country.code}),
            evidence=(capital.evidence, code.evidence),
        )


def _countries(world: World) -> list[Country]:
    return [country for country in world if country.code != UNION]


def _listed(world: World, country: Country) -> list[Country]:
    """The neighbours that the country's own page lists."""
    return [share.country for share in world.borders(country) if share.country and share.country.code != UNION]


def _is_listed_as_named(world: World, country: Country, other: Country) -> bool:
    """Whether a country's page lists a neighbour under the name that the neighbour's page has."""
    return any(share.country == other and share.name == other.name for share in world.borders(country))


def _unresolved(world: World, country: Country) -> set[str]:
    """Neighbours without a page."""
    return {share.name for share in world.borders(country) if share.country is None}


def _greatest(shares: Iterable[Share]) -> Share | None:
    """The share with the greatest number, where it stands alone."""
    ordered = sorted(shares, key=lambda share: -share.number)
    return ordered[0] if ordered and (len(ordered) == 1 or ordered[0].number > ordered[1].number) else None


def _stands_alone(entries: Sequence[Entry], number: int) -> bool:
    """Whether nobody shares the place of an entry, and somebody stands behind it."""
    if number + 1 >= len(entries):
        return False
    before = entries[number - 1].number if number else float("inf")
    return before > entries[number].number > entries[number + 1].number


def _is_used(name: str, country: Country, folded: Mapping[str, str]) -> bool:
    """Whether a name stands in the text of another country too."""
    looked_for = fold(name)
    return any(looked_for in text for code, text in folded.items() if code != country.code)


def _is_ambiguous(country: Country) -> bool:
    """Whether a country's page gives it two names."""
    return "(" in country.name


def _line(path: str, entry: Entry, *, rank: bool = False) -> Evidence:
    """A line of a list."""
    return Evidence(path=path, text=f"{f'{entry.rank} ' if rank else ''}{entry.country.name} {entry.wording}")
