"""Runs read back from an MLflow store: parameters, metrics, artefacts, and how runs end."""

from __future__ import annotations

import asyncio
import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest

from tests.scripted import RULE, Shouting, exact, examples
from tests.test_docs import ROOT, run_examples
from tgrpo_dspy import Budget, MetricError, MlflowListener, Reflection, Sampling, TrainingFreeGRPO, load_library
from tgrpo_dspy.runs.events import Event, StepFinished

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    mlflow = pytest.importorskip("mlflow")

pytestmark = pytest.mark.filterwarnings("ignore:::mlflow", "ignore:::sqlalchemy", "ignore:::alembic")

SECRET = "correct-horse-battery-42"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture(autouse=True)
def experiment(store: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """An experiment of its own for every test; nothing but the environment says where it is."""
    monkeypatch.chdir(store)  # where older versions make an empty folder for artefacts
    uri = f"sqlite:///{store}/store.db"
    client = mlflow.MlflowClient(tracking_uri=uri)
    name = request.node.name
    made: str = client.create_experiment(name, artifact_location=(store / name).as_uri())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", made)
    monkeypatch.setenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    return made


@pytest.fixture
def autolog() -> Iterator[None]:
    mlflow.dspy.autolog(log_compiles=True, log_evals=True)
    yield
    mlflow.dspy.autolog(disable=True)
    mlflow.utils.autologging_utils.revert_patches("dspy")
    dspy.configure(track_usage=False)


def compiled(*listeners: Any, **settings: Any) -> tuple[Any, TrainingFreeGRPO]:
    """A run of two steps, of which the second changes nothing."""
    model, name = settings.pop("model", None) or Shouting(), settings.pop("name", "test/scripted")
    given = {name: settings.pop(name) for name in ("run_dir", "budget") if name in settings}
    chosen = {"metric": exact, "epochs": 2, "group_size": 3, "num_threads": 1, **settings}
    optimizer = TrainingFreeGRPO(**chosen)
    with dspy.context(lm=model.lm(model=name)):
        program = optimizer.compile(
            dspy.Predict("question -> answer"),
            trainset=examples(3),
            valset=examples(2, "val"),
            listeners=listeners,
            verbose=False,
            **given,
        )
    return program, optimizer


def runs(experiment: str) -> list[Any]:
    """The runs of an experiment, the oldest first."""
    found = mlflow.MlflowClient().search_runs([experiment], order_by=["attributes.start_time ASC"])
    return list(found)


def history(run: Any, metric: str) -> list[tuple[int, float]]:
    logged = mlflow.MlflowClient().get_metric_history(run.info.run_id, metric)
    return sorted((entry.step, entry.value) for entry in logged)


def artefact(run: Any, name: str) -> str:
    return Path(mlflow.artifacts.download_artifacts(run_id=run.info.run_id, artifact_path=name)).read_text("utf-8")


def artefacts(run: Any) -> set[str]:
    return {file.path for file in mlflow.MlflowClient().list_artifacts(run.info.run_id)}


def check(run: Any, program: dspy.Module, optimizer: TrainingFreeGRPO, folder: Path) -> None:
    """Everything of a whole run is in the MLflow run, and says what the report says."""
    report = optimizer.report
    assert report is not None and report.student is not None
    params, metrics = run.data.params, run.data.metrics
    assert run.info.status == "FINISHED"
    assert (params["group_size"], params["epochs"], params["batch_size"]) == ("3", "2", "None")
    assert (params["sampling.temperature"], params["limits.words"], params["validation.acceptance"]) == (
        "0.7",
        "32",
        "best",
    )
    assert (params["metric"], params["lm"], params["student"]) == ("exact", "test/scripted", "Predict")
    assert (params["trainset_size"], params["valset_size"]) == ("3", "2")
    steps = report.steps
    scores = [report.student, *(step.evaluation for step in steps)]
    assert history(run, "validation_score") == [(n, e.mean) for n, e in enumerate(scores) if e is not None]
    assert history(run, "validation_score_standard_error")[0] == (0, 0.5)
    assert history(run, "mean_reward") == [(step.step, step.mean_reward) for step in steps]
    assert history(run, "library_size") == [(1, 1), (2, 1)]
    assert history(run, "edits_applied") == [(step.step, len(step.applied)) for step in steps]
    assert history(run, "edits_refused") == [(step.step, len(step.refused)) for step in steps]
    assert history(run, "seconds") == [(step.step, step.seconds) for step in steps]
    calls = [sum(usage.calls for usage in step.usage.values()) for step in steps]
    tokens = [sum(usage.prompt_tokens for usage in step.usage.values()) for step in steps]
    assert history(run, "lm_calls") == [(1, calls[0]), (2, calls[1])] and calls[0] > 9
    assert history(run, "prompt_tokens") == [(1, tokens[0]), (2, tokens[1])]
    assert "cost" not in metrics  # of a model without a price it is not known
    assert metrics["best_step"] == report.best_step == 1 and metrics["best_validation_score"] == 1.0
    assert metrics["total_lm_calls"] == sum(usage.calls for usage in report.usage.values())

    assert {"library.json", "library.md", "report.md", "report.html", "best_model.json"} <= artefacts(run)
    (folder / "library.json").write_text(artefact(run, "library.json"), encoding="utf-8")
    assert load_library(folder / "library.json") == report.library
    assert artefact(run, "library.md") == report.library.to_markdown()
    assert "Returned: step 1." in artefact(run, "report.md") and "<html" in artefact(run, "report.html")
    (folder / "program.json").write_text(artefact(run, "best_model.json"), encoding="utf-8")
    loaded = dspy.Predict("question -> answer")
    loaded.load(folder / "program.json")
    assert loaded.signature.instructions == program.signature.instructions  # type: ignore[attr-defined]
    assert RULE in loaded.signature.instructions


def test_the_listener_alone_makes_one_run_with_everything(experiment: str, tmp_path: Path) -> None:
    program, optimizer = compiled(MlflowListener())
    (run,) = runs(experiment)
    check(run, program, optimizer, tmp_path)
    assert mlflow.active_run() is None


@pytest.mark.usefixtures("autolog")
def test_autolog_is_enough_and_its_run_is_the_only_one(experiment: str, tmp_path: Path) -> None:
    before = TrainingFreeGRPO(metric=exact, epochs=2, group_size=3, num_threads=1).get_params()
    program, optimizer = compiled()
    (run,) = runs(experiment)
    check(run, program, optimizer, tmp_path)
    assert run.data.tags["mlflow.autologging"] == "dspy"
    assert {"trainset.json", "valset.json"} <= artefacts(run)  # by MLflow itself
    assert optimizer.get_params() == before
    compiled(MlflowListener())  # passing it as well logs nothing twice
    assert [history(one, "library_size") for one in runs(experiment)] == [[(1, 1), (2, 1)]] * 2


@pytest.mark.usefixtures("autolog")
def test_in_a_notebook_the_run_of_autolog_is_found_too(experiment: str, tmp_path: Path) -> None:
    async def cell() -> tuple[Any, TrainingFreeGRPO]:
        return compiled()

    program, optimizer = asyncio.run(cell())
    (run,) = runs(experiment)
    check(run, program, optimizer, tmp_path)


@pytest.mark.usefixtures("autolog")
def test_acompile_which_autolog_does_not_know_gets_a_run_as_well(experiment: str) -> None:
    optimizer = TrainingFreeGRPO(metric=exact, epochs=1, group_size=2, num_threads=1)
    with dspy.context(lm=Shouting().lm()):
        asyncio.run(
            optimizer.acompile(dspy.Predict("question -> answer"), trainset=examples(2), listeners=[], verbose=False)
        )
    (run,) = runs(experiment)
    assert run.info.status == "FINISHED" and "best_model.json" in artefacts(run)


def test_without_log_compiles_autolog_starts_no_run(experiment: str, autolog: None) -> None:
    mlflow.dspy.autolog(log_compiles=False)
    compiled()
    assert runs(experiment) == []


def test_an_active_run_is_used_and_left_open(experiment: str) -> None:
    with mlflow.start_run() as active:
        mlflow.log_param("seed", "mine")  # is no reason to stop
        compiled(MlflowListener())
        assert mlflow.active_run().info.run_id == active.info.run_id
        assert runs(experiment)[0].info.status == "RUNNING"
        compiled(MlflowListener(), group_size=2)
    first, second = runs(experiment)
    assert (first.data.params["seed"], first.data.params["group_size"]) == ("mine", "3")
    assert [step for step, _ in history(first, "mean_reward")] == [1, 2]
    assert second.data.params["group_size"] == "2"
    assert second.data.tags["mlflow.parentRunId"] == active.info.run_id


def interrupting(event: Event) -> None:
    if isinstance(event, StepFinished):
        raise KeyboardInterrupt


def test_a_compile_that_raises_leaves_no_open_run(experiment: str) -> None:
    with pytest.raises(MetricError):
        compiled(MlflowListener(), metric=lambda gold, pred: None)
    with pytest.raises(KeyboardInterrupt):
        compiled(MlflowListener(), interrupting)
    failed, killed = runs(experiment)
    assert (failed.info.status, killed.info.status) == ("FAILED", "KILLED")
    assert failed.data.params["group_size"] == "3"
    assert [step for step, _ in history(killed, "mean_reward")] == [1]
    assert mlflow.active_run() is None


def test_a_budget_and_what_stopped_the_run_are_told(experiment: str) -> None:
    compiled(MlflowListener(), budget=Budget(max_lm_calls=6))
    (run,) = runs(experiment)
    assert run.data.params["budget.max_lm_calls"] == "6"
    assert run.data.tags["tgrpo_dspy.stopped_by"] == "budget: max_lm_calls=6"


def test_what_a_run_costs_is_told_where_prices_are_known(experiment: str) -> None:
    _, optimizer = compiled(MlflowListener(), name="openai/gpt-4o-mini")
    (run,) = runs(experiment)
    assert optimizer.report is not None
    costs = [sum(usage.cost for usage in step.usage.values()) for step in optimizer.report.steps]
    assert history(run, "cost") == [(1, costs[0]), (2, costs[1])] and costs[0] > 0
    assert run.data.metrics["total_cost"] == sum(usage.cost for usage in optimizer.report.usage.values())


def test_a_resumed_run_logs_every_step_once(experiment: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with mlflow.start_run() as active, pytest.raises(KeyboardInterrupt):
        compiled(MlflowListener(), interrupting, run_dir=folder)
    assert [step for step, _ in history(active, "mean_reward")] == [1]
    with mlflow.start_run(run_id=active.info.run_id):
        program, optimizer = compiled(MlflowListener(), run_dir=folder)
    (run,) = runs(experiment)
    check(run, program, optimizer, tmp_path)

    program, optimizer = compiled(MlflowListener(), run_dir=folder)  # it had finished: nothing happens any more
    fresh = runs(experiment)[1]
    check(fresh, program, optimizer, tmp_path)
    assert artefact(fresh, "report.html") == (folder / "report.html").read_text("utf-8")


def test_a_store_that_fails_in_the_middle_changes_nothing(experiment: str, caplog: pytest.LogCaptureFixture) -> None:
    def deletes(event: Event) -> None:
        if isinstance(event, StepFinished) and event.record.step == 1:
            mlflow.delete_run(runs(experiment)[0].info.run_id)

    expected, _ = compiled()
    program, optimizer = compiled(deletes, MlflowListener())
    assert program.dump_state() == expected.dump_state()
    assert optimizer.report is not None and len(optimizer.report.steps) == 2
    told = [record.message for record in caplog.records if record.name.startswith("tgrpo_dspy")]
    assert len(told) == 1 and "is not called again" in told[0]
    assert mlflow.active_run() is None


def test_a_server_that_is_down_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected, _ = compiled()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    program, _ = compiled(MlflowListener())
    assert program.dump_state() == expected.dump_state()
    told = [record for record in caplog.records if record.name.startswith("tgrpo_dspy")]
    assert [record.levelno for record in told] == [logging.ERROR] and "failed to follow" in told[0].message


def test_no_secret_is_logged(store: Path, experiment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Leaking(Shouting):
        """Repeats a key in its answers."""

        def __call__(self, call: Any) -> dict[str, str]:
            answer = super().__call__(call)
            return {name: f"{text} {SECRET}" if name == "answer" else text for name, text in answer.items()}

    def graded(gold: Any, pred: Any, trace: Any = None) -> dspy.Prediction:
        return dspy.Prediction(score=gold.answer in pred.answer, feedback=f"sent with {SECRET}")

    monkeypatch.setenv("SOME_API_KEY", SECRET)
    compiled(
        MlflowListener(),
        model=Leaking(),
        metric=graded,
        sampling=Sampling(solved_score=None),
        reflection=Reflection(learning_objective=f"never say {SECRET}"),
    )
    (run,) = runs(experiment)
    assert run.data.params["reflection.learning_objective"] == "never say ***"
    assert RULE in artefact(run, "library.md")
    files = [file for file in store.rglob("*") if file.is_file()]
    assert len(files) > 5
    assert [file for file in files if SECRET.encode() in file.read_bytes()] == []


def test_long_texts_are_logged(experiment: str) -> None:
    def graded(gold: Any, pred: Any, trace: Any = None) -> dspy.Prediction:
        return dspy.Prediction(score=exact(gold, pred), feedback="x" * 10_000)

    compiled(MlflowListener(), metric=graded, reflection=Reflection(learning_objective="y" * 10_000))
    (run,) = runs(experiment)
    told = run.data.params["reflection.learning_objective"]
    assert told.startswith("yyy") and told.endswith("y…") and 5000 < len(told) <= 6000
    assert {"library.json", "report.html", "best_model.json"} <= artefacts(run)


def test_without_mlflow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ImportError, match=r"pip install 'tgrpo_dspy\[mlflow\]'"):
        MlflowListener()


@pytest.mark.usefixtures("autolog")
def test_the_guide(experiment: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    learn = (ROOT / "README.md").read_text(encoding="utf-8").split("## What to expect")[0]
    guide = (ROOT / "docs/tracking.md").read_text(encoding="utf-8").split("## OpenTelemetry")[0]
    (tmp_path / "both.md").write_text(learn + guide, encoding="utf-8")
    run_examples(str(tmp_path / "both.md"), monkeypatch, tmp_path)
    assert {run.info.status for run in runs(experiment)} == {"FINISHED"}
    assert all("library.md" in artefacts(run) for run in runs(experiment))
