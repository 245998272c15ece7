"""A run on disk: nothing is paid for twice, nothing is mixed up, nothing that was there is harmed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dspy
import pytest

from tests.scripted import RULE, Shouting, exact, examples
from tgrpo_dspy import ConfigurationError, LibraryLimits, RunDirError, TrainingFreeGRPO, Validation, load_library
from tgrpo_dspy.evaluation.acceptance import Last
from tgrpo_dspy.library.codec import to_json
from tgrpo_dspy.views.report import report_to_json


class Counting:
    """The exact metric, which counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, gold: dspy.Example, pred: Any, trace: Any = None) -> bool:
        self.asked += 1
        return exact(gold, pred)


def compiled(
    model: Shouting, run_dir: Path | None, *, metric: Any = exact, train: int = 3, **settings: Any
) -> tuple[dspy.Module, TrainingFreeGRPO]:
    optimizer = TrainingFreeGRPO(metric=metric, **{"epochs": 2, "group_size": 3, "num_threads": 1} | settings)
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    with dspy.context(lm=model.lm()):
        program = optimizer.compile(
            dspy.Predict("question -> answer"),
            trainset=examples(train),
            valset=examples(2, "val"),
            run_dir=run_dir,
            verbose=False,
        )
    return program, optimizer


def without_timings(optimizer: TrainingFreeGRPO) -> Any:
    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: strip(v) for k, v in value.items() if k != "seconds"}
        return [strip(v) for v in value] if isinstance(value, list) else value

    assert optimizer.report is not None
    return strip(json.loads(report_to_json(optimizer.report)))


def test_a_finished_run_returns_at_once_without_any_call_of_model_or_metric(tmp_path: Path) -> None:
    model, metric = Shouting(), Counting()
    first, one = compiled(model, tmp_path / "run", metric=metric)
    calls, asked = len(model.engine.calls), metric.asked
    metric = Counting()
    second, two = compiled(model, tmp_path / "run", metric=metric)
    assert (len(model.engine.calls), metric.asked) == (calls, 0) and asked > 0
    assert second.dump_state() == first.dump_state()
    assert RULE in second.signature.instructions
    assert one.report == two.report


def test_a_run_with_a_folder_learns_what_a_run_without_one_learns(tmp_path: Path) -> None:
    with_folder, one = compiled(Shouting(), tmp_path / "run")
    without, two = compiled(Shouting(), None)
    assert with_folder.dump_state() == without.dump_state()
    assert without_timings(one) == without_timings(two)


def test_a_folder_tells_what_happened(tmp_path: Path) -> None:
    _, optimizer = compiled(Shouting(), tmp_path)
    assert optimizer.report is not None
    assert to_json(load_library(tmp_path / "libraries" / "step-002.json")) == to_json(optimizer.report.steps[1].after)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds[0] == "RunStarted" and kinds[-1] == "RunFinished"
    rollouts = [event for event in events if event["event"] == "RolloutFinished" and not event["evaluation"]]
    assert len(rollouts) == 2 * 3 * 3
    assert all(event["rollout"]["turns"] and event["rollout"]["reward"] in (0.0, 1.0) for event in rollouts)
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["best_step"] == 1
    assert RULE in (tmp_path / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"group_size": 4}, "settings.group_size: 3 -> 4"),
        ({"train": 2}, "trainset.count: 3 -> 2"),
        ({"metric": lambda gold, pred, trace=None: 0.5}, "metric"),
        ({"limits": LibraryLimits(words=9)}, "settings.limits.words: 32 -> 9"),
        ({"use_ground_truth": False}, "settings.use_ground_truth"),
    ],
)
def test_another_run_under_the_same_folder_is_an_error_that_names_the_difference(
    change: dict[str, Any], named: str, tmp_path: Path
) -> None:
    compiled(Shouting(), tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json*")}
    model = Shouting()
    with pytest.raises(ConfigurationError, match="holds another run") as error:
        compiled(model, tmp_path, **change)
    assert named in str(error.value)
    assert model.engine.calls == []
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json*")} == before


def test_how_often_and_on_how_many_threads_something_is_tried_is_no_difference(tmp_path: Path) -> None:
    model = Shouting()
    compiled(model, tmp_path, num_threads=1)
    calls = len(model.engine.calls)
    compiled(model, tmp_path, num_threads=8)
    assert len(model.engine.calls) == calls


def test_another_program_is_named(tmp_path: Path) -> None:
    compiled(Shouting(), tmp_path)
    optimizer = TrainingFreeGRPO(metric=exact, epochs=2, group_size=3)
    with dspy.context(lm=Shouting().lm()), pytest.raises(ConfigurationError, match="program"):
        optimizer.compile(
            dspy.ChainOfThought("question -> answer"),
            trainset=examples(3),
            valset=examples(2, "val"),
            run_dir=tmp_path,
            verbose=False,
        )


def test_a_second_process_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from tgrpo_dspy.runs.folder import open_run\n"
        f"with open_run(Path({str(tmp_path)!r}), {{}}):\n    print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "open\n"
        model = Shouting()
        with pytest.raises(RunDirError, match="in use by another process"):
            compiled(model, tmp_path)
        assert model.engine.calls == []
        other.stdin.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_an_error_before_any_call(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    model = Shouting()
    with pytest.raises(RunDirError, match="cannot be written"):
        compiled(model, tmp_path / "run")
    assert model.engine.calls == []


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that nobody may write to")
def test_a_file_system_without_room_for_a_folder_is_an_error_before_any_call() -> None:
    model = Shouting()
    with pytest.raises(RunDirError, match=r"run_dir='/proc/self/run' cannot be written"):
        compiled(model, Path("/proc/self/run"))
    assert model.engine.calls == []


def test_a_file_in_place_of_the_folder_is_an_error_before_any_call(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine", encoding="utf-8")
    with pytest.raises(RunDirError, match="run_dir="):
        compiled(Shouting(), tmp_path / "run")
    assert (tmp_path / "run").read_text(encoding="utf-8") == "mine"


def test_a_torn_last_line_of_the_events_and_a_damaged_store(tmp_path: Path) -> None:
    model = Shouting()
    first, _ = compiled(model, tmp_path)
    calls = len(model.engine.calls)
    events = tmp_path / "events.jsonl"
    events.write_bytes(events.read_bytes()[:-20])
    second, _ = compiled(model, tmp_path)
    assert len(model.engine.calls) == calls and second.dump_state() == first.dump_state()
    database = tmp_path / "store" / "cache.db"
    for leftover in database.parent.glob("cache.db-*"):
        leftover.unlink()
    database.write_bytes(b"not a database" * 1000)
    with pytest.raises(RunDirError, match="file is not a database"):
        compiled(model, tmp_path)


def test_a_pickle_in_the_store_is_never_loaded(tmp_path: Path) -> None:
    import diskcache

    compiled(Shouting(), tmp_path)
    with diskcache.Cache(str(tmp_path / "store")) as cache:
        cache["result"] = {"a": "pickle"}
    with pytest.raises(RunDirError, match="not text"):
        compiled(Shouting(), tmp_path)


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from tests.runs.test_run_dir import compiled
from tests.scripted import Shouting
from tgrpo_dspy import RunDirError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
try:
    compiled(Shouting(), Path(sys.argv[1]), num_threads=1, train=30)
except RunDirError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
model = Shouting()
program, _ = compiled(model, Path(sys.argv[1]), num_threads=1, train=30)
print(len(model.runs))
"""


def test_a_full_disk_is_a_clear_error_and_earlier_work_is_intact(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "run"), "400000"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    error, runs = done.stdout.strip().splitlines()
    assert "cannot be used" in error and "call compile again with the same run_dir" in error
    all_runs = 2 * 30 * 3 + 2 * 2
    assert 0 < int(runs) < all_runs


def test_an_acceptance_rule_of_ones_own_is_part_of_what_a_run_is_about(tmp_path: Path) -> None:
    class Patient:
        def __init__(self, patience: int) -> None:
            self.patience = patience

        def decide(self, *, student: Any, current: Any, new: Any, best: Any) -> Any:
            return Last().decide(student=student, current=current, new=new, best=best)

    compiled(Shouting(), tmp_path, validation=Validation(acceptance=Patient(1)))
    model = Shouting()
    compiled(model, tmp_path, validation=Validation(acceptance=Patient(1)))
    assert model.engine.calls == []
    with pytest.raises(ConfigurationError, match="acceptance"):
        compiled(model, tmp_path, validation=Validation(acceptance=Patient(2)))
