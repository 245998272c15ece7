"""A search engine's HTTP API: JSON there and JSON back, with the patience that a busy service needs."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any

import httpx
import orjson

from programs.web_search.guarded_http import tls
from programs.web_search.retry_after import seconds_to_wait
from programs.web_search.search import SearchError
from programs.web_search.unreadable import quoted

TRIES = 3
LONGEST_WAIT = 20.0
"""Seconds between two tries; a service that asks for more is given up."""

MAX_BYTES = 5_000_000
_OFTEN = 429
_NO_KEY = (401, 403)
_FAILING = (500, 502, 503, 504)


class _PassingError(SearchError):
    """One that another try may not meet; `wait` is what the service asks for, in seconds."""

    def __init__(self, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait


class JsonApi:
    """One address that takes a JSON object and answers with one.

    `headers` carry the `key`, which came from the variable `key_name` and never gets into a message. `timeout` is in
    seconds, for a silence of the service and for the whole body of its answer; `backoff` is about how many seconds
    pass before the second try, then it doubles. Proxies of the environment are used: the address comes from the user.
    """

    def __init__(
        self,
        name: str,
        endpoint: str,
        *,
        headers: Mapping[str, str],
        key: str,
        key_name: str,
        timeout: float,
        backoff: float,
    ) -> None:
        self.name = name
        self._endpoint = endpoint
        self._headers = dict(headers)
        self._key = key
        self._key_name = key_name
        self._timeout = timeout
        self._backoff = backoff

    def post(self, body: Mapping[str, object]) -> dict[str, Any]:
        """The answer to `body`. Raises `SearchError` when there is none after `TRIES` tries."""
        for tried in range(TRIES - 1):
            try:
                return self._object(*self._send(body))
            except _PassingError as error:
                wait = self._backoff * 2**tried * random.uniform(0.5, 1.5) if error.wait is None else error.wait
                if wait > LONGEST_WAIT:
                    raise
                time.sleep(wait)
        return self._object(*self._send(body))

    def _send(self, body: Mapping[str, object]) -> tuple[httpx.Response, bytes]:
        end = time.monotonic() + self._timeout
        try:
            with (
                httpx.Client(verify=tls(), timeout=self._timeout) as client,
                client.stream("POST", self._endpoint, headers=self._headers, json=dict(body)) as response,
            ):
                content = bytearray()
                for chunk in response.iter_bytes():
                    content += chunk
                    if len(content) > MAX_BYTES:
                        raise SearchError(f"{self.name} answered with more than {MAX_BYTES} bytes.")
                    if time.monotonic() > end:
                        raise httpx.ReadTimeout("the answer came too slowly")
                return response, bytes(content)
        except httpx.TimeoutException as error:
            raise _PassingError(f"{self.name} did not answer within {self._timeout:g} s; try again later.") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _PassingError(self._safe(f"{self.name} cannot be reached: {error}.")) from error

    def _object(self, response: httpx.Response, content: bytes) -> dict[str, Any]:
        status = response.status_code
        wait = seconds_to_wait(response.headers.get("retry-after"))
        if status == _OFTEN:
            raise _PassingError(f"{self.name} has been asked too often (HTTP {status}); search less, or later.", wait)
        if status in _FAILING:
            raise _PassingError(f"{self.name} has an error (HTTP {status}); try again later.", wait)
        answer = _parsed(content)
        said = f"HTTP {status}{quoted(self._safe(_reason(answer)))}"  # first safe, then cut
        if status in _NO_KEY:
            raise SearchError(f"{self.name} refuses the key ({said}); check the key in {self._key_name}.")
        if status != 200:
            raise SearchError(f"{self.name} answered with an error ({said}).")
        if not isinstance(answer, dict):
            raise SearchError(f"{self.name} answered with something that is no JSON object; is the endpoint right?")
        return answer

    def _safe(self, text: str) -> str:
        return text.replace(self._key, "…")


def _parsed(content: bytes) -> object:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return None


def _reason(answer: object) -> str:
    """What the service says of its refusal, wherever the known ones put it."""
    for name in ("detail", "error", "message"):
        if isinstance(answer, dict) and name in answer:
            answer = answer[name]
    return f": {answer}" if isinstance(answer, str) else ""
