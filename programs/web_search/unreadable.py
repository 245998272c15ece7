"""The one error of reading pages."""

from __future__ import annotations

_LONGEST = 200


class UnreadablePageError(RuntimeError):
    """A page could not be read; the message is short, and says to an agent what was wrong."""


def quoted(text: object) -> str:
    """Something of a stranger's, such as an address, for a message: at most 200 characters, none of them special."""
    shown = str(text)
    return repr(shown if len(shown) <= _LONGEST else shown[:_LONGEST] + "…")[1:-1]
