"""Libraries in files, and people editing them."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from tgrpo_dspy import (
    Experience,
    ExperienceLibrary,
    LibraryError,
    apply_markdown,
    load_library,
    merge,
    retarget,
    save_library,
)
from tgrpo_dspy.library import Evidence, edits_in_markdown, to_markdown

LIBRARY = ExperienceLibrary(
    (
        Experience(id="e2", text="Write dates as YYYY-MM-DD.", evidence=(Evidence(example="k", rewards=(1.0, 0.0)),)),
        Experience(id="e3", text="Be brief.", proposed=4, effect=0.25),
        Experience(id="e5", text="Look twice.", target="look"),
    ),
    9,
)


def test_a_saved_library_is_loaded_with_everything(tmp_path: Path) -> None:
    save_library(LIBRARY, tmp_path / "library.json")
    assert load_library(tmp_path / "library.json") == LIBRARY
    assert [p.name for p in tmp_path.iterdir()] == ["library.json"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text[: len(text) // 2], r"library.json is not whole JSON .* was it cut off"),
        (lambda text: "", "not whole JSON"),
        (lambda text: "[1, 2]", "not an experience library"),
        (lambda text: text.replace('"version": 1', '"version": 2'), "schema version 2; .* reads version 1"),
        (lambda text: text.replace('"proposed": 4', '"proposed": "4"'), "experience 2: proposed must be int, got '4'"),
        (lambda text: text.replace('"proposed": 4', '"proposed": true'), "proposed must be int, got True"),
        (lambda text: text.replace('"text": "Be brief."', '"text": null'), "text must be str, got None"),
        (lambda text: text.replace('"target": null', '"aim": null'), r"unknown keys \['aim'\]"),
        (lambda text: text.replace('"id": "e3"', '"id": "e2"'), "must be unique"),
        (lambda text: text.replace('"id": "e3"', '"id": "x3"'), "experience id 'x3'"),
        (lambda text: text.replace('"next_number": 9', '"next_number": null'), "next_number must be int"),
        (lambda text: text.replace("1.0", '"much"'), "rewards must be numbers"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_a_clear_error(tmp_path: Path, change: object, says: str) -> None:
    path = tmp_path / "library.json"
    save_library(LIBRARY, path)
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")  # type: ignore[operator]
    with pytest.raises(LibraryError, match=says):
        load_library(path)


def test_a_binary_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "library.json").write_bytes(b"\x80\x04\x95")
    with pytest.raises(LibraryError, match="is not a text file"):
        load_library(tmp_path / "library.json")


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "library.json"
    save_library(LIBRARY, path)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_library(ExperienceLibrary(), path)
    assert load_library(path) == LIBRARY
    assert [p.name for p in tmp_path.iterdir()] == ["library.json"]


def test_there_is_no_version_but_one_in_a_file(tmp_path: Path) -> None:
    save_library(LIBRARY, tmp_path / "a.json")
    data = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert (data["format"], data["version"]) == ("tgrpo_dspy.library", 1)


def test_a_person_changes_deletes_adds_and_reorders_lines() -> None:
    text = to_markdown(LIBRARY)
    edited = text.replace(
        "- [e2] Write dates as YYYY-MM-DD.\n- [e3] Be brief.", "- Cite sources.\n- [e3] Be very brief."
    )
    applied = apply_markdown(edited, LIBRARY, step=7)
    assert [(e.id, e.text, e.target) for e in applied.library] == [
        ("e9", "Cite sources.", None),
        ("e3", "Be very brief.", None),
        ("e5", "Look twice.", "look"),
    ]
    changed = applied.library["e3"]
    assert (changed.proposed, changed.changed, changed.effect) == (5, 7, None)
    assert {edit.operation for edit in applied.applied} == {"ADD", "UPDATE", "DELETE"}
    assert applied.refused == ()


def test_a_line_that_moves_under_a_predictor_is_for_it_and_one_that_moves_out_for_all() -> None:
    edited = "# Experiences\n\n- [e5] Look twice.\n- [e2] Write dates as YYYY-MM-DD.\n\n## look\n\n- [e3] Be brief.\n"
    moved = apply_markdown(edited, LIBRARY).library
    assert {e.id: e.target for e in moved} == {"e5": None, "e2": None, "e3": "look"}


def test_a_wrapped_line_is_one_lesson() -> None:
    text = to_markdown(LIBRARY).replace("Write dates as YYYY-MM-DD.", "Write dates\n  as YYYY-MM-DD.")
    assert edits_in_markdown(text, LIBRARY) == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("# Experiences\n\nBe brief.", "line 3 .* 'Be brief.'"),
        ("- [e2] a\n- [e2] b", "e2 stands twice"),
        ("- [e4] never there", "no experience e4"),
    ],
)
def test_markdown_that_cannot_be_meant_is_a_clear_error(text: str, says: str) -> None:
    with pytest.raises(LibraryError, match=says):
        apply_markdown(text, LIBRARY)


def test_merging_keeps_the_ids_of_the_base_and_joins_what_is_equal() -> None:
    other = ExperienceLibrary((Experience(id="e2", text="Be brief."), Experience(id="e3", text="Cite sources.")))
    applied = merge(LIBRARY, other)
    assert [(e.id, e.text) for e in applied.library] == [
        ("e2", "Write dates as YYYY-MM-DD."),
        ("e3", "Be brief."),
        ("e5", "Look twice."),
        ("e9", "Cite sources."),
    ]
    assert applied.library["e3"].proposed == 5


def test_a_library_is_aimed_at_another_program() -> None:
    assert retarget(LIBRARY, {"look": "search.predict"})["e5"].target == "search.predict"
    assert retarget(LIBRARY, {"look": None})["e5"].target is None
    with pytest.raises(LibraryError, match="no experience for nowhere, only for"):
        retarget(LIBRARY, {"nowhere": "x"})


@pytest.mark.skipif(os.name != "posix", reason="modes of files are those of POSIX")
def test_others_may_read_what_the_umask_lets_them(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        save_library(ExperienceLibrary(), tmp_path / "library.json")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "library.json").stat().st_mode) == 0o640
