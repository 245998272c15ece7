"""What counts as the address of a page: http or https, a host, nothing secret in it."""

from __future__ import annotations

import httpx

from programs.web_search.unreadable import UnreadablePageError, quoted


def web_address(text: str, base: httpx.URL | None = None) -> httpx.URL:
    """`text`, relative to `base` where there is one, as an address without its fragment.

    Raises `UnreadablePageError` when that is no address of a page.
    """
    try:
        url = httpx.URL(text.strip()) if base is None else base.join(text.strip())
        host, port = url.host, url.port or 80
    except (httpx.InvalidURL, UnicodeError) as error:  # UnicodeError: the host begins with xn-- and is not IDNA
        raise UnreadablePageError(f"This is no web address: {quoted(text)} ({quoted(error)}).") from error
    if url.scheme not in ("http", "https"):
        raise UnreadablePageError(f"Only addresses with http:// or https:// can be read, not {quoted(text)}.")
    if not host or "%" in host or not 0 < port < 65536:
        raise UnreadablePageError(f"This is no web address, its host or port is wrong: {quoted(text)}.")
    if url.userinfo:
        raise UnreadablePageError(f"The address has a user name or password before {quoted(host)}; leave that out.")
    return url.copy_with(fragment=None)
