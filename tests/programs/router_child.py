"""Compiles over the router of ``docs/scaling.md``, as it is pasted, for each pair of servers; see ``test_router.py``.

A process of its own, because LiteLLM keeps providers, clients and threads until the process ends.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import dspy

from tests.scripted import exact, examples
from tgrpo_dspy import TrainingFreeGRPO

DOCUMENT = Path(__file__).parents[2] / "docs" / "scaling.md"


def router(urls: list[str]) -> str:
    """The block that makes the router, with these servers in it."""
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = (block for block in blocks if "litellm.Router" in block)
    for name, url in zip(("http://gpu-1:8000/v1", "http://gpu-2:8000/v1"), urls, strict=True):
        block = block.replace(name, url)
    return block


def told(urls: list[str]) -> dict[str, Any]:
    """What a compile over a router of these servers gives."""
    exec(compile(router(urls), DOCUMENT.name, "exec"), {})
    optimizer = TrainingFreeGRPO(metric=exact, epochs=2, group_size=3, num_threads=3)
    program = optimizer.compile(
        dspy.Predict("question -> answer"), trainset=examples(4), valset=examples(2, "val"), verbose=False
    )
    report = optimizer.report
    assert report is not None
    rollouts = [rollout for step in report.steps for group in step.groups for rollout in group.rollouts]
    return {
        "instructions": program.signature.instructions,
        "calls": sum(usage.calls for usage in report.usage.values()),
        "rollouts": len(rollouts),
        "scored": len([rollout for rollout in rollouts if rollout.reward is not None]),
        "stopped_by": report.stopped_by,
    }


if __name__ == "__main__":
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    print(json.dumps([told(pair.split()) for pair in sys.argv[1:]]))
