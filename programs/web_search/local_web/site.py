"""The site: a page for every country, region and list, and one that leads to all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from programs.web_search.local_web.country_page import country_page
from programs.web_search.local_web.figures import FIGURES, Entry, Figure, ranking
from programs.web_search.local_web.markup import cell, column_table, document, escape, link, plain, row_head
from programs.web_search.local_web.world import REGIONS, Country, World, region_path, spoken, the_world


@dataclass(frozen=True, kw_only=True)
class Page:
    """One page: its path on the site, its title as text, and its content as HTML."""

    path: str
    title: str
    main: str

    @property
    def html(self) -> str:
        """The whole document."""
        return document(self.title, self.main)

    @property
    def text(self) -> str:
        """The words of the content in one line."""
        return plain(self.main)


class Site:
    """All pages by path. Pages are made when they are asked for, and kept."""

    def __init__(self, world: World | None = None) -> None:
        self.world = world or the_world()
        self._rankings = {figure.key: ranking(self.world, figure) for figure in FIGURES}
        self._makers = self._all_makers()
        self._pages: dict[str, Page] = {}
        self._lock = threading.Lock()

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all pages."""
        return tuple(self._makers)

    def page(self, path: str) -> Page | None:
        """The page at a path; None where there is none."""
        if path not in self._makers:
            return None
        with self._lock:
            if path not in self._pages:
                self._pages[path] = self._makers[path]()
            return self._pages[path]

    def ranking(self, figure: Figure) -> tuple[Entry, ...]:
        """The entries of a list, the greatest first."""
        return self._rankings[figure.key]

    def _all_makers(self) -> Mapping[str, Callable[[], Page]]:
        makers: dict[str, Callable[[], Page]] = {"/": self._index}
        makers.update({region_path(region): partial(self._region, region) for region in self._regions()})
        makers.update({figure.path: partial(self._list, figure) for figure in FIGURES})
        for country in self.world:
            if country.path in makers:
                raise ValueError(f"two countries would have the page {country.path}: {country.name!r} is the second")
            makers[country.path] = partial(self._country, country)
        return makers

    def _regions(self) -> list[str]:
        return [region for region in REGIONS if self.world.in_region(region)]

    def _country(self, country: Country) -> Page:
        places = [
            (figure, entry)
            for figure in FIGURES
            for entry in self.ranking(figure)
            if entry.country.code == country.code
        ]
        return Page(path=country.path, title=country.name, main=country_page(self.world, country, places))

    def _region(self, region: str) -> Page:
        name, countries = REGIONS[region], self.world.in_region(region)
        rows = (
            row_head(country.path, country.name)
            + cell(country.text("Government", "Capital", "name"))
            + cell(country.text("Geography", "Location"))
            for country in countries
        )
        main = (
            f"<h1>{escape(name)}</h1>\n"
            f'<p class="lead">The {len(countries)} countries and territories of {escape(spoken(name))}.</p>\n'
            + column_table(("Country", "Capital", "Location"), rows, "region")
        )
        return Page(path=region_path(region), title=name, main=main)

    def _list(self, figure: Figure) -> Page:
        title = f"Ranking by {figure.name}"
        rows = (
            cell(str(entry.rank)) + row_head(entry.country.path, entry.country.name) + cell(entry.wording)
            for entry in self.ranking(figure)
        )
        main = (
            f"<h1>{escape(title)}</h1>\n"
            f'<p class="lead">{escape(figure.about)} The greatest comes first; countries without a figure are left out.'
            "</p>\n" + column_table(("Rank", "Country", figure.title), rows, "ranked")
        )
        return Page(path=figure.path, title=title, main=main)

    def _index(self) -> Page:
        regions = {region_path(region): REGIONS[region] for region in self._regions()}
        lists = {figure.path: figure.title for figure in FIGURES}
        countries = {country.path: country.name for country in self.world}
        main = (
            "<h1>World Encyclopedia</h1>\n"
            f'<p class="lead">{len(countries)} countries and territories, by region, by figure and by name.</p>\n'
            f'<section aria-labelledby="regions"><h2 id="regions">Regions</h2>{_links(regions)}</section>\n'
            f'<section aria-labelledby="lists"><h2 id="lists">Rankings</h2>{_links(lists)}</section>\n'
            f'<section aria-labelledby="countries"><h2 id="countries">Countries</h2>{_links(countries)}</section>'
        )
        return Page(path="/", title="Contents", main=main)


def _links(pages: Mapping[str, str]) -> str:
    return f'<ul class="columns">{"".join(f"<li>{link(path, name)}</li>" for path, name in pages.items())}</ul>'
