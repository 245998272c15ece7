"""Text of the source as safe HTML, and the frame that every page has."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Sequence

_SITE = "World Encyclopedia"
_BREAKS = re.compile(r"(?i)<br\s*/?>|</?p(?:\s[^<>]*)?>")
_TAGS = re.compile(r"(?s)<!--.*?-->|</?[a-zA-Z][^<>]*>")
_INLINE = re.compile(r"</?(?:a|em|strong|span)\b[^>]*>")

_STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1c2127;--soft:#f2f4f7;--line:#d3d9e0;--muted:#56606b;--link:#0a58a8}
@media (prefers-color-scheme:dark){
:root{--paper:#14181d;--ink:#e4e8ec;--soft:#1f252c;--line:#3a434d;--muted:#a3adb8;--link:#7cb8f5}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:58rem;padding:0 1.1rem 3rem;background:var(--paper);color:var(--ink);
font:1rem/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;overflow-wrap:break-word}
a{color:var(--link);text-underline-offset:.15em}
a:focus-visible{outline:3px solid var(--link);outline-offset:2px}
.skip{position:absolute;left:-99rem}.skip:focus{left:1rem;top:1rem;background:var(--paper);padding:.5rem}
header{display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;align-items:baseline;padding:.8rem 0;
border-bottom:1px solid var(--line)}
header .site{font-weight:700;color:var(--ink);text-decoration:none}
header ul,.inline{display:flex;flex-wrap:wrap;gap:.2rem 1rem;list-style:none;margin:0;padding:0}
h1{font-size:clamp(1.7rem,5vw,2.3rem);line-height:1.2;margin:1.4rem 0 .4rem}
h2{font-size:1.35rem;line-height:1.3;margin:2.4rem 0 .6rem;padding-bottom:.25rem;border-bottom:1px solid var(--line)}
h3{font-size:1.05rem;line-height:1.35;margin:1.3rem 0 .3rem}
p{margin:.4rem 0;max-width:46rem}
.lead,.note,footer{color:var(--muted)}
.note{font-size:.9rem}
table{border-collapse:collapse;width:100%;margin:.5rem 0 1rem}
th,td{text-align:left;vertical-align:top;padding:.35rem .6rem;border-bottom:1px solid var(--line)}
th{font-weight:600}thead th{background:var(--soft)}
.facts{table-layout:fixed}.facts th{width:38%}.facts td,.facts th{overflow-wrap:anywhere}
.ranked tr>:first-child,.places tr>:last-child{width:4rem;text-align:right;font-variant-numeric:tabular-nums}
nav.contents{background:var(--soft);padding:.6rem .9rem;margin:1rem 0;border-radius:.4rem}
.columns{columns:13rem;column-gap:1.5rem;padding-left:1.1rem;margin:.5rem 0}
footer{margin-top:3rem;padding-top:.8rem;border-top:1px solid var(--line);font-size:.9rem}
@media (max-width:34rem){th,td{padding:.3rem .35rem}.ranked tr>:first-child,.places tr>:last-child{width:3rem}
.region tr>:last-child{display:none}}
""".strip().replace("\n", "")


def escape(text: str) -> str:
    """Text as HTML; quotes too, so that it may stand in an attribute."""
    return html.escape(text, quote=True)


def link(path: str, text: str) -> str:
    """A link; both parts are escaped."""
    return f'<a href="{escape(path)}">{escape(text)}</a>'


def paragraphs(raw: str) -> list[str]:
    """The paragraphs of a text of the source as plain text; its own markup is dropped, its line breaks end one."""
    lines = (html.unescape(_TAGS.sub("", part)) for part in _BREAKS.split(raw))
    return [line for line in (" ".join(line.split()) for line in lines) if line]


def plain(markup: str) -> str:
    """The text of HTML that this site made, in one line."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", _INLINE.sub("", markup))).split())


def linked(text: str, names: re.Pattern[str], path_of: Callable[[str], str | None]) -> str:
    """The text as HTML with a link at every ``name`` that the pattern finds and that has a path."""
    pieces, end = [], 0
    for match in names.finditer(text):
        if path := path_of(match["name"]):
            pieces += [escape(text[end : match.start("name")]), link(path, match["name"])]
            end = match.end("name")
    return "".join([*pieces, escape(text[end:])])


def fact_table(rows: Iterable[tuple[str, str]]) -> str:
    """Facts in two columns, names and values, both HTML."""
    body = "".join(f'<tr><th scope="row">{name}</th><td>{value}</td></tr>' for name, value in rows)
    return f'<table class="facts"><tbody>{body}</tbody></table>'


def column_table(columns: Sequence[str], rows: Iterable[str], kind: str) -> str:
    """Rows of cells, which are HTML, under the names of the columns; ``kind`` is a class of the style."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def row_head(path: str, text: str) -> str:
    """The cell that names its row, a link."""
    return f'<th scope="row">{link(path, text)}</th>'


def cell(text: str) -> str:
    """A cell with text."""
    return f"<td>{escape(text)}</td>"


def document(title: str, main: str) -> str:
    """A whole page: ``title`` is text, ``main`` is HTML."""
    navigation = "".join(
        f"<li>{link(path, name)}</li>"
        for path, name in (("/#regions", "Regions"), ("/#lists", "Rankings"), ("/#countries", "Countries"))
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<title>{escape(f"{title} - {_SITE}")}</title><link rel="icon" href="data:,">'
        f"<style>{_STYLE}</style></head>\n"
        '<body><a class="skip" href="#content">Skip to the content</a>'
        f'<header><a class="site" href="/">{_SITE}</a><nav aria-label="Site"><ul>{navigation}</ul></nav></header>\n'
        f'<main id="content">\n{main}\n</main>\n'
        "<footer><p>Facts: The World Factbook of the CIA, public domain. They are as old as the years beside them."
        "</p></footer></body></html>\n"
    )
