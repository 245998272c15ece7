"""Programs as tasks of a real Ray cluster of two workers on this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest

from tests.sampling.distant import Distant, learned, most_at_once, noted, without_timings
from tests.scripted import RULE, Shouting, exact, examples
from tests.serving import serving
from tgrpo_dspy import ConfigurationError, TrainingFreeGRPO
from tgrpo_dspy.errors import WorkerError
from tgrpo_dspy.runs.events import Event, RolloutFinished
from tgrpo_dspy.sampling.ray import RayExecutor

ray = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(sys.platform == "win32", reason="kills processes"),
    # Ray leaves handles of its own processes to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

KEY = "canary-7d1f0c5b9e2a"
QUIETLY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}  # nothing is reported, and no token is written


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    """Two workers, which find the key in their environment; gives the folder of the cluster's files."""
    folder = tempfile.mkdtemp(prefix="ray")  # short: Ray puts sockets into it
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**QUIETLY, "HOUSE_API_KEY": KEY}.items():
            patch.setenv(name, value)
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=2**27, _temp_dir=folder)
        try:
            yield Path(folder)
        finally:
            ray.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def no_cache() -> None:
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)


def test_a_worker_killed_in_the_middle_of_a_step_changes_nothing(cluster: Path, tmp_path: Path) -> None:
    local = learned(Distant(tmp_path / "local"), "threads")
    there = learned(Distant(tmp_path / "ray", dies_at=6), "ray")
    assert (tmp_path / "ray.dead").exists()
    begun = [line for line in noted(tmp_path / "ray") if line[1] == "begins"]
    calls = [call for _, _, call in begun]
    assert len({pid for pid, _, _ in begun} - {os.getpid()}) > 1 and os.getpid() not in {pid for pid, _, _ in begun}
    assert len(calls) == len(set(calls)) + 1, "one call was begun twice: the one in which a worker died"
    assert sorted(set(calls)) == sorted(call for _, what, call in noted(tmp_path / "local") if what == "begins")
    assert there[:2] == local[:2]
    assert without_timings(there[2]) == without_timings(local[2])
    assert RULE in there[1]


def test_a_worker_that_dies_again_and_again_ends_the_run(cluster: Path, tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"example .* died"):
        learned(Distant(tmp_path / "log", always=True), RayExecutor(max_retries=0), threads=1)


class CtrlC:
    """A listener that presses Ctrl-C once, when the first rollout is done."""

    def __init__(self) -> None:
        self.pressed = False

    def __call__(self, event: Event) -> None:
        if isinstance(event, RolloutFinished) and not event.evaluation and not self.pressed:
            self.pressed = True
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_keeps_what_is_in_flight_and_the_run_goes_on_later(cluster: Path, tmp_path: Path) -> None:
    log, folder = tmp_path / "log", {"run_dir": tmp_path / "run"}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            learned(Distant(log), "ray", threads=2, compiling={**folder, "listeners": [CtrlC()]})
    finally:
        signal.signal(signal.SIGINT, before)
    begun = [call for _, what, call in noted(log) if what == "begins"]
    assert 0 < len(begun) == len([call for _, what, call in noted(log) if what == "ends"])
    went_on, whole = learned(Distant(log), "ray", compiling=folder), learned(Distant(tmp_path / "whole"), "threads")
    assert went_on[:2] == whole[:2]
    assert len(begun) < len(noted(log)) / 2 == len(noted(tmp_path / "whole")) / 2


def test_no_more_tasks_are_under_way_than_threads_were_allowed(cluster: Path, tmp_path: Path) -> None:
    learned(Distant(tmp_path / "one"), "ray", threads=1)
    assert most_at_once(tmp_path / "one") == 1
    learned(Distant(tmp_path / "two"), RayExecutor(num_cpus_per_task=0.5), threads=2)
    assert most_at_once(tmp_path / "two") == 2


def test_workers_take_keys_from_their_environment_and_no_file_of_the_cluster_holds_one(
    cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOUSE_API_KEY", KEY)
    with serving(Shouting()) as server:
        lm = dspy.LM("openai/house", api_base=server.url, api_key=os.environ["HOUSE_API_KEY"], num_retries=0)
        optimizer = TrainingFreeGRPO(metric=exact, epochs=1, group_size=2, executor="ray")
        with dspy.context(lm=lm):
            optimizer.compile(dspy.Predict("question -> answer"), trainset=examples(2), verbose=False)
    assert optimizer.report is not None and optimizer.report.usage["rollout"].calls == 4
    assert server.keys == {KEY}
    files = [path for path in cluster.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


def test_code_that_is_not_on_the_workers_is_named(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("import dspy\nclass Mine(dspy.Predict): pass\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    from only_here import Mine  # type: ignore[import-not-found]

    with pytest.raises(ConfigurationError, match=r"No module named 'only_here'.*has to be installed"):
        learned(Distant(tmp_path / "log"), "ray", student=Mine("question -> answer"))


def test_where_to_connect_is_refused_when_ray_is_connected(cluster: Path, tmp_path: Path) -> None:
    for settings in ({"address": "ray-head:6379"}, {"runtime_env": {"working_dir": "."}}):
        with pytest.raises(ConfigurationError, match="Ray is connected already"):
            learned(Distant(tmp_path / "log"), RayExecutor(**settings))
    assert not (tmp_path / "log").exists()


def test_a_cluster_of_its_own_gets_the_code_of_this_folder_and_ends_with_the_run(tmp_path: Path) -> None:
    """In a process of its own, which is not connected."""
    (tmp_path / "only_here.py").write_text("import dspy\nclass Mine(dspy.Predict): pass\n", encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tests.sampling.ray_child", str(tmp_path)],
            env={**os.environ, **QUIETLY, "PYTHONPATH": str(Path(__file__).parents[2]), "RAY_TMPDIR": folder},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    connected, library = json.loads(done.stdout.splitlines()[-1])
    assert not connected and RULE in library


def test_without_ray_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'tgrpo_dspy\[ray\]'"):
        learned(Distant(tmp_path / "log"), "ray")
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"num_cpus_per_task": 0}, "num_cpus_per_task=0"),
        ({"max_retries": -1}, "max_retries=-1"),
        ({"runtime_env": {"env_vars": {"OPENAI_API_KEY": "abc"}}}, "OPENAI_API_KEY"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as raised:
        RayExecutor(**settings)
    assert "abc" not in str(raised.value)
