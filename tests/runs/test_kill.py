"""A run that is killed at any moment and started again ends as if nothing had happened."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.runs.kill_child import KILLS, THREADS


def calls(folder: Path) -> Counter[str]:
    return Counter((folder / "calls.jsonl").read_text(encoding="utf-8").splitlines())


def without_timings(text: str) -> Any:
    return json.loads(text, object_hook=lambda found: {k: v for k, v in found.items() if k != "seconds"})


@pytest.mark.skipif(sys.platform == "win32", reason="forks and kills its processes")
def test_a_run_that_is_killed_sixty_times_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.runs.kill_child", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    whole = tmp_path / "whole"
    assert set(calls(whole).values()) == {1}
    kills = 0
    for folder in tmp_path.glob("killed-*"):
        of_this_run = int((folder / "kills").read_text(encoding="utf-8"))
        kills += of_this_run
        for name in ("library.json", "program.json"):
            assert (folder / name).read_bytes() == (whole / name).read_bytes(), name
        assert without_timings((folder / "report.json").read_text(encoding="utf-8")) == without_timings(
            (whole / "report.json").read_text(encoding="utf-8")
        )
        seen = calls(folder)
        assert seen.keys() == calls(whole).keys()
        assert seen.total() - len(seen) <= of_this_run * THREADS, "only what was in flight may be asked again"
    assert kills == KILLS
