r"""Answers as they are written, read as mathematics.

An answer counts as what it says as a whole, never as something that it contains: "between 18 and 20" is not 18. What
may stand around an expression is a ``\boxed``, math delimiters, a lead-in ("the answer is"), a currency, and English
words that leave its value alone ("18 dollars").
"""

from __future__ import annotations

import re

MAX_CHARACTERS = 200
"""Longer expressions are not compared."""
_MAX_READ = 5_000  # of a longer answer only the end is read

_SYMBOLS = str.maketrans(
    {
        **dict.fromkeys("\u2212\u2013\u2010\u2011", "-"),
        **dict.fromkeys("\u00a0\u202f\u2009\n\r\t~", " "),
        **dict.fromkeys("€£¥₹", " "),
        **dict.fromkeys("\u00d7\u00b7", r" \cdot "),
        "÷": "/",
        "π": r"\pi ",
        "∞": r"\infty ",
        "°": r"^{\circ}",
        "²": "^{2}",
        "³": "^{3}",
        "½": " 1/2",
        "¼": " 1/4",
        "¾": " 3/4",
        "≤": r"\le ",
        "≥": r"\ge ",
        "±": r"\pm ",
        "\u222a": r"\cup ",
        "∅": r"\emptyset ",
    }
)
_BOLD = re.compile(r"(?<![\w)\]}*])\*\*(?=\S)([^*]+)(?<=\S)\*\*(?![\w*])")
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_SPACES = re.compile(r"(?<!\\)\\[,;:! ]|\\q?quad(?![A-Za-z])")
_BOX = re.compile(r"\\f?box(?:ed)?\s*\{")
_PERCENT = re.compile(r"\s?\bper\s?cent\b", re.IGNORECASE)
_LEAD_IN = re.compile(r"\banswer\b[^.:=\n]{0,40}?(?:\bis\b|:|=)|####", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?](?=\s+[A-Z])|\n\s*\n")

# Mathematics between delimiters: a dollar sign before a blank, or one that a digit follows, is money.
_MATH = re.compile(r"\$\$(.+?)\$\$|\$(?!\s)([^$]+?)(?<![\s\\])\$(?!\d)|\\\((.+?)\\\)|\\\[(.+?)\\\]")

_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}(?:'[a-z]+)?")
_LONG_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{4,}")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{\w+\*?\}")
_NUMBER = re.compile(
    r"(?<![A-Za-z\d.,/])-?(?:\d+\s+\d+/\d+|\d+/\d+|\\[dt]?frac\{\d+\}\{\d+\}|(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)"
    r"(?![A-Za-z\d])(?:\s?\\?%)?"
)
_UNIT = re.compile(r"(?<=\d)(?=(?:[kcm]m|[km]g|ml|mph|hrs?|mins?|secs?|lbs?|oz|ft|USD|st|nd|rd|th)\b)")
_UNIT_POWER = re.compile(r"(?<=[A-Za-z])\s?\^\{?\d\}?")
_UNIT_RATIO = re.compile(r"(?<=[A-Za-z])\s?/\s?(?=[A-Za-z])")
_PLAIN = re.compile(r"[\w\s.,;:!?'\"()-]*")
_REWRITTEN = (
    (re.compile(r"(?<=\d)\s(?=\d{3}(?!\d))"), ""),  # 1 234
    (re.compile(r"(\d+)\s+(\d+)/(\d+)"), r"\1\\frac{\2}{\3}"),  # 3 1/2
    (re.compile(r"(?<![\\\w])(sqrt|pi)(?![A-Za-z])"), r"\\\1 "),
    (re.compile(r"\\sqrt \s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<=\d)[eE]([-+]?\d+)"), r"\\cdot 10^{\1}"),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"\*"), r"\\cdot "),
    (re.compile(r"\^\s*(-?\d+)"), r"^{\1}"),
    (re.compile(r"<="), r"\\le "),
    (re.compile(r">="), r"\\ge "),
)
_OTHER_VALUE = """
    not no never nor neither wrong incorrect unknown if unless or between than least most about around approximately
    roughly nearly almost over under above below exceeds minus plus negative divided multiplied root squared cubed
    factorial half twice double triple dozen dozens hundred hundreds thousand thousands million millions billion
    billions
"""
_CHANGES_THE_VALUE = frozenset(_OTHER_VALUE.split())


def readings(answer: str) -> tuple[str, ...]:
    r"""The LaTeX of what an answer may mean: its text as it stands, and the one quantity in it among words.

    Nothing where it is no single expression (several boxes that differ, several numbers in a sentence), and no
    expression longer than ``MAX_CHARACTERS``.

    Example:
        >>> readings(r"Add both: \boxed{18}"), readings("She earns $18 a day."), readings("The answer is x = 18.")
        (('18',), ('18',), ('x = 18',))
        >>> readings("I counted them, and there are more than 18.")
        ()
    """
    text = _final(_PERCENT.sub("%", _BOLD.sub(r"\1", answer[-_MAX_READ:])))
    found = (_whole(text), _quantity(text))
    return tuple(dict.fromkeys(reading for reading in found if reading and len(reading) <= MAX_CHARACTERS))


def _final(text: str) -> str:
    """What is in the box, or what follows the last lead-in up to the end of its sentence, or all of it."""
    boxes = {box.strip() for box in _boxes(text)}
    if boxes:
        text = boxes.pop() if len(boxes) == 1 else ""
    else:
        lead_ins = list(_LEAD_IN.finditer(text))
        if lead_ins:
            text = _SENTENCE_END.split(text[lead_ins[-1].end() :].lstrip(" \n:="), maxsplit=1)[0]
    return text.translate(_SYMBOLS).strip(" :,;`'\"").lstrip("= ").rstrip(" .?")


def _boxes(text: str) -> list[str]:
    """The contents of the outermost boxes; one that is not closed ends with the text."""
    found, position = [], 0
    while match := _BOX.search(text, position):
        depth, position = 1, match.end()
        while depth and position < len(text):
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            position += 1
        found.append(text[match.end() : position - (depth == 0)])
    return found


def _whole(text: str) -> str | None:
    """The whole text as LaTeX; None for prose."""
    text = _SPACES.sub(" ", _MATH.sub(lambda match: f" {_inner(match)} ", text)).replace(r"\$", " ").replace("$", " ")
    for pattern, replacement in _REWRITTEN:
        text = pattern.sub(replacement, text)
    if _LONG_WORD.search(_ENVIRONMENT.sub(" ", _TEXT.sub(" ", text))) or re.search(r"\d\s+\d", text):
        return None
    return text.strip() or None


def _quantity(text: str) -> str | None:
    """The only number, or the only expression between delimiters, of a text with words; None where there are more."""
    text = _TEXT.sub(r" \1 ", text)
    expressions = list(_MATH.finditer(text))
    around = _MATH.sub(" ", text)
    if len(expressions) == 1 and not re.search(r"\d", around):
        return _whole(_inner(expressions[0])) if _leaves_the_value(around) else None
    text = _UNIT_RATIO.sub(" ", _UNIT_POWER.sub("", _UNIT.sub(" ", text)))
    text = _SPACES.sub(" ", text).replace(r"\$", "$").replace("-$", "-").replace("$", " ")
    before, _, text = text.rpartition("=")
    if re.search(r"\d", before) and _WORD.search(before):
        return None
    numbers = _NUMBER.findall(text)
    around = _NUMBER.sub(" ", text)
    if len(numbers) != 1 or re.search(r"\d", around) or not _PLAIN.fullmatch(around):
        return None
    words = f"{before} {around}"
    return _whole(numbers[0]) if _WORD.search(words) and _leaves_the_value(words) else None


def _leaves_the_value(words: str) -> bool:
    found = {word.lower() for word in _WORD.findall(words)}
    return not found & _CHANGES_THE_VALUE and not any(word.endswith("n't") for word in found)


def _inner(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None)
