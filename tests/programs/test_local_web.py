"""The local web: its pages, its server and its search engine, over the installed Factbook and over hostile texts."""

from __future__ import annotations

import http.client
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from programs.web_search.local_web.figures import FIGURES, highest_metres, leading_number, ranking
from programs.web_search.local_web.index import LocalIndex
from programs.web_search.local_web.markup import paragraphs
from programs.web_search.local_web.server import LocalWeb
from programs.web_search.local_web.site import Site
from programs.web_search.local_web.world import World, spoken, the_world
from programs.web_search.search import Hit, SearchError

_VOID = {"meta", "link", "br"}


@pytest.fixture(scope="module")
def site() -> Site:
    return Site()


@pytest.fixture(scope="module")
def web(site: Site) -> Iterator[LocalWeb]:
    with LocalWeb(site) as running:
        yield running


@pytest.fixture(scope="module")
def engine(web: LocalWeb) -> LocalIndex:
    return web.engine


def ask(web: LocalWeb, path: str, method: str = "GET") -> tuple[int, str, bytes, int]:
    """Status, content type, body and announced length."""
    connection = http.client.HTTPConnection(urlsplit(web.url).netloc, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        body = answer.read()
        return answer.status, answer.headers["Content-Type"], body, int(answer.headers.get("Content-Length") or 0)
    finally:
        connection.close()


class Tree(HTMLParser):
    """Complains of tags that are not closed in order, and gathers links, ids and scripts."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.tags: set[str] = set()
        self.feed(document)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not (tag == "p" and "p" in self.open)
        self.tags.add(tag)
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names) and not any(name.startswith("on") for name in names)
        if tag not in _VOID:
            self.open.append(tag)
        values = dict(attrs)
        if tag == "a":
            self.links.append(values["href"] or "")
        if values.get("id"):
            self.ids.append(values["id"] or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def raw(name: str, **sections: Any) -> dict[str, Any]:
    return {"Government": {"Country name": {"conventional short form": {"text": name}}}, **sections}


# Pages


def test_every_link_of_every_page_leads_somewhere(site: Site) -> None:
    targets = {path: set(re.findall(r' id="([^"]*)"', site.page(path).html)) for path in site.paths}  # type: ignore[union-attr]
    assert len(targets) == 1 + 11 + len(FIGURES) + 255
    for path in site.paths:
        page = site.page(path)
        assert page is not None
        for address in set(re.findall(r'href="([^"]*)"', page.html)) - {"data:,"}:
            target, _, fragment = address.partition("#")
            assert (target or path) in targets, (path, address)
            assert not fragment or fragment in targets[target or path], (path, address)


@pytest.mark.parametrize(
    "path", ["/", "/regions/europe", "/lists/highest-point", "/countries/france", "/countries/cote-d-ivoire"]
)
def test_documents_are_well_formed(site: Site, path: str) -> None:
    page = site.page(path)
    assert page is not None
    tree = Tree(page.html)
    assert len(set(tree.ids)) == len(tree.ids)
    assert {"main", "nav", "h1", "title"} <= tree.tags and "script" not in tree.tags
    assert page.html.count("<h1>") == 1 and page.html.startswith("<!DOCTYPE html>\n<html lang=")


def test_a_country_links_its_region_its_neighbours_and_its_rankings(site: Site) -> None:
    page = site.page("/countries/austria")
    assert page is not None
    links = set(Tree(page.html).links)
    assert {"/regions/europe", "/lists/area", "/lists/gdp-per-head"} <= links
    # "Czech Republic 402 km" is the page Czechia
    assert {f"/countries/{name}" for name in ("czechia", "germany", "hungary", "italy", "liechtenstein")} <= links
    assert "Border countries Czech Republic 402 km; Germany 801 km; Hungary 321 km;" in page.text
    assert "Highest point Grossglockner 3,798 m" in page.text


def test_a_page_says_a_thing_once_and_leaves_embassies_out(site: Site) -> None:
    page = site.page("/countries/switzerland")
    assert page is not None
    assert page.text.count("temperate, but varies with altitude") == 1  # the source has it under two headings
    assert "embassy" not in page.text and "Telephones - fixed lines" in page.text
    assert "Agricultural land: arable land 10% (2023 est.)" in page.text
    assert "Real GDP per capita 2024 $82,000 (2024 est.)" in page.text


def test_regions_and_names_in_sentences(site: Site) -> None:
    asia = site.page("/regions/south-asia")
    assert asia is not None and asia.title == "South Asia"
    assert "Bhutan Thimphu" in asia.text and "Germany" not in asia.text
    names = ["Netherlands", "The Gambia", "France", "United Arab Emirates", "Middle East", "Dominican Republic"]
    assert [spoken(name) for name in names] == [
        "the Netherlands",
        "the Gambia",
        "France",
        "the United Arab Emirates",
        "the Middle East",
        "the Dominican Republic",
    ]


def test_countries_are_found_by_the_names_that_other_countries_give_them() -> None:
    world = the_world()
    names = ["US", "UAE", "Czech Republic", "Cote d'Ivoire", "Holy See", "S. Korea", "Antigua & Barbuda", "The Gambia"]
    found = [world.named(name) for name in names]
    assert [country.code for country in found if country] == ["us", "ae", "ez", "iv", "vt", "ks", "ac", "ga"]
    assert world.named("French Guiana") is None
    borders = {share.name: share.number for share in world.borders(world.countries["mo"])}
    assert borders == {"Algeria": 1941.0, "Mauritania": 1564.0, "Spain": 18.5}  # two places in Spain


def test_rankings_put_the_greatest_first_and_share_ranks() -> None:
    by_key = {figure.key: ranking(the_world(), figure) for figure in FIGURES}
    heights = [(entry.rank, entry.country.name) for entry in by_key["highest-point"][:3]]
    assert heights == [(1, "China"), (1, "Nepal"), (3, "Pakistan")]  # both have Mount Everest
    assert [entry.country.name for entry in by_key["area"][:3]] == ["Russia", "Antarctica", "Canada"]
    assert by_key["gdp"][0].number == 29.185e12
    assert by_key["gdp-per-head"][0].wording == "$270,100 (2024 est.)"  # Monaco, the newest of three years
    for entries in by_key.values():
        assert len(entries) > 100
        assert "European Union" not in {entry.country.name for entry in entries}
        assert all(first.number >= second.number > 0 for first, second in pairwise(entries))


@pytest.mark.parametrize(
    ("text", "number"),
    [("1.284 million sq km", 1284000.0), ("$82,000 (2024 est.)", 82000.0), ("-28.3%", -28.3), ("NA", None), ("", None)],
)
def test_leading_numbers(text: str, number: float | None) -> None:
    assert leading_number(text) == number


@pytest.mark.parametrize(
    ("text", "metres"),
    [
        ("Mont Blanc 4,810", 4810.0),
        ("Mount McKinley 6,190 m (highest point in North America)", 6190.0),
        ("Aoraki/Mount Cook 3,724 m; note - the height was 3,764 m until 1991", 3724.0),
        ("200 m NNW of lighthouse 85 m", 85.0),
        ("unnamed elevation 675 m; located 2.5 km southeast of the town of Kotopounga", 675.0),
        ("Queen Mary's Peak 2,060 m; Green Mountain on Ascension Island 859 m", None),
        ("", None),
    ],
)
def test_heights(text: str, metres: float | None) -> None:
    assert highest_metres(text) == metres


def test_own_markup_of_the_source_is_dropped_and_signs_are_kept() -> None:
    assert paragraphs("<p>a&nbsp;&lt;1%<br/>b</p> <!-- c --><P>d <EM lang='x'>e</EM></P>") == ["a <1%", "b", "d e"]
    assert paragraphs("x < 5 and y > 3") == ["x < 5 and y > 3"]


def test_hostile_texts_stay_texts() -> None:
    attack = "\"><script>alert(1)</script>&lt;img src=x onerror=alert(2)&gt;' onclick='x"
    country = raw(
        f"Ruritania {attack}",
        Geography={
            "Location": {"text": attack, "note": attack},
            attack: {attack: {"text": attack}, "note": attack},
            "Land boundaries": {"border countries": {"text": f"Strelsau 5 km; {attack} 7 km"}},
            "Area": {"total": {"text": f"5 sq km {attack}"}},
            "Odd": ["not", "a", "mapping"],
        },
        **{attack: {"Background": {"text": attack}}, "Odd": None},
    )
    other = raw("Strelsau", Introduction={"Background": {"text": "A <b>town</b>."}})
    site = Site(World([("zz", "europe", country), ("yy", "europe", other)]))
    for path in site.paths:
        page = site.page(path)
        assert page is not None
        tree = Tree(page.html)
        assert not tree.tags & {"script", "img", "b"}
        assert all(link.startswith(("/", "#")) for link in tree.links)
    (path,) = [path for path in site.paths if path.startswith("/countries/ruritania")]
    assert re.fullmatch(r"[a-z0-9/-]+", path)
    page = site.page(path)
    assert page is not None and "<img src=x onerror=alert(2)>" in page.text  # still to be read
    assert "/countries/strelsau" in Tree(page.html).links


def test_two_countries_cannot_have_one_page() -> None:
    with pytest.raises(ValueError, match=r"two countries would have the page /countries/ruritania: 'RURITANIA' is"):
        Site(World([("a", "europe", raw("Ruritania")), ("b", "africa", raw("RURITANIA"))]))


def test_an_unknown_region_is_refused() -> None:
    with pytest.raises(ValueError, match="a is in the unknown region 'atlantis'; known are africa, "):
        World([("a", "atlantis", raw("Ruritania"))])


# Server


def test_a_page_is_served_with_its_type_and_length(web: LocalWeb, site: Site) -> None:
    page = site.page("/countries/france")
    assert page is not None
    for path in ("/countries/france", "/countries/france?from=search", "/countries/%66rance"):
        status, content_type, body, length = ask(web, path)
        assert (status, content_type) == (200, "text/html; charset=utf-8")
        assert body == page.html.encode() and length == len(body)
    status, content_type, body, head_length = ask(web, "/countries/france", "HEAD")
    assert (status, content_type, body, head_length) == (200, "text/html; charset=utf-8", b"", length)


def test_robots_are_welcome(web: LocalWeb) -> None:
    status, content_type, body, _ = ask(web, "/robots.txt")
    assert (status, content_type, body) == (200, "text/plain; charset=utf-8", b"User-agent: *\nAllow: /\n")


@pytest.mark.parametrize("path", ["/countries/atlantis", "/countries/", "/../etc/passwd", "/%00", "/<script>"])
def test_an_unknown_address_is_not_found_and_leads_back(web: LocalWeb, path: str) -> None:
    status, content_type, body, _ = ask(web, path)
    assert (status, content_type) == (404, "text/html; charset=utf-8")
    assert b"Page not found" in body and b'href="/"' in body and b"<script>" not in body


def test_other_methods_are_refused(web: LocalWeb) -> None:
    assert ask(web, "/", "POST")[0] == 501


def test_many_clients_at_once_and_not_a_word_on_stderr(web: LocalWeb, site: Site, capfd: Any) -> None:
    paths = [*site.paths[:40], "/nowhere"]
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda path: ask(web, path)[0], paths))
    assert statuses == [200] * 40 + [404]
    with socket.create_connection(("127.0.0.1", urlsplit(web.url).port or 0)) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")  # and goes away without reading
    assert capfd.readouterr() == ("", "")


def test_closing_hangs_up_and_leaves_no_thread_or_socket(site: Site) -> None:
    before = set(threading.enumerate())
    web = LocalWeb(site)
    with pytest.raises(RuntimeError, match="the local web is not running"):
        _ = web.url
    assert web.start() is web.start() is web
    address = ("127.0.0.1", urlsplit(web.url).port or 0)
    index = web.engine
    assert index is web.engine
    with socket.create_connection(address) as silent:
        assert ask(web, "/")[0] == 200
        closer = threading.Thread(target=web.close)
        closer.start()
        closer.join(5)
        assert not closer.is_alive(), "it waits for a client that says nothing"
        assert silent.recv(1) == b""
    assert set(threading.enumerate()) <= before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=5).close()
    with pytest.raises(SearchError, match="the local index is closed"):
        index.search("France", 1)
    with pytest.raises(RuntimeError, match="not running"):
        _ = web.engine
    web.close()
    with web:
        assert ask(web, "/")[0] == 200


# Search


def test_a_country_is_found_first_by_its_name(web: LocalWeb, engine: LocalIndex) -> None:
    awkward = ["gv", "pu", "ek", "cf", "cg", "ng", "ni", "do", "dr", "iv", "tp", "kn", "ks", "ga", "in", "bd"]
    countries = [*list(the_world())[::6], *(the_world().countries[code] for code in awkward)]
    for country in countries:
        (hit,) = engine.search(country.name, 1)
        assert hit == Hit(title=country.name, url=web.url + country.path, snippet=hit.snippet)


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("cote d'ivoire", "/countries/cote-d-ivoire"),
        ("CÔTE D'IVOIRE", "/countries/cote-d-ivoire"),
        ("longest railway", "/lists/railways"),  # stems
        ("which countries have the largest population?", "/lists/population"),
        ("countries of South Asia", "/regions/south-asia"),
        ("Kuna yen Nihon Kimigayo", "/countries/japan"),  # words of the content only
    ],
)
def test_what_is_meant_is_found_first(web: LocalWeb, engine: LocalIndex, query: str, path: str) -> None:
    assert engine.search(query, 3)[0].url == web.url + path


def test_a_snippet_shows_where_the_words_are(engine: LocalIndex) -> None:
    (hit,) = engine.search("Dufourspitze", 1)
    assert hit.title == "Switzerland" and "Dufourspitze on Monte Rosa 4,634 m" in hit.snippet
    assert len(hit.snippet) < 500 and "<" not in hit.snippet


@pytest.mark.parametrize("query", ["", "  ", "?!", '"', "***", "\x00", "(", "-", "\ud800"])
def test_a_query_without_words_finds_nothing(engine: LocalIndex, query: str) -> None:
    assert engine.search(query, 5) == []


@pytest.mark.parametrize(
    "query",
    ['France"', "France AND", "NOT France", "title:France", "France*", "NEAR(France", "^France", "{a b}:France"],
)
def test_operators_are_words(engine: LocalIndex, query: str) -> None:
    assert "France" in [hit.title for hit in engine.search(query, 3)]


@settings(max_examples=60, deadline=None)
@given(query=st.text(st.characters(), max_size=200) | st.text("\"'()*^:-+{}_ ANDORNEAR", max_size=40))
def test_no_query_fails(engine: LocalIndex, query: str) -> None:
    hits = engine.search(query, 3)
    assert len(hits) <= 3 and hits == engine.search(query, 3)


def test_a_very_long_query_is_answered(engine: LocalIndex) -> None:
    assert engine.search(" ".join(["France", *(f"word{number}" for number in range(20_000))]), 1)[0].title == "France"


def test_fewer_hits_are_the_first_of_more(engine: LocalIndex) -> None:
    many = engine.search("mountains and rivers of Africa", 10)
    assert len(many) == 10 == len({hit.url for hit in many})
    assert engine.search("mountains and rivers of Africa", 4) == many[:4]
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        engine.search("France", 0)


def test_threads_find_the_same(engine: LocalIndex) -> None:
    queries = [country.name for country in the_world()][:24]
    alone = [engine.search(query, 2) for query in queries]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda query: engine.search(query, 2), queries)) == alone
