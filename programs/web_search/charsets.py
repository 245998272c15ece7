"""From the bytes of a page to text that can be read, whatever its header says."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator

import charset_normalizer

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# Browsers read these names as the larger sets that pages really use.
_SUPERSETS = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
}
_NOT_FOR_PAGES = {"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape", "utf-7"}
_IN_HEADER = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.ASCII | re.IGNORECASE)
_IN_PAGE = re.compile(rb"<(?:meta\b|\?xml)[^>]*?(?:charset|encoding)\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_SEARCHED = 4096
_GUESSED_FROM = 100_000


def decode(content: bytes, content_type: str) -> str:
    """The text of `content`; `content_type` is the header of that name. Never raises.

    A byte order mark comes first. Then UTF-8, when there is something beyond ASCII that reads as UTF-8: in other
    encodings that hardly happens by accident. Then the header, what the page declares of itself, and a guess.
    """
    for mark, encoding in _BOMS:
        if content.startswith(mark):
            return content[len(mark) :].decode(encoding, errors="replace")
    wide = b"\x00" in content
    labels = [] if content.isascii() else ["utf-8"]
    labels += [label for label in declared_charsets(content, content_type) if wide or not is_wide(label)]
    for label in [*labels, "utf-8"]:
        text = content.decode(label, errors="replace")
        if _is_readable(text):
            return text
    return _guessed(content)


def declared_charsets(content: bytes, content_type: str) -> list[str]:
    """Python's names of the encodings that the header and the page declare; names it does not know are left out."""
    return [name for label in _labels(content, content_type) if (name := _python_name(label))]


def is_wide(label: str) -> bool:
    """Whether this is UTF-16 or UTF-32, in which ASCII has zero bytes."""
    return label.startswith(("utf-16", "utf-32"))


def _labels(content: bytes, content_type: str) -> Iterator[str]:
    if header := _IN_HEADER.search(content_type):
        yield header[1]
    if page := _IN_PAGE.search(content[:_SEARCHED]):
        yield page[1].decode("ascii")


def _python_name(label: str) -> str | None:
    try:
        b"a".decode(label, errors="replace")  # refuses codecs that are not for text, such as zip
        name = codecs.lookup(label).name
    except (LookupError, ValueError):
        return None
    return None if name in _NOT_FOR_PAGES else _SUPERSETS.get(name, name)


def _is_readable(text: str) -> bool:
    """Whether at least half of what is not ASCII was understood."""
    broken = text.count("\ufffd")
    beyond_ascii = len(text) - len(text.encode("ascii", errors="ignore"))
    return beyond_ascii - broken >= broken


def _guessed(content: bytes) -> str:
    # Up to the end of a tag or a line, so that no character is cut in two.
    part = content[:_GUESSED_FROM]
    end = max(part.rfind(b">"), part.rfind(b"\n")) + 1
    best = charset_normalizer.from_bytes(part[:end] if end else part).best()
    return content.decode(best.encoding if best else "cp1252", errors="replace")
