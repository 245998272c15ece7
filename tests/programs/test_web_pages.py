"""The page reader against a local server that misbehaves."""

from __future__ import annotations

import gzip
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("httpx")
pytest.importorskip("trafilatura")

from programs.web_search import addresses, fetching, guarded_http
from programs.web_search.pages import Link, Page, PageReader, UnreadablePageError
from tests.programs import misbehaving
from tests.programs.misbehaving import Handler, InTurn, Server, answer, redirect

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89\x00\x00"
SENTENCES = "The lake is twelve kilometres long. Its depth was measured in 1901 by a party of six. "


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


def reader(*servers: Server, **settings: Any) -> PageReader:
    settings = {
        "timeout": 5.0,
        "respect_robots": False,
        "private_hosts": [server.host for server in servers],
    } | settings
    return PageReader(**settings)


def read(server: Server, path: str = "/page", **settings: Any) -> Page:
    with reader(server, **settings) as pages:
        return pages.read(server.url(path))


def failure(server: Server, path: str = "/page", **settings: Any) -> str:
    with pytest.raises(UnreadablePageError) as caught:
        read(server, path, **settings)
    return str(caught.value)


# What is read


def test_title_main_text_and_links_in_page_order(server: Server) -> None:
    server.behaviours["/dir/page"] = answer(
        f"""<!doctype html><html><head><title> Lake
        Foo </title></head><body><nav><a href="/">Home</a></nav><article><h1>Lake Foo</h1><p>{SENTENCES * 3}</p>
        <h2>Fish</h2><p>{SENTENCES * 3}See <a href="trout">the <b>trout</b></a> and <a href="https://x.example/a?b=1#c">X</a>.</p>
        <a href="trout"><img src="t.png"></a> <a href="mailto:me@x.example">Mail</a> <a href="javascript:go()">Go</a>
        <a href="#top">Top</a> <a>none</a> <a href="http://[">bad</a> <a href="http://xn--/">worse</a></article></body></html>"""
    )
    page = read(server, "/dir/page#fish")
    assert page.title == "Lake Foo"
    assert page.url == server.url("/dir/page")
    assert "## Fish" in page.text
    assert page.text.count("twelve kilometres") == 6
    assert page.links == (
        Link(text="Home", url=server.url("/")),
        Link(text="the trout", url=server.url("/dir/trout")),
        Link(text="X", url="https://x.example/a?b=1"),
    )


def test_the_base_element_counts_for_links(server: Server) -> None:
    server.behaviours["/page"] = answer(
        '<head><base href="https://x.example/deep/"></head><body>Text <a href="a">A</a></body>'
    )
    assert read(server).links == (Link(text="A", url="https://x.example/deep/a"),)


def test_links_are_bounded(server: Server) -> None:
    server.behaviours["/page"] = answer("".join(f"<a href='/{number}'>{number}</a> " for number in range(2500)))
    links = read(server).links
    assert len(links) == 2000
    assert links[-1] == Link(text="1999", url=server.url("/1999"))


def test_a_page_without_main_text_gives_all_that_is_visible(server: Server) -> None:
    server.behaviours["/page"] = answer("<body><footer>Only <b>a</b> <script>x</script>footer</footer></body>")
    assert read(server).text == "Only a footer"


def test_plain_text_and_json_stay_as_they_are(server: Server) -> None:
    server.behaviours["/text"] = answer("a <b>\r\n  c", content_type="text/plain")
    server.behaviours["/json"] = answer('{"a": [1]}', content_type="application/json")
    assert read(server, "/text") == Page(url=server.url("/text"), title="", text="a <b>\n  c", links=())
    assert read(server, "/json").text == '{"a": [1]}'


def test_what_a_person_cannot_see_is_left_out(server: Server) -> None:
    hidden = (
        "<!-- comment -->",
        "<p hidden>attribute</p>",
        "<p aria-hidden='true'>aria</p>",
        "<p style='color:red; DISPLAY : none'>display</p>",
        "<p style='visibility:hidden'>visibility</p>",
        "<p style='opacity:0'>opacity</p>",
        "<p style='font-size:0px'>size</p>",
        "<script>script</script>",
        "<style>.style {}</style>",
        "<template>template</template>",
        "<a href='/trap' hidden>trap</a>",
    )
    server.behaviours["/page"] = answer(
        f"<title>T\u200b1&#8238;</title><body>{''.join(hidden)}<p style='opacity:0.5'>{SENTENCES}</p>"
        "<p>&#1;<b hidden>b</b>&#2;na\u200b\u00adive \u202eleft\u202c &#x200b;&#x2066;x\u0007y a\U000e0041b</p></body>"
    )
    page = read(server)
    assert page.title == "T1"
    assert "twelve kilometres" in page.text
    assert "naive left xy ab" in page.text
    for word in (
        "comment",
        "attribute",
        "aria",
        "display",
        "visibility",
        "size",
        "script",
        "style",
        "template",
        "trap",
    ):
        assert word not in page.text
    assert "opacity" not in page.text
    assert page.links == ()


# Charsets

GERMAN = "Größe: zwölf Meter „fünf“"
JAPANESE = "これは日本語のページです。湖の長さは十二キロメートルです。"


@pytest.mark.parametrize(
    ("text", "encoding", "content_type", "declared"),
    [
        (GERMAN, "utf-8", "text/html; charset=utf-8", ""),
        (GERMAN, "utf-8", "text/html", '<meta charset="utf-8">'),
        (GERMAN, "cp1252", "text/html", "<meta http-equiv=Content-Type content='text/html; charset=iso-8859-1'>"),
        (GERMAN, "cp1252", 'text/html; charset="windows-1252"', ""),
        (GERMAN, "utf-8", "text/html; charset=iso-8859-1", ""),  # wrong header
        (GERMAN, "cp1252", "text/html; charset=utf-8", '<meta charset="windows-1252">'),  # wrong header
        (GERMAN, "utf-8", "text/html; charset=utf-16", ""),  # wrong header
        (GERMAN, "utf-8", "text/html; charset=no-such", '<meta charset="zip">'),
        (GERMAN, "utf-8-sig", "text/html; charset=iso-8859-1", ""),
        (GERMAN, "utf-16", "text/html", ""),  # with a byte order mark
        (GERMAN, "utf-16-le", "text/html; charset=utf-16le", ""),
        (JAPANESE, "shift_jis", "text/html", '<meta charset="shift_jis">'),
        (JAPANESE, "iso2022_jp", "text/html; charset=iso-2022-jp", ""),
        (JAPANESE * 4, "euc_jp", "text/html", ""),  # nothing declared
        ("plain", "ascii", "text/html; charset=utf-16", ""),
    ],
)
def test_charsets(server: Server, text: str, encoding: str, content_type: str, declared: str) -> None:
    body = f"<html><head>{declared}</head><body><p>{text}</p></body></html>".encode(encoding)
    server.behaviours["/page"] = answer(body, content_type=content_type)
    assert read(server).text == text


@pytest.mark.parametrize("content_type", ["text/html; charset=utf-8", "text/html; charset=latin-1", "text/html"])
def test_a_broken_character_does_not_spoil_the_others(server: Server, content_type: str) -> None:
    server.behaviours["/page"] = answer(
        f"<p>{GERMAN}</p>".encode().replace(b"</p>", b" \xff</p>"), content_type=content_type
    )
    assert read(server).text == f"{GERMAN} \ufffd"


def test_any_bytes_give_text_or_the_one_error(server: Server) -> None:
    for label in ("utf-8", "idna", "punycode", "unicode_escape", "utf-7", "hex", "shift_jis", "utf-32", "x" * 5000):
        server.behaviours["/page"] = answer(
            b"<p>word " + bytes(range(128, 256)) * 3, content_type=f"text/html; charset={label}"
        )
        assert "word" in read(server).text


# What cannot be read


@pytest.mark.parametrize("behaviour", ["silent", "slow_headers", "dripping"])
def test_a_slow_server_does_not_hold_the_reader(server: Server, behaviour: str) -> None:
    server.behaviours["/page"] = getattr(misbehaving, behaviour)
    assert "was not read within 0.2 s" in failure(server, timeout=0.2)


def test_the_time_is_for_all_redirects_together(server: Server) -> None:
    def slow_redirect(handler: Handler) -> None:
        for _ in range(5):
            handler.pause()
        redirect("/page")(handler)

    server.behaviours["/page"] = slow_redirect
    assert "was not read within 0.3 s" in failure(server, timeout=0.3, max_redirects=20)


def test_too_large(server: Server) -> None:
    for behaviour in (misbehaving.endless, answer(misbehaving.GZIP_BOMB, headers={"Content-Encoding": "gzip"})):
        server.behaviours["/page"] = behaviour
        assert "is too large: more than 100000 bytes" in failure(server, max_bytes=100_000)


def test_the_limit_itself_is_not_too_large(server: Server) -> None:
    body = b"<p>" + b"a" * 97
    server.behaviours["/page"] = answer(gzip.compress(body), headers={"Content-Encoding": "gzip"})
    assert read(server, max_bytes=100).text == "a" * 97
    assert "too large" in failure(server, max_bytes=99)


def test_a_bomb_is_not_unpacked_to_see_how_large_it_is(server: Server) -> None:
    server.behaviours["/page"] = answer(misbehaving.GZIP_BOMB, headers={"Content-Encoding": "gzip"})
    tracemalloc.start()
    try:
        failure(server, max_bytes=100_000)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_packed_otherwise_than_asked_for(server: Server) -> None:
    twice = gzip.compress(gzip.compress(b"<p>x</p>"))
    server.behaviours["/page"] = answer(twice, headers={"Content-Encoding": "gzip, gzip"})
    assert "packed as gzip, gzip" in failure(server)
    server.behaviours["/page"] = answer(b"<p>x</p>", headers={"Content-Encoding": "gzip"})
    assert "cannot be unpacked" in failure(server)
    server.behaviours["/page"] = answer(twice[:-5], headers={"Content-Encoding": "gzip"})
    assert "its end is missing" in failure(server)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (401, "login"),
        (403, "refuses"),
        (404, "no such page"),
        (410, "gone"),
        (418, "no page"),
        (429, "too often"),
        (500, "has an error"),
        (503, "not available"),
        (302, "no page"),  # leads nowhere
    ],
)
def test_statuses(server: Server, status: int, reason: str) -> None:
    server.behaviours["/page"] = answer("<p>text of the error</p>", status=status)
    message = failure(server)
    assert f"HTTP {status}" in message
    assert reason in message
    assert server.paths() == ["/page"]


@pytest.mark.parametrize("status", [429, 503])
def test_a_short_wait_is_granted_once(server: Server, status: int) -> None:
    busy = answer(status=status, headers={"Retry-After": "0"})
    server.behaviours["/page"] = InTurn([busy, answer("<p>now</p>")])
    assert read(server).text == "now"
    server.behaviours["/page"] = busy
    assert f"HTTP {status}" in failure(server)
    assert len(server.asked) == 4


@pytest.mark.parametrize(
    ("wait", "timeout"), [("3600", 10_000.0), ("Fri, 01 Jan 2100 00:00:00 GMT", 10_000.0), ("soon", 5.0), ("5", 4.0)]
)
def test_a_long_wait_is_not(server: Server, monkeypatch: pytest.MonkeyPatch, wait: str, timeout: float) -> None:
    waits: list[float] = []
    monkeypatch.setattr(fetching.time, "sleep", waits.append)
    server.behaviours["/page"] = answer(status=429, headers={"Retry-After": wait})
    assert "HTTP 429" in failure(server, timeout=timeout)
    assert (len(server.asked), waits) == (1, [])


@pytest.mark.parametrize("content_type", ["image/png", "text/html", "text/html; charset=utf-8", None])
def test_a_picture_is_no_page(server: Server, content_type: str | None) -> None:
    server.behaviours["/page"] = answer(PNG + bytes(range(256)) * 8, content_type=content_type)
    assert "is no page with text" in failure(server)


def test_a_pdf_is_no_page(server: Server) -> None:
    server.behaviours["/page"] = answer(b"%PDF-1.7\nwords", content_type="text/plain")
    assert "is no page with text" in failure(server)


@pytest.mark.parametrize("body", ["", "  \n", "<html></html>", "<script>go()</script>", "<!-- only this -->"])
def test_an_empty_page(server: Server, body: str) -> None:
    server.behaviours["/page"] = answer(body)
    assert "has no text" in failure(server)


@pytest.mark.parametrize("behaviour", ["broken_off", "no_http"])
def test_a_connection_that_breaks(server: Server, behaviour: str) -> None:
    server.behaviours["/page"] = getattr(misbehaving, behaviour)
    assert "The connection broke" in failure(server)


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{taken.getsockname()[1]}"
        with PageReader(private_hosts=[host]) as pages, pytest.raises(UnreadablePageError, match="no connection to"):
            pages.read(f"http://{host}/")


def test_an_unknown_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: object, **kwargs: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with PageReader() as pages, pytest.raises(UnreadablePageError, match=r"no host called nowhere\.example"):
        pages.read("http://nowhere.example/")


def test_a_name_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: done.wait(5) and [])
    try:
        with PageReader(timeout=0.1) as pages, pytest.raises(UnreadablePageError, match=r"not read within 0\.1 s"):
            pages.read("http://slow.example/")
    finally:
        done.set()


def test_tls_with_a_server_that_has_none(server: Server) -> None:
    with reader(server) as pages, pytest.raises(UnreadablePageError, match="no secure connection"):
        pages.read(server.url("/page").replace("http:", "https:"))


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("file:///etc/passwd", "with http"),
        ("ftp://x.example/", "with http"),
        ("example.com/page", "with http"),
        ("javascript:alert(1)", "with http"),
        ("", "with http"),
        ("http://", "host or port"),
        ("http:///page", "host or port"),
        ("http://x.example:99999/", "host or port"),
        ("http://[::1", "no web address"),
        ("http://x.example/\x00", "no web address"),
        ("http://a b/", "host or port"),
        ("http://xn--/", "no web address"),
        ("http://x.example/" + "a" * 70_000, "no web address"),
        ("http://me:secret@x.example/", "user name or password"),
    ],
)
def test_addresses_that_are_none(url: str, reason: str) -> None:
    with PageReader() as pages, pytest.raises(UnreadablePageError, match=reason) as caught:
        pages.read(url)
    assert len(str(caught.value)) < 400
    assert "secret" not in str(caught.value)


# Redirects


def test_redirects_are_followed(server: Server) -> None:
    server.behaviours["/page"] = redirect("/a?b=1")
    server.behaviours["/a"] = redirect(server.url("/dir/c"), status=308)
    server.behaviours["/dir/c"] = redirect("d", status=303)
    server.behaviours["/dir/d"] = answer("<p>end <a href='e'>E</a></p>")
    page = read(server, max_redirects=3)
    assert page.url == server.url("/dir/d")
    assert page.links == (Link(text="E", url=server.url("/dir/e")),)
    assert "redirects more than 2 times" in failure(server, max_redirects=2)


def test_a_redirect_loop(server: Server) -> None:
    server.behaviours["/page"] = redirect("/other")
    server.behaviours["/other"] = redirect("/page")
    assert "redirects in a circle" in failure(server)
    assert len(server.asked) == 6


def test_a_redirect_that_sets_a_cookie_first(server: Server) -> None:
    def wall(handler: Handler) -> None:
        seen = handler.headers.get("Cookie") == "seen=1"
        behave = answer("<p>behind the wall</p>") if seen else redirect("/page", headers={"Set-Cookie": "seen=1"})
        behave(handler)

    server.behaviours["/page"] = wall
    assert read(server).text == "behind the wall"
    assert len(server.asked) == 2


@pytest.mark.parametrize("target", ["file:///etc/passwd", "http://me:secret@127.0.0.1/", "http://[", "gopher://x/"])
def test_a_redirect_to_what_is_not_read(server: Server, target: str) -> None:
    server.behaviours["/page"] = redirect(target)
    failure(server)
    assert server.paths() == ["/page"]


# Private addresses


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "fc00::1",
        "fd12::1",
        "fe80::1",
        "fe80::1%eth0",
        "ff02::1",
    ],
)
def test_private_addresses(address: str) -> None:
    assert not addresses.is_public(address)


@pytest.mark.parametrize("address", ["93.184.215.14", "172.32.0.1", "2606:2800:21f:cb07::1", "::ffff:8.8.8.8"])
def test_public_addresses(address: str) -> None:
    assert addresses.is_public(address)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "localhost.", "2130706433", "0x7f000001", "127.1", "017700000001", "[::ffff:127.0.0.1]"],
)
def test_the_machine_itself_is_not_read_however_it_is_written(server: Server, host: str) -> None:
    server.behaviours["/page"] = answer("<p>secret</p>")
    with PageReader(timeout=2, respect_robots=False) as pages, pytest.raises(UnreadablePageError):
        pages.read(server.url("/page", host=host))
    assert server.asked == []


def test_a_redirect_to_a_private_address(server: Server) -> None:
    with Server({"/secret": answer("<p>secret</p>")}) as inside:
        server.behaviours["/page"] = redirect(inside.url("/secret"))
        with reader(server) as pages, pytest.raises(UnreadablePageError, match="is not on the public internet"):
            pages.read(server.url("/page"))
        assert inside.asked == []
        with reader(server, inside) as pages:
            assert pages.read(server.url("/page")).text == "secret"


def test_the_address_that_was_checked_is_the_one_connected_to(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo
    answers = ["127.0.0.1", "127.0.0.2", "127.0.0.2"]  # nobody listens on the second one

    def rebinding(host: Any, *args: Any, **kwargs: Any) -> Any:
        return real(answers.pop(0) if host == "rebinding.example" else host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    monkeypatch.setattr(guarded_http, "is_public", lambda address: address == "127.0.0.1")
    server.behaviours["/page"] = answer("<p>checked</p>")
    with PageReader(respect_robots=False) as pages:
        assert pages.read(server.url("/page", host="rebinding.example")).text == "checked"
    assert server.asked[0].headers["Host"] == server.host.replace("127.0.0.1", "rebinding.example")


def test_private_hosts_name_host_and_port() -> None:
    for entry in ("127.0.0.1", "http://127.0.0.1:80", "127.0.0.1:port", "me@127.0.0.1:80", "", ":80", "::1"):
        with pytest.raises(ValueError, match="host:port"):
            PageReader(private_hosts=[entry])


def test_proxies_of_the_environment_are_not_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.behaviours["/page"] = answer("<p>direct</p>")
    with Server() as proxy:
        for name in ("http_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url())
        assert read(server).text == "direct"
        assert proxy.asked == []


# robots.txt


def test_robots_are_asked_once_and_obeyed(server: Server) -> None:
    server.behaviours["/robots.txt"] = answer("User-agent: *\nDisallow: /no\n", content_type="text/plain")
    server.behaviours["/yes"] = answer("<p>yes</p>")
    server.behaviours["/leads"] = redirect("/no")
    with reader(server, respect_robots=True) as pages:
        assert pages.read(server.url("/yes")).text == "yes"
        for path in ("/no", "/leads"):
            with pytest.raises(UnreadablePageError, match=rf"robots\.txt of {server.host} does not allow it"):
                pages.read(server.url(path))
    assert server.paths() == ["/robots.txt", "/yes", "/leads"]


def test_robots_that_mean_this_reader(server: Server) -> None:
    server.behaviours["/page"] = answer("<p>text</p>")
    server.behaviours["/robots.txt"] = answer("\ufeffUser-agent: lake-bot\nDisallow: /\n", content_type="text/plain")
    assert read(server, respect_robots=True).text == "text"
    assert "does not allow it" in failure(server, respect_robots=True, user_agent="Lake-Bot/2.0 (+https://x.example)")
    assert read(server, user_agent="lake-bot").text == "text"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429])
def test_a_site_without_robots_allows_everything(server: Server, status: int) -> None:
    server.behaviours["/robots.txt"] = answer("User-agent: *\nDisallow: /", status=status)
    server.behaviours["/page"] = answer("<p>text</p>")
    assert read(server, respect_robots=True).text == "text"


def test_a_site_whose_robots_fail_allows_nothing_until_they_work(server: Server) -> None:
    server.behaviours["/robots.txt"] = InTurn([answer(status=500), answer(status=404)])
    server.behaviours["/page"] = answer("<p>text</p>")
    with reader(server, respect_robots=True) as pages:
        with pytest.raises(UnreadablePageError, match=r"robots\.txt could not be read \(HTTP 500\)"):
            pages.read(server.url("/page"))
        assert pages.read(server.url("/page")).text == "text"


def test_robots_that_lead_to_a_private_address(server: Server) -> None:
    with Server() as inside:
        server.behaviours["/robots.txt"] = redirect(inside.url("/robots.txt"))
        assert "is not on the public internet" in failure(server, respect_robots=True)
        assert inside.asked == []


@pytest.mark.parametrize(
    "rules", ["User-agent: *\nDisallow: //[\n", "User-agent: *\nCrawl-delay: ²\n", "\x00\xff" * 99]
)
def test_robots_that_are_nonsense_raise_nothing_else(server: Server, rules: str) -> None:
    server.behaviours["/robots.txt"] = answer(rules)
    server.behaviours["/page"] = answer("<p>text</p>")
    with reader(server, respect_robots=True) as pages:
        try:
            assert pages.read(server.url("/page")).text == "text"
        except UnreadablePageError as error:
            assert "cannot be understood" in str(error)


# One reader for many threads


def test_a_page_is_fetched_once_by_all_threads(server: Server) -> None:
    def slow(handler: Handler) -> None:
        for _ in range(5):
            handler.pause()
        answer(f"<title>{handler.path}</title><p>{SENTENCES}</p>")(handler)

    server.behaviours |= {f"/{number}": slow for number in range(4)}
    with reader(server) as pages, ThreadPoolExecutor(16) as threads:
        paths = [f"/{number % 4}" for number in range(32)]
        found = list(threads.map(lambda path: pages.read(server.url(path)), paths))
        assert [page.title for page in found] == paths
        assert pages.read(server.url("/1#again")) == found[1]
    assert sorted(server.paths()) == ["/0", "/1", "/2", "/3"]


def test_a_failure_is_not_kept(server: Server) -> None:
    server.behaviours["/page"] = InTurn([answer(status=500), answer("<p>text</p>")])
    with reader(server) as pages:
        with pytest.raises(UnreadablePageError):
            pages.read(server.url("/page"))
        assert pages.read(server.url("/page")).text == "text"


def test_the_pages_kept_are_few(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("programs.web_search.pages.KEPT_PAGES", 2)
    server.behaviours |= {path: answer("<p>text</p>") for path in ("/a", "/b", "/c")}
    with reader(server) as pages:
        for path in ("/a", "/b", "/a", "/c", "/a", "/b"):
            pages.read(server.url(path))
        pages.close()
        pages.read(server.url("/a"))
    assert server.paths() == ["/a", "/b", "/c", "/b", "/a"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"timeout": 0}, "timeout"), ({"max_bytes": 0}, "max_bytes"), ({"max_redirects": -1}, "max_redirects")],
)
def test_settings_out_of_range(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        PageReader(**settings)
