"""The local model's server and the choice of model; tests marked `local_model` run the real SmolLM2-135M."""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from programs.local_lm import (
    SMOLLM2_135M,
    LocalRuntimeMissingError,
    LocalServer,
    LocalServerError,
    lm_from_env,
    local_lm,
    model_path,
    reflection_lm_from_env,
)
from programs.model_files import ModelFileError

PROJECT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_choice_of_model(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TGRPO_LM", "TGRPO_REFLECTION_LM"):
        monkeypatch.delenv(name, raising=False)


def test_lm_from_env_takes_the_named_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TGRPO_LM", " openai/some-model ")
    assert lm_from_env(path="/nowhere").model == "openai/some-model"


def test_lm_from_env_is_local_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    monkeypatch.setenv("TGRPO_LM", "")
    with pytest.raises(ModelFileError, match=r"nowhere\.gguf' is not a file"):
        lm_from_env(path=tmp_path / "nowhere.gguf")


def test_reflection_lm_from_env(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reflection_lm_from_env() is None
    monkeypatch.setenv("TGRPO_REFLECTION_LM", "openai/a-bigger-model")
    lm = reflection_lm_from_env()
    assert lm is not None and lm.model == "openai/a-bigger-model"


def test_missing_runtime_is_said_before_anything_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(LocalRuntimeMissingError, match=r'pip install "tgrpo_dspy\[local\]"'):
        local_lm(cache_dir=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("setting", ["threads", "slots", "context"])
def test_settings_below_one_are_refused(setting: str) -> None:
    numbers: dict[str, Any] = {setting: 0}
    with pytest.raises(ValueError, match=f"{setting} must be at least 1, got 0"):
        LocalServer("model.gguf", name="any", **numbers)


def test_server_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"this is no model")
    server = LocalServer(broken, name="broken", threads=1)
    with pytest.raises(LocalServerError, match=r"(?s)broken\.gguf ended with code 1 .*last log lines.*init server"):
        server.start()
    with pytest.raises(LocalServerError, match="not running"):
        _ = server.url
    server.close()


@pytest.fixture(scope="module")
def small_model() -> Path:
    pytest.importorskip("xllamacpp")
    try:
        return model_path(SMOLLM2_135M)
    except ModelFileError as error:
        pytest.skip(str(error))


def is_healthy(url: str) -> bool:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def becomes_unreachable(url: str, seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while is_healthy(url):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.local_model
def test_server_outlives_the_thread_that_started_it(small_model: Path) -> None:
    server = LocalServer(small_model, name="small", slots=1, context=256)
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    url = server.url
    time.sleep(1)
    assert is_healthy(url)
    server.close()
    server.close()
    assert not is_healthy(url) and not server.running


@pytest.mark.local_model
def test_too_slow_a_start_is_an_error(small_model: Path) -> None:
    server = LocalServer(small_model, name="small", slots=1, context=256, start_timeout=0.01)
    with pytest.raises(LocalServerError, match=r"was not ready after 0\.01 s"):
        server.start()


@pytest.mark.local_model
def test_calls_share_one_server(small_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A proxy of the environment must not be asked for loopback addresses.
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "example.org")
    lm = local_lm(SMOLLM2_135M, slots=2, max_tokens=8, cache=False)
    (answer,) = lm("Say hello.")
    assert isinstance(answer, str) and answer.strip()
    other = local_lm(SMOLLM2_135M, slots=2)
    assert other.kwargs["api_base"] == lm.kwargs["api_base"]
    with pytest.raises(ValueError, match="slots=2, got 3"):
        local_lm(SMOLLM2_135M, slots=3)


FIRST_PROCESS = """
import json, os, signal, sys, time
from programs.local_lm import SMOLLM2_135M, local_lm
lm = local_lm(SMOLLM2_135M, slots=1, context=512, max_tokens=8)
answer = lm("Name a colour.")
signal.signal(signal.SIGINT, signal.SIG_IGN)
forked = os.fork()
if forked == 0:
    time.sleep(60)  # holds the server's stdin open after its parent is gone
    os._exit(0)
print(json.dumps({"url": lm.kwargs["api_base"], "answer": answer, "forked": forked}), flush=True)
time.sleep(60)
"""
SECOND_PROCESS = """
import json, socket
from programs.local_lm import SMOLLM2_135M, local_lm
lm = local_lm(SMOLLM2_135M, slots=1, context=512, max_tokens=8)
def refuse(*args):
    raise AssertionError("a cached answer needs no connection")
socket.socket.connect = socket.socket.connect_ex = socket.create_connection = refuse
print(json.dumps({"url": lm.kwargs["api_base"], "answer": lm("Name a colour.")}), flush=True)
"""


def start_script(script: str, cache: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "DSPY_CACHEDIR": str(cache), "PYTHONPATH": str(PROJECT)}
    return subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def first_line(process: subprocess.Popen[str], seconds: float = 180) -> dict[str, Any]:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    assert ready, "the script did not answer in time"
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


@pytest.mark.local_model
@pytest.mark.skipif(os.name != "posix", reason="needs fork and signals")
def test_server_ends_with_a_killed_parent_and_its_answers_stay_cached(small_model: Path, tmp_path: Path) -> None:
    with start_script(FIRST_PROCESS, tmp_path / "dspy") as parent:
        first = first_line(parent)
        os.killpg(parent.pid, signal.SIGINT)  # what Ctrl-C sends: the parent goes on, and so must the server
        time.sleep(1)
        assert is_healthy(first["url"])
        parent.kill()
        assert becomes_unreachable(first["url"])
        os.kill(first["forked"], signal.SIGKILL)
    with start_script(SECOND_PROCESS, tmp_path / "dspy") as process:
        second = first_line(process)
    assert process.returncode == 0
    assert second["answer"] == first["answer"]
    assert second["url"] != first["url"]
