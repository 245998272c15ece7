"""Text from strangers without the characters that a reader cannot see.

They can hide instructions from a person who checks what the agent read, and break a word that a metric compares.
The price: joined emoji fall apart, and Persian loses its zero-width non-joiners.
"""

from __future__ import annotations

import re

_INVISIBLE = re.compile(
    "["
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # control characters, other than tab and line ends
    "\u00ad\u180e\u200b-\u200d\u2060-\u2064\ufeff"  # soft hyphen, zero-width spaces and joiners
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f"  # marks and overrides of the writing direction
    "\ufff9-\ufffb\U000e0000-\U000e0fff"  # annotations, tags, variation selectors that can carry a message
    "]"
)


def visible(text: str) -> str:
    """The text without control, zero-width and direction characters; line ends become newlines."""
    return _INVISIBLE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
