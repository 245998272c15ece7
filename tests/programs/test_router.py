"""A LiteLLM router over two local servers: both answer, and one that fails or is gone loses nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

import dspy
import pytest

from tests.programs.router_child import DOCUMENT
from tests.scripted import RULE, Shouting
from tests.serving import ChatServer, serving
from tgrpo_dspy.testing import Call


class Learning(Shouting):
    """Gets the validation examples right by the rule only, whichever server is asked."""

    def __call__(self, call: Call) -> dict[str, str]:
        answer = super().__call__(call)
        question = call.fields.get("question", "")
        return {"answer": question} if question.startswith("val") and RULE not in call.system else answer


class Failing(Learning):
    """A model whose server refuses everything after a few answers."""

    server: ChatServer

    def __call__(self, call: Call) -> dict[str, str]:
        if call.number == 2:
            self.server.status = 500
        return super().__call__(call)


Run = tuple[dict[str, Any], ChatServer, ChatServer]


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    """A compile over two good servers, over one that begins to fail, and over one that is gone."""
    if importlib.util.find_spec("litellm") is None:
        pytest.skip("LiteLLM is not installed")
    failing = Failing()
    with ExitStack() as stack:
        good = [stack.enter_context(serving(Learning())) for _ in range(4)]
        failing.server = stack.enter_context(serving(failing))
        with serving(Learning()) as gone:
            pass
        pairs = {"good": (good[0], good[1]), "failing": (good[2], failing.server), "gone": (good[3], gone)}
        done = subprocess.run(
            [sys.executable, "-m", "tests.programs.router_child", *(f"{a.url} {b.url}" for a, b in pairs.values())],
            env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    return {name: (result, *pair) for (name, pair), result in zip(pairs.items(), told, strict=True)}


@pytest.mark.parametrize("name", ["good", "failing", "gone"])
def test_nothing_is_lost(runs: dict[str, Run], name: str) -> None:
    told, one, two = runs[name]
    assert told["stopped_by"] is None
    assert told["scored"] == told["rollouts"] >= 4 * 3
    assert len(one.calls) + len(two.calls) == told["calls"]
    assert [*one.temperatures, *two.temperatures].count(0.7) == told["rollouts"]
    assert RULE in told["instructions"]


def test_both_deployments_are_asked(runs: dict[str, Run]) -> None:
    told, one, two = runs["good"]
    assert min(len(one.calls), len(two.calls)) > told["calls"] / 10


def test_a_deployment_that_fails_is_left_alone(runs: dict[str, Run]) -> None:
    _, one, two = runs["failing"]
    assert 3 <= len(two.calls) < len(one.calls)
    assert 1 <= two.refused < 10


def configured(address: str) -> str:
    """The line of the document that configures an LM at this address."""
    (line,) = (line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if f'api_base="{address}"' in line)
    return line


@pytest.mark.parametrize("address", ["http://gpu-1:8000/v1", "http://ray-head:8000/v1", "http://proxy:4000/v1"])
def test_the_served_models_of_the_document_are_reached(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dspy.LM] = []
    monkeypatch.setattr(dspy, "configure", lambda lm: made.append(lm))
    for name in [name for name in os.environ if re.search("API_KEY|API_BASE|BASE_URL", name)]:
        monkeypatch.delenv(name)
    with serving(lambda call: {"answer": call.fields["question"].upper()}) as server:
        exec(configured(address).replace(address, server.url), {"dspy": dspy})
        with dspy.context(lm=made[0]):
            assert dspy.Predict("question -> answer")(question="here?").answer == "HERE?"
        made[0].close()
    assert len(server.calls) == 1
