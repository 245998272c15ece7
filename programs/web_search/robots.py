"""What a site's robots.txt allows (RFC 9309, as `urllib.robotparser` understands it).

Simplified where that costs a site nothing it could count on: the standard library reads neither wildcards in paths nor
the longest match, the first rule that fits decides; a file is asked for once in the life of a reader.
"""

from __future__ import annotations

from urllib.robotparser import RobotFileParser

import httpx

from programs.web_search.fetching import Visit
from programs.web_search.once import OnceCache
from programs.web_search.unreadable import UnreadablePageError, quoted

MAX_BYTES = 512_000
"""What is read of a robots.txt; the standard asks for at least 500 KiB."""

MAX_SITES = 500


class Robots:
    """The robots.txt of the sites seen so far; safe to use from many threads."""

    def __init__(self, user_agent: str) -> None:
        self._user_agent = user_agent
        self._rules: OnceCache[str, RobotFileParser] = OnceCache(MAX_SITES)

    def check(self, url: httpx.URL, visit: Visit) -> None:
        """Raises `UnreadablePageError` when the site does not allow `url`, or does not say so because it fails.

        A site without the file (any 4xx) allows everything; one that answers 5xx or not at all allows nothing, and is
        asked again the next time.
        """
        file = url.copy_with(raw_path=b"/robots.txt")
        rules = self._rules.get(str(file), lambda: _rules(file, visit))
        if not rules.can_fetch(self._user_agent, str(url)):
            raise UnreadablePageError(f"robots.txt of {url.netloc.decode()} does not allow it: {quoted(url)}")

    def forget(self) -> None:
        """Ask every site again."""
        self._rules.clear()


def _rules(file: httpx.URL, visit: Visit) -> RobotFileParser:
    answer = visit.get(file, max_bytes=MAX_BYTES)
    rules = RobotFileParser()
    if 200 <= answer.status < 300:
        lines = answer.content.decode("utf-8-sig", errors="replace").splitlines()
    elif 400 <= answer.status < 500:
        lines = []
    else:
        raise UnreadablePageError(
            f"{file} could not be read (HTTP {answer.status}), so that nothing of {file.netloc.decode()} may be read."
        )
    try:
        rules.parse(lines)
    except ValueError as error:
        raise UnreadablePageError(f"{file} cannot be understood ({error}), so nothing there is read.") from error
    return rules
