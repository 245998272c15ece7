"""The page of one country: what the source says of it, section by section."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from programs.web_search.local_web.figures import Entry, Figure
from programs.web_search.local_web.markup import (
    cell,
    column_table,
    escape,
    fact_table,
    link,
    linked,
    paragraphs,
    plain,
    row_head,
)
from programs.web_search.local_web.world import NAMED_NUMBER, REGIONS, Country, World, region_path, slug

_SHORT = 140
"""Characters up to which a fact is a line of a table; longer ones get a heading."""

# Addresses of embassies and samples of scripts: nothing that an encyclopedia would print.
_LEFT_OUT = {
    "Map references",
    "major-language sample(s)",
    "Diplomatic representation in the US",
    "Diplomatic representation from the US",
}

_NAMES_COUNTRIES = {"border countries", "Exports - partners", "Imports - partners"}


def country_page(world: World, country: Country, places: Sequence[tuple[Figure, Entry]]) -> str:
    """The content of a country's page; ``places`` are the lists it stands in."""
    sections = _sections(world, country)
    if places:
        sections["In comparison"] = _comparison(places)
    contents = "".join(f"<li>{link('#' + slug(name), name)}</li>" for name in sections)
    body = "\n".join(
        f'<section aria-labelledby="{slug(name)}"><h2 id="{slug(name)}">{escape(name)}</h2>\n{content}</section>'
        for name, content in sections.items()
    )
    return (
        f"<h1>{escape(country.name)}</h1>\n{_lead(country)}{_at_a_glance(world, country)}"
        f'<nav class="contents" aria-label="On this page"><ul class="inline">{contents}</ul></nav>\n{body}'
    )


def _lead(country: Country) -> str:
    long_name = country.text("Government", "Country name", "conventional long form")
    location = country.text("Geography", "Location")
    parts = [part for part in (long_name, location if len(location) <= _SHORT else "") if part not in ("", "none")]
    return f'<p class="lead">{escape("; ".join(parts))}</p>\n' if parts else ""


def _at_a_glance(world: World, country: Country) -> str:
    neighbours = [
        link(share.country.path, share.country.name) if share.country else escape(share.name)
        for share in world.borders(country)
    ]
    rows = {
        "Region": link(region_path(country.region), REGIONS[country.region]),
        "Neighbours": ", ".join(neighbours),
        "Capital": escape(country.text("Government", "Capital", "name")),
        "Population": escape(country.text("People and Society", "Population", "total")),
        "Area": escape(country.text("Geography", "Area", "total")),
        "Government": escape(country.text("Government", "Government type")),
    }
    return fact_table((name, value) for name, value in rows.items() if value) + "\n"


def _comparison(places: Sequence[tuple[Figure, Entry]]) -> str:
    rows = (
        row_head(figure.path, figure.title) + cell(entry.wording) + cell(str(entry.rank)) for figure, entry in places
    )
    return column_table(("Ranking", "Figure", "Rank"), rows, "places")


def _sections(world: World, country: Country) -> dict[str, str]:
    """The HTML of each section of the source; what an earlier section has said is not repeated."""
    said: set[tuple[str, str]] = set()
    sections = {}
    for name, facts in country.raw.items():
        if isinstance(facts, Mapping) and (content := _facts(world, facts, said)):
            sections[name] = content
    return sections


def _facts(world: World, facts: Mapping[str, Any], said: set[tuple[str, str]]) -> str:
    """Short facts that follow each other share a table; long ones, and those with parts, have a heading."""
    pieces: list[str] = []
    short: list[tuple[str, str]] = []
    for name, fact in facts.items():
        words, block = _fact(world, name, fact)
        if (name, words + block) in said or not words + block:
            continue
        said.add((name, words + block))
        if words:
            short.append((_label(name), words))
            continue
        pieces += [fact_table(short)] if short else []
        short = []
        pieces.append(block if name == "Background" else f"<h3>{_label(name)}</h3>{block}")
    return "\n".join([*pieces, fact_table(short)] if short else pieces)


def _fact(world: World, name: str, fact: Any) -> tuple[str, str]:
    """The HTML of one fact: words that fit into a line, or else a block of paragraphs and a table."""
    if name in _LEFT_OUT or not isinstance(fact, Mapping):
        return "", ""
    own = _words(world, name, fact)
    parts = [
        (_label(part, name), words[0] if len(words) == 1 else _wrapped(words))
        for part, value in fact.items()
        if part not in _LEFT_OUT and isinstance(value, Mapping) and (words := _words(world, part, value))
    ]
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in _texts(fact, "note"))
    if len(own) == 1 and not parts and not notes and len(plain(own[0])) <= _SHORT:
        return own[0], ""
    return "", _wrapped(own) + (fact_table(parts) if parts else "") + notes


def _words(world: World, name: str, fact: Mapping[str, Any]) -> list[str]:
    """The paragraphs of a fact itself as HTML; countries in lists of neighbours and partners are linked."""
    texts = [_without_label(text, name) for text in _texts(fact, "text")]
    if name in _NAMES_COUNTRIES:
        return [linked(text, NAMED_NUMBER, lambda found: _path(world, found)) for text in texts]
    return [escape(text) for text in texts]


def _path(world: World, name: str) -> str | None:
    country = world.named(name)
    return country.path if country else None


def _texts(fact: Mapping[str, Any], key: str) -> list[str]:
    text = fact.get(key)
    return paragraphs(text) if isinstance(text, str) else []


def _wrapped(words: list[str]) -> str:
    return "".join(f"<p>{text}</p>" for text in words)


def _without_label(text: str, name: str) -> str:
    """ "arable land: 10%" under "agricultural land: arable land" is "10%"; a currency loses the dash behind it."""
    return text.removeprefix(f"{name.split(': ')[-1]}: ").removesuffix(" -")


def _label(name: str, of: str = "") -> str:
    """The name of a fact as a heading; "Real GDP per capita 2024" below "Real GDP per capita" is "2024"."""
    name = name.strip()
    year = re.fullmatch(r"(.*) (\d{4})", name)
    if year and year[1].casefold() == of.casefold():
        name = year[2]
    return escape(name[:1].upper() + name[1:])
