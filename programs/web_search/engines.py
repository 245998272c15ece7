"""Search engines of the live web: Tavily and Serper with a key, ddgs without one."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import Any

from programs.web_search.json_api import JsonApi
from programs.web_search.search import Hit, SearchError
from programs.web_search.visible import visible

TAVILY_ENDPOINT = "https://api.tavily.com/search"
TAVILY_MOST = 20
"""Results that Tavily gives at most."""

SERPER_ENDPOINT = "https://google.serper.dev/search"
SERPER_MOST = 100

MAX_SNIPPET = 500
"""Characters of a snippet that are kept."""

_log = logging.getLogger(__name__)


class TavilyEngine:
    """Tavily (https://tavily.com). The key comes from `TAVILY_API_KEY` unless it is given.

    `timeout` is in seconds, for one of three tries; `backoff` is about how many pass before the second one.
    Raises `SearchError` without a key.
    """

    name = "Tavily"

    def __init__(
        self,
        api_key: str | None = None,
        *,
        endpoint: str = TAVILY_ENDPOINT,
        timeout: float = 15.0,
        backoff: float = 1.0,
    ) -> None:
        key = _key(self.name, api_key, "TAVILY_API_KEY")
        self._api = JsonApi(
            self.name,
            endpoint,
            headers={"Authorization": f"Bearer {key}"},
            key=key,
            key_name="TAVILY_API_KEY",
            timeout=timeout,
            backoff=backoff,
        )

    def search(self, query: str, count: int) -> list[Hit]:
        """See `SearchEngine.search`; Tavily takes at most 400 characters and gives at most 20 hits."""
        _require(query, count)
        answer = self._api.post({"query": query, "max_results": min(count, TAVILY_MOST)})
        return _hits(_results(self.name, answer, "results"), count, url="url", snippet="content")


class SerperEngine:
    """Google by Serper (https://serper.dev). The key comes from `SERPER_API_KEY` unless it is given.

    `timeout` is in seconds, for one of three tries; `backoff` is about how many pass before the second one.
    Raises `SearchError` without a key.
    """

    name = "Serper"

    def __init__(
        self,
        api_key: str | None = None,
        *,
        endpoint: str = SERPER_ENDPOINT,
        timeout: float = 15.0,
        backoff: float = 1.0,
    ) -> None:
        key = _key(self.name, api_key, "SERPER_API_KEY")
        self._api = JsonApi(
            self.name,
            endpoint,
            headers={"X-API-KEY": key},
            key=key,
            key_name="SERPER_API_KEY",
            timeout=timeout,
            backoff=backoff,
        )

    def search(self, query: str, count: int) -> list[Hit]:
        """See `SearchEngine.search`."""
        _require(query, count)
        answer = self._api.post({"q": query, "num": min(count, SERPER_MOST)})
        return _hits(_results(self.name, answer, "organic"), count, url="link", snippet="snippet")


class DdgsEngine:
    """The engines that the package ddgs asks without a key; good for a try, they soon refuse many searches.

    `timeout` is in whole seconds, for each engine it asks. Raises `SearchError` when the package is missing.
    """

    name = "ddgs"

    def __init__(self, *, timeout: int = 10) -> None:
        try:
            import ddgs
            import ddgs.exceptions
        except ImportError as error:
            raise SearchError(
                'Searching without a key needs the package ddgs: pip install "tgrpo_dspy[web]". '
                "Or set TAVILY_API_KEY or SERPER_API_KEY."
            ) from error
        self._ddgs = ddgs
        self._timeout = timeout

    def search(self, query: str, count: int) -> list[Hit]:
        """See `SearchEngine.search`."""
        _require(query, count)
        errors = self._ddgs.exceptions
        try:
            found = self._ddgs.DDGS(timeout=self._timeout).text(query, max_results=count)
        except errors.RatelimitException as error:
            raise SearchError("ddgs has asked too often; search less, or later.") from error
        except errors.TimeoutException as error:
            raise SearchError(f"ddgs got no answer within {self._timeout} s; try again later.") from error
        except errors.DDGSException as error:
            if str(error) == "No results found.":
                return []
            raise SearchError(f"ddgs got no answer: {str(error)[:200]}") from error
        return _hits(found, count, url="href", snippet="body")


def engine_from_env() -> TavilyEngine | SerperEngine | DdgsEngine:
    """Tavily or Serper, whichever has its key in the environment, in this order; else ddgs. Logs which one.

    Raises `SearchError` when there is no key and ddgs is not installed.
    """
    engine: TavilyEngine | SerperEngine | DdgsEngine
    if os.environ.get("TAVILY_API_KEY", "").strip():
        engine, why = TavilyEngine(), "TAVILY_API_KEY is set"
    elif os.environ.get("SERPER_API_KEY", "").strip():
        engine, why = SerperEngine(), "SERPER_API_KEY is set"
    else:
        engine, why = DdgsEngine(), "neither TAVILY_API_KEY nor SERPER_API_KEY is set"
    _log.info("The search engine is %s: %s.", engine.name, why)
    return engine


def _key(engine: str, given: str | None, variable: str) -> str:
    key = (os.environ.get(variable, "") if given is None else given).strip()
    if not key:
        raise SearchError(f"{engine} needs a key: set {variable}.")
    # Checked here, because whoever sends a header that is none quotes it in the error.
    if not all("!" <= character <= "~" for character in key):
        raise SearchError(f"The key in {variable} has blanks or characters beyond ASCII in it; set it anew.")
    return key


def _require(query: str, count: int) -> None:
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    if not query.strip():
        raise SearchError("The query is empty; say what to search for.")


def _results(engine: str, answer: dict[str, Any], name: str) -> list[Any]:
    found = answer.get(name)
    if not isinstance(found, list):
        raise SearchError(f"{engine} answered without a list {name!r}; is the endpoint right?")
    return found


def _hits(found: Iterable[Any], count: int, *, url: str, snippet: str) -> list[Hit]:
    """The hits with an address that can be opened."""
    return [
        Hit(title=_text(entry, "title"), url=_text(entry, url), snippet=_shortened(_text(entry, snippet)))
        for entry in found
        if _text(entry, url).startswith(("http://", "https://"))
    ][:count]


def _text(entry: object, name: str) -> str:
    value = entry.get(name) if isinstance(entry, dict) else None
    return " ".join(visible(value).split()) if isinstance(value, str) else ""


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_SNIPPET else text[: MAX_SNIPPET - 1].rstrip() + "…"
