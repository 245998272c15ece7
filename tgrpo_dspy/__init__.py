"""Training-Free GRPO for DSPy: programs that learn short, readable experiences from groups of their own rollouts."""

from tgrpo_dspy.errors import (
    ConfigurationError,
    LibraryError,
    LMUnavailableError,
    MetricError,
    ProgramError,
    RunDirError,
    TGRPOError,
    WorkerError,
)
from tgrpo_dspy.estimation import Estimate
from tgrpo_dspy.evaluation import (
    Attribution,
    Performance,
    Pruned,
    aattribute,
    aevaluate,
    aprune,
    attribute,
    evaluate,
    prune,
)
from tgrpo_dspy.library import (
    Edit,
    Experience,
    ExperienceLibrary,
    apply_markdown,
    diff,
    inject,
    load_library,
    read_library,
    retarget,
    save_library,
    strip,
)
from tgrpo_dspy.optimizer import TrainingFreeGRPO
from tgrpo_dspy.records import CompileReport, Evaluation, Failure, Group, Rollout, StepRecord, Usage
from tgrpo_dspy.reflection.direct import generate_library
from tgrpo_dspy.reflection.merging import merge
from tgrpo_dspy.sampling.ray import RayExecutor
from tgrpo_dspy.settings import Budget, LibraryLimits, Reflection, Sampling, Validation
from tgrpo_dspy.views.mlflow import MlflowListener
from tgrpo_dspy.views.otel import OpenTelemetryListener

__version__ = "0.1.0"

__all__ = [
    "Attribution",
    "Budget",
    "CompileReport",
    "ConfigurationError",
    "Edit",
    "Estimate",
    "Evaluation",
    "Experience",
    "ExperienceLibrary",
    "Failure",
    "Group",
    "LMUnavailableError",
    "LibraryError",
    "LibraryLimits",
    "MetricError",
    "MlflowListener",
    "OpenTelemetryListener",
    "Performance",
    "ProgramError",
    "Pruned",
    "RayExecutor",
    "Reflection",
    "Rollout",
    "RunDirError",
    "Sampling",
    "StepRecord",
    "TGRPOError",
    "TrainingFreeGRPO",
    "Usage",
    "Validation",
    "WorkerError",
    "__version__",
    "aattribute",
    "aevaluate",
    "apply_markdown",
    "aprune",
    "attribute",
    "diff",
    "evaluate",
    "generate_library",
    "inject",
    "load_library",
    "merge",
    "prune",
    "read_library",
    "retarget",
    "save_library",
    "strip",
]
