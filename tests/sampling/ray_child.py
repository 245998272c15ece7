"""Learns on a Ray cluster of its own with a module that is in one folder only; started by ``test_ray.py``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import dspy
import ray

from tests.sampling.distant import Distant, learned
from tgrpo_dspy.sampling.ray import RayExecutor


def main(folder: Path) -> None:
    sys.path.append(str(folder))
    from only_here import Mine  # type: ignore[import-not-found]

    sys.path.remove(str(folder))  # else Ray hands it to workers on the same machine
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    executor = RayExecutor(runtime_env={"working_dir": str(folder)}, num_cpus_per_task=0.5)
    _, library, _ = learned(Distant(folder / "log"), executor, student=Mine("question -> answer"))
    print(json.dumps([ray.is_initialized(), library]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
