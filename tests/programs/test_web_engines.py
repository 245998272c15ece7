"""The search engines against local servers that answer well, badly, or not at all."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("httpx")

from programs.web_search import json_api
from programs.web_search.engines import DdgsEngine, SerperEngine, TavilyEngine, engine_from_env
from programs.web_search.search import Hit, SearchEngine, SearchError
from tests.programs import misbehaving
from tests.programs.misbehaving import InTurn, Server, answer, json_answer

KEY = "tvly-SECRET-0123456789"
LAKE = Hit(title="Lake Foo", url="https://x.example/foo", snippet="A lake.")
POND = Hit(title="Pond", url="https://x.example/pond", snippet="")
TAVILY = {
    "query": "lake",
    "results": [
        {"title": "Lake\u200b Foo", "url": LAKE.url, "content": "A\n lake.", "score": 0.9},
        {"title": "No address"},
        {"title": "Not the web", "url": "ftp://x.example/"},
        "not even an object",
        {"title": "Pond", "url": POND.url, "content": None},
    ],
}
SERPER = {
    "searchParameters": {"q": "lake"},
    "organic": [
        {"title": "Lake Foo", "link": LAKE.url, "snippet": "A lake.", "position": 1},
        {"title": "Pond", "link": POND.url, "position": 2},
    ],
}


@pytest.fixture(autouse=True)
def no_keys_and_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TAVILY_API_KEY", "SERPER_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


def engines(server: Server, **settings: Any) -> list[SearchEngine]:
    settings = {"endpoint": server.url("/search"), "timeout": 5.0, "backoff": 0.0} | settings
    return [TavilyEngine(KEY, **settings), SerperEngine(KEY, **settings)]


def failure(engine: SearchEngine) -> str:
    with pytest.raises(SearchError) as caught:
        engine.search("lake", 5)
    assert "tvly" not in str(caught.value)  # not even the beginning of the key
    return str(caught.value)


def test_tavily(server: Server) -> None:
    server.behaviours["/search"] = json_answer(TAVILY)
    engine, _ = engines(server)
    assert engine.search("lake", 50) == [LAKE, POND]
    assert engine.search("lake", 1) == [LAKE]
    asked = server.asked[0]
    assert json.loads(asked.body) == {"query": "lake", "max_results": 20}
    assert (asked.method, asked.headers["Authorization"]) == ("POST", f"Bearer {KEY}")


def test_serper(server: Server) -> None:
    server.behaviours["/search"] = json_answer(SERPER)
    _, engine = engines(server)
    assert engine.search("lake", 2) == [LAKE, POND]
    assert engine.search("lake", 1) == [LAKE]
    asked = server.asked[0]
    assert json.loads(asked.body) == {"q": "lake", "num": 2}
    assert (asked.method, asked.headers["X-API-KEY"]) == ("POST", KEY)


def test_nothing_found_is_no_error(server: Server) -> None:
    server.behaviours["/search"] = json_answer({"results": [], "organic": []})
    assert [engine.search("lake", 5) for engine in engines(server)] == [[], []]


def test_snippets_are_bounded(server: Server) -> None:
    server.behaviours["/search"] = json_answer({"results": [{"url": "http://x.example/", "content": "word " * 1000}]})
    assert len(engines(server)[0].search("lake", 1)[0].snippet) == 500


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize(
    "body", [{"detail": {"error": f"no such key {KEY}"}}, {"message": f"bad {KEY}"}, "x" * 190 + KEY]
)
def test_a_refused_key_is_not_tried_again(server: Server, status: int, body: object) -> None:
    server.behaviours["/search"] = json_answer(body, status=status)
    for engine, variable in zip(engines(server), ("TAVILY_API_KEY", "SERPER_API_KEY"), strict=True):
        message = failure(engine)
        assert f"refuses the key (HTTP {status}" in message
        assert f"check the key in {variable}" in message
    assert len(server.asked) == 2


@pytest.mark.parametrize("status", [400, 404, 432])
def test_a_refused_query_says_why(server: Server, status: int) -> None:
    server.behaviours["/search"] = json_answer({"detail": {"error": "Query is too long."}}, status=status)
    for engine in engines(server):
        assert f"HTTP {status}: Query is too long." in failure(engine)
    assert len(server.asked) == 2


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_busy_service_is_tried_again_a_few_times(server: Server, status: int) -> None:
    busy = answer(status=status)
    for engine in engines(server):
        server.asked.clear()
        server.behaviours["/search"] = InTurn([busy, busy, json_answer({**TAVILY, **SERPER})])
        assert engine.search("lake", 2) == [LAKE, POND]
        server.behaviours["/search"] = busy
        assert f"HTTP {status}" in failure(engine)
        assert len(server.asked) == 3 + 3


def test_retry_after_is_kept_to_within_a_bound(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(json_api.time, "sleep", waits.append)
    for asked, waited in (("7", [7.0, 7.0]), ("3600", []), ("Fri, 01 Jan 2100 00:00:00 GMT", [])):
        waits.clear()
        server.behaviours["/search"] = answer(status=429, headers={"Retry-After": asked})
        assert "asked too often" in failure(engines(server)[0])
        assert waits == waited


@pytest.mark.parametrize("behaviour", ["silent", "dripping"])
def test_a_slow_service(server: Server, behaviour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_api, "TRIES", 2)
    server.behaviours["/search"] = getattr(misbehaving, behaviour)
    assert "did not answer within 0.1 s" in failure(engines(server, timeout=0.1)[0])


@pytest.mark.parametrize("behaviour", ["broken_off", "no_http"])
def test_a_service_that_breaks(server: Server, behaviour: str) -> None:
    server.behaviours["/search"] = getattr(misbehaving, behaviour)
    assert "cannot be reached" in failure(engines(server)[0])


def test_a_service_that_does_not_stop(server: Server) -> None:
    server.behaviours["/search"] = misbehaving.endless
    assert "more than 5000000 bytes" in failure(engines(server)[0])


@pytest.mark.parametrize(
    "body", ["", "<html>", "[]", "null", '{"results": {}}', '{"organic": "x"}', "{}", "\ufeff{", "[" * 9999]
)
def test_an_answer_that_cannot_be_understood(server: Server, body: str) -> None:
    server.behaviours["/search"] = answer(body, content_type="application/json")
    for engine in engines(server):
        assert "is the endpoint right?" in failure(engine)


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1/", "nonsense", "http://[", "ftp://127.0.0.1/"])
def test_an_endpoint_that_is_wrong(server: Server, endpoint: str) -> None:
    assert "cannot be reached" in failure(engines(server, endpoint=endpoint)[0])


def test_a_redirect_does_not_get_the_key(server: Server) -> None:
    server.behaviours["/search"] = misbehaving.redirect("/elsewhere", status=307)
    for engine in engines(server):
        assert "HTTP 307" in failure(engine)
    assert server.paths() == ["/search"] * 2


@pytest.mark.parametrize("key", ["", "  ", "two words", "line\nbreak", "schlüssel"])
def test_a_key_that_is_none(key: str) -> None:
    for engine in (TavilyEngine, SerperEngine):
        with pytest.raises(SearchError, match=f"{engine.name.upper()}_API_KEY") as caught:
            engine(key)
        assert not key.strip() or key not in str(caught.value)


def test_the_key_is_in_no_representation() -> None:
    assert KEY not in repr(vars(TavilyEngine(KEY))) + repr(TavilyEngine(KEY))


def test_a_query_that_is_none(server: Server) -> None:
    for engine in engines(server):
        with pytest.raises(SearchError, match="empty"):
            engine.search(" ", 5)
        with pytest.raises(ValueError, match="count"):
            engine.search("lake", 0)
    assert server.asked == []


def test_ddgs(monkeypatch: pytest.MonkeyPatch) -> None:
    ddgs = pytest.importorskip("ddgs")
    from ddgs.exceptions import DDGSException, RatelimitException, TimeoutException

    def text(self: object, query: str, *, max_results: int) -> list[dict[str, str]]:
        if query != "lake":
            raise {"often": RatelimitException, "slow": TimeoutException}.get(query, DDGSException)(query)
        found = [
            {"title": "Lake Foo", "href": LAKE.url, "body": "A lake."},
            {"title": "Pond", "href": POND.url, "body": ""},
        ]
        return found[:max_results]

    monkeypatch.setattr(type(ddgs.DDGS()), "text", text)
    engine = DdgsEngine()
    assert engine.search("lake", 2) == [LAKE, POND]
    assert engine.search("lake", 1) == [LAKE]
    assert engine.search("No results found.", 1) == []
    for query, reason in (("often", "too often"), ("slow", "within 10 s"), ("blocked", "no answer: blocked")):
        with pytest.raises(SearchError, match=reason):
            engine.search(query, 1)


def test_without_ddgs_and_keys_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ddgs", None)
    with pytest.raises(SearchError, match=r"pip install .tgrpo_dspy\[web\].*TAVILY_API_KEY or SERPER_API_KEY"):
        engine_from_env()


def test_the_environment_picks_the_engine_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("ddgs")
    caplog.set_level(logging.INFO)
    names = [engine_from_env().name]
    for variable in ("SERPER_API_KEY", "TAVILY_API_KEY"):
        monkeypatch.setenv(variable, KEY)
        names.append(engine_from_env().name)
    assert names == ["ddgs", "Serper", "Tavily"]
    said = [record.getMessage() for record in caplog.records]
    assert [message.split(":")[0] for message in said] == [f"The search engine is {name}" for name in names]
    assert KEY not in caplog.text
