"""The HTTP header Retry-After: how long a server asks to be left alone."""

from __future__ import annotations

from datetime import datetime, timezone
from email.utils import parsedate_to_datetime


def seconds_to_wait(header: str | None) -> float | None:
    """Seconds from now, at least 0; None where the header is missing or says nothing that can be understood."""
    text = (header or "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return max(0.0, (moment - datetime.now(timezone.utc)).total_seconds())
