"""What is handed out: the wheel and the source archive, built here without a network, and the citation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import tgrpo_dspy
from tests.test_docs import ROOT

build = pytest.importorskip("hatchling.build")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return folder / str(build.build_wheel(str(folder)))


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path, unpacked: Path) -> None:
    assert wheel.name == f"tgrpo_dspy-{tgrpo_dspy.__version__}-py3-none-any.whl"
    info = unpacked / f"tgrpo_dspy-{tgrpo_dspy.__version__}.dist-info"
    assert {path.name for path in unpacked.iterdir()} == {"tgrpo_dspy", info.name}
    files = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()}
    package = ROOT / "tgrpo_dspy"
    written = {
        path.relative_to(ROOT).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in files if name.startswith("tgrpo_dspy/")} == written
    assert "tgrpo_dspy/py.typed" in files
    assert (info / "licenses" / "LICENSE").read_text(encoding="utf-8").startswith("MIT License")
    assert "tgrpo = tgrpo_dspy.cli:main" in (info / "entry_points.txt").read_text(encoding="utf-8")


def test_the_metadata_name_what_is_needed(unpacked: Path) -> None:
    found = next(unpacked.glob("*.dist-info")) / "METADATA"
    metadata = Parser().parsestr(found.read_text(encoding="utf-8"))
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Requires-Python"] == ">=3.10"
    assert {"bench", "embeddings", "local"} <= set(metadata.get_all("Provides-Extra", []))
    required = [name for name in metadata.get_all("Requires-Dist", []) if "extra ==" not in name]
    assert any(re.match(r"dspy\W", name) for name in required)
    assert all(">=" in name for name in required), "every dependency has a floor"


def test_the_source_archive_can_be_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with tarfile.open(tmp_path / build.build_sdist(str(tmp_path))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".gguf"))]
    assert {"pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "Makefile"} <= names
    assert {"conftest.py", "mkdocs.yml", "CITATION.cff", "docs/quickstart.ipynb", "tests/scripted.py"} <= names


def test_the_unpacked_wheel_runs_in_a_folder_of_its_own(unpacked: Path, tmp_path: Path) -> None:
    """The command reads the files that come with the package, and a library from outside."""
    (tmp_path / "library.md").write_text("- Be brief.\n", encoding="utf-8")
    shown = subprocess.run(
        [sys.executable, "-m", "tgrpo_dspy", "export", "library.md", "--format", "text"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(unpacked), "DSPY_CACHEDIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, "Be brief.\n", "")


def test_the_citation_is_of_this_version_and_of_the_paper() -> None:
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == tgrpo_dspy.__version__
    paper = citation["preferred-citation"]
    bibtex = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert f"title = {{{paper['title']}}}" in bibtex
    assert f"url = {{{paper['url']}}}" in bibtex
    assert [f"{a['family-names']}, {a['given-names']}" for a in paper["authors"]] == re.sub(
        r"\s+", " ", bibtex.split("author = {")[1].split("}")[0]
    ).split(" and ")
