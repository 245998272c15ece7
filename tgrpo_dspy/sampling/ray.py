"""The executor for many machines: every run of the program is a task of a Ray cluster."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import dspy

from tgrpo_dspy.errors import ConfigurationError, WorkerError
from tgrpo_dspy.runs.secrets import looks_secret
from tgrpo_dspy.runs.usage import UsageLedger
from tgrpo_dspy.sampling.jobs import Draw, Job, Outcome, Runner, Terms
from tgrpo_dspy.sampling.remote import Sender, Told, carry_out, received
from tgrpo_dspy.settings import require

_KEPT = 1000  # objects in Ray's store that may be asked for again


@dataclass(frozen=True, kw_only=True)
class RayExecutor:
    """Runs programs as tasks of a Ray cluster (https://docs.ray.io), with the metric beside them.

    ``num_threads`` of the optimizer says how many tasks are under way at most. A task whose worker dies is started
    again, under the same rollout id, so that the result is the same.

    Keys are not sent: a text that holds one travels with the name of the variable in its place, and is read from the
    worker's environment. The package ``tgrpo_dspy`` and what the program imports must be installed on every node.

    Args:
        address: of the cluster, as for ``ray.init``; None: the one that Ray is connected to or that is in
            ``RAY_ADDRESS``, else a new one on this machine, which ends with the run.
        num_cpus_per_task: CPUs that a task takes, above 0. A run that waits for its LM most of the time needs few: 0.1
            lets ten of them share a CPU, each in a process of its own.
        max_retries: how often a task is started again when its worker died; 0 or more.
        runtime_env: what the tasks find on the workers, as for ``ray.init``: ``{"working_dir": "."}`` takes the modules
            of this folder there. Not for keys, since Ray writes it into its logs.

    Raises:
        ConfigurationError: when a value is out of range.
    """

    address: str | None = None
    num_cpus_per_task: float = 1.0
    max_retries: int = 3
    runtime_env: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        require(self.num_cpus_per_task > 0, "num_cpus_per_task", self.num_cpus_per_task, "use a value above 0")
        require(self.max_retries >= 0, "max_retries", self.max_retries, "use 0 or more")
        for name in (self.runtime_env or {}).get("env_vars", {}):
            require(not looks_secret(name), "runtime_env", {"env_vars": {name: "…"}}, "set keys on the nodes instead")

    @contextmanager
    def open(self, terms: Terms) -> Iterator[Runner]:
        """Check that the program can run elsewhere, and connect to the cluster."""
        ray = _ray()
        sender = Sender(terms)
        sender.check()
        with self._connected(ray):
            yield _Tasks(ray, self, sender).run

    @contextmanager
    def _connected(self, ray: ModuleType) -> Iterator[None]:
        if ray.is_initialized():
            for name in ("address", "runtime_env"):
                value = getattr(self, name)
                require(value is None, name, value, "Ray is connected already; leave it out, or give it to ray.init")
            yield
            return
        ray.init(address=self.address, runtime_env=self.runtime_env and dict(self.runtime_env))
        try:
            yield
        finally:
            ray.shutdown()


class _Tasks:
    """Carries out jobs as tasks. What tasks share is put into Ray's store once."""

    def __init__(self, ray: ModuleType, settings: RayExecutor, sender: Sender) -> None:
        self._ray, self._sender = ray, sender
        self._task = ray.remote(num_cpus=settings.num_cpus_per_task, max_retries=settings.max_retries)(_on_worker)
        self._put: OrderedDict[str, Any] = OrderedDict()

    async def run(self, job: Job, ledger: UsageLedger) -> Outcome:
        digest, package = self._once(job.policy.identity, lambda: self._package(job))
        example = self._once(f"example {job.item.key}", lambda: self._ray.put(self._sender.example(job.item)))
        try:
            # In a list a reference stays one, so that a worker fetches a package once and not for every task.
            told = await self._task.remote(digest, [package], example, job.draw, dspy.__version__)
        except self._ray.exceptions.RayError as error:
            raise WorkerError(
                f"Ray could not run the program on example {job.item.key} ({type(error).__name__}): {error}"
            ) from error
        return received(told, ledger)

    def _package(self, job: Job) -> tuple[str, Any]:
        package = self._sender.package(job.policy.program)
        return package.digest, self._ray.put(package.content)

    def _once(self, key: str, put: Callable[[], Any]) -> Any:
        if key not in self._put:
            self._put[key] = put()
        self._put.move_to_end(key)
        if len(self._put) > _KEPT:
            self._put.popitem(last=False)
        return self._put[key]


def _on_worker(digest: str, package: list[Any], example: bytes, draw: Draw, dspy_version: str) -> Told:
    return carry_out(digest, lambda: _ray().get(package[0]), example, draw, dspy_version)


def _ray() -> ModuleType:
    try:
        import ray
    except ImportError as error:
        raise ConfigurationError("executor='ray' needs Ray: pip install 'tgrpo_dspy[ray]'") from error
    module: ModuleType = ray
    return module
