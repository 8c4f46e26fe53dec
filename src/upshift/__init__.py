"""Shift any step of a Python pipeline up to the hardware that it needs, and prove that it got it.

Every public name is imported at its first use, so that ``import upshift`` costs next to nothing.
"""

from __future__ import annotations

from upshift._version import __version__

TYPE_CHECKING = False  # as type checkers know it; importing typing takes as long as all the rest
if TYPE_CHECKING:
    from typing import Any

    from upshift.authoring.composing.placeholders import unmapped
    from upshift.authoring.decorators import gpu_profile, resources, retry, timeout
    from upshift.authoring.flow.checkpoints import checkpoint
    from upshift.authoring.flow.flow_decorators import (
        conda_base,
        project,
        pypi_base,
        schedule,
        trigger,
        trigger_on_finish,
    )
    from upshift.authoring.flow.parallel import parallel, torchrun
    from upshift.authoring.flow.parameters import Config, IncludeFile, JSONType, Parameter, config_expr
    from upshift.authoring.flow.runner import NBRunner, Runner
    from upshift.authoring.flow.s3 import S3
    from upshift.authoring.flow.s3_objects import S3GetObject, S3PutObject
    from upshift.authoring.flow.spec import FlowSpec
    from upshift.authoring.flow.step_decorators import (
        batch,
        card,
        catch,
        conda,
        environment,
        kubernetes,
        pypi,
        secrets,
        slurm,
    )
    from upshift.authoring.flow.task import CaughtException
    from upshift.authoring.launching import run_with_accelerate, run_with_torchrun
    from upshift.authoring.pipelines import Pipeline, pipeline
    from upshift.authoring.resume import resume
    from upshift.authoring.steps import Step, step
    from upshift.errors import (
        BackendError,
        BlobDamaged,
        BlobMissing,
        ConfigError,
        EngineStopped,
        GraphError,
        ImageError,
        LeaseLost,
        LoadError,
        MissingExtra,
        MisuseError,
        NotFound,
        NotSerializable,
        RecipeError,
        RequestRefused,
        RunCancelled,
        RunFailed,
        RunOwned,
        SettingsError,
        StoreError,
        StoreUnavailable,
        UpshiftError,
        UsageError,
    )
    from upshift.model.settings.batch import BatchSettings
    from upshift.model.settings.docker import DockerSettings
    from upshift.model.settings.environment import PythonEnvironment
    from upshift.model.settings.kubernetes import KubeflowSettings, KubernetesSettings
    from upshift.model.settings.ray import RaySettings
    from upshift.model.settings.resources import ResourceSettings
    from upshift.model.settings.retry import Retry
    from upshift.model.settings.skypilot import SkyPilotSettings
    from upshift.model.settings.slurm import SlurmSettings
    from upshift.runs.history.client import Flow, Metaflow, get_metadata
    from upshift.runs.history.outputs import DataArtifact, default_namespace, get_namespace, namespace
    from upshift.runs.history.runs import Run, get_run, list_runs
    from upshift.runs.history.tasks import Task
    from upshift.runs.history.versions import get_artifact, list_artifacts, tag_artifact
    from upshift.runtime.step.cards import HTML
    from upshift.runtime.step.cleanup import cleanup_memory
    from upshift.runtime.step.context import current
    from upshift.runtime.step.metrics import log
    from upshift.runtime.storage.external import External

__all__ = [
    "HTML",
    "S3",
    "BackendError",
    "BatchSettings",
    "BlobDamaged",
    "BlobMissing",
    "CaughtException",
    "Config",
    "ConfigError",
    "DataArtifact",
    "DockerSettings",
    "EngineStopped",
    "External",
    "Flow",
    "FlowSpec",
    "GraphError",
    "ImageError",
    "IncludeFile",
    "JSONType",
    "KubeflowSettings",
    "KubernetesSettings",
    "LeaseLost",
    "LoadError",
    "Metaflow",
    "MissingExtra",
    "MisuseError",
    "NBRunner",
    "NotFound",
    "NotSerializable",
    "Parameter",
    "Pipeline",
    "PythonEnvironment",
    "RaySettings",
    "RecipeError",
    "RequestRefused",
    "ResourceSettings",
    "Retry",
    "Run",
    "RunCancelled",
    "RunFailed",
    "RunOwned",
    "Runner",
    "S3GetObject",
    "S3PutObject",
    "SettingsError",
    "SkyPilotSettings",
    "SlurmSettings",
    "Step",
    "StoreError",
    "StoreUnavailable",
    "Task",
    "UpshiftError",
    "UsageError",
    "__version__",
    "batch",
    "card",
    "catch",
    "checkpoint",
    "cleanup_memory",
    "conda",
    "conda_base",
    "config_expr",
    "current",
    "default_namespace",
    "environment",
    "get_artifact",
    "get_metadata",
    "get_namespace",
    "get_run",
    "gpu_profile",
    "kubernetes",
    "list_artifacts",
    "list_runs",
    "log",
    "namespace",
    "parallel",
    "pipeline",
    "project",
    "pypi",
    "pypi_base",
    "resources",
    "resume",
    "retry",
    "run_with_accelerate",
    "run_with_torchrun",
    "schedule",
    "secrets",
    "slurm",
    "step",
    "tag_artifact",
    "timeout",
    "torchrun",
    "trigger",
    "trigger_on_finish",
    "unmapped",
]

_HOMES = {
    "BatchSettings": "upshift.model.settings.batch",
    "CaughtException": "upshift.authoring.flow.task",
    "Config": "upshift.authoring.flow.parameters",
    "DataArtifact": "upshift.runs.history.outputs",
    "DockerSettings": "upshift.model.settings.docker",
    "External": "upshift.runtime.storage.external",
    "Flow": "upshift.runs.history.client",
    "FlowSpec": "upshift.authoring.flow.spec",
    "HTML": "upshift.runtime.step.cards",
    "IncludeFile": "upshift.authoring.flow.parameters",
    "JSONType": "upshift.authoring.flow.parameters",
    "KubeflowSettings": "upshift.model.settings.kubernetes",
    "KubernetesSettings": "upshift.model.settings.kubernetes",
    "Metaflow": "upshift.runs.history.client",
    "Parameter": "upshift.authoring.flow.parameters",
    "Pipeline": "upshift.authoring.pipelines",
    "RaySettings": "upshift.model.settings.ray",
    "ResourceSettings": "upshift.model.settings.resources",
    "Retry": "upshift.model.settings.retry",
    "Run": "upshift.runs.history.runs",
    "NBRunner": "upshift.authoring.flow.runner",
    "Runner": "upshift.authoring.flow.runner",
    "S3": "upshift.authoring.flow.s3",
    "S3GetObject": "upshift.authoring.flow.s3_objects",
    "S3PutObject": "upshift.authoring.flow.s3_objects",
    "SkyPilotSettings": "upshift.model.settings.skypilot",
    "PythonEnvironment": "upshift.model.settings.environment",
    "SlurmSettings": "upshift.model.settings.slurm",
    "Step": "upshift.authoring.steps",
    "Task": "upshift.runs.history.tasks",
    "batch": "upshift.authoring.flow.step_decorators",
    "card": "upshift.authoring.flow.step_decorators",
    "catch": "upshift.authoring.flow.step_decorators",
    "checkpoint": "upshift.authoring.flow.checkpoints",
    "cleanup_memory": "upshift.runtime.step.cleanup",
    "conda": "upshift.authoring.flow.step_decorators",
    "conda_base": "upshift.authoring.flow.flow_decorators",
    "config_expr": "upshift.authoring.flow.parameters",
    "current": "upshift.runtime.step.context",
    "default_namespace": "upshift.runs.history.outputs",
    "environment": "upshift.authoring.flow.step_decorators",
    "get_artifact": "upshift.runs.history.versions",
    "get_metadata": "upshift.runs.history.client",
    "get_namespace": "upshift.runs.history.outputs",
    "get_run": "upshift.runs.history.runs",
    "gpu_profile": "upshift.authoring.decorators",
    "kubernetes": "upshift.authoring.flow.step_decorators",
    "list_artifacts": "upshift.runs.history.versions",
    "list_runs": "upshift.runs.history.runs",
    "log": "upshift.runtime.step.metrics",
    "namespace": "upshift.runs.history.outputs",
    "parallel": "upshift.authoring.flow.parallel",
    "pipeline": "upshift.authoring.pipelines",
    "project": "upshift.authoring.flow.flow_decorators",
    "pypi": "upshift.authoring.flow.step_decorators",
    "pypi_base": "upshift.authoring.flow.flow_decorators",
    "resources": "upshift.authoring.decorators",
    "resume": "upshift.authoring.resume",
    "retry": "upshift.authoring.decorators",
    "run_with_accelerate": "upshift.authoring.launching",
    "run_with_torchrun": "upshift.authoring.launching",
    "schedule": "upshift.authoring.flow.flow_decorators",
    "secrets": "upshift.authoring.flow.step_decorators",
    "slurm": "upshift.authoring.flow.step_decorators",
    "step": "upshift.authoring.steps",
    "tag_artifact": "upshift.runs.history.versions",
    "timeout": "upshift.authoring.decorators",
    "torchrun": "upshift.authoring.flow.parallel",
    "trigger": "upshift.authoring.flow.flow_decorators",
    "trigger_on_finish": "upshift.authoring.flow.flow_decorators",
    "unmapped": "upshift.authoring.composing.placeholders",
}
"""Where a public name is defined; an error is in ``upshift.errors``."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise _missing(name)
    import importlib

    try:
        value = getattr(importlib.import_module(_HOMES.get(name, "upshift.errors")), name)
    except (ImportError, AttributeError) as error:
        known = importlib.import_module("upshift.runtime.shadowing").load_error(error)
        if known is None:
            raise
        raise known from None
    globals()[name] = value  # the next use finds it at once
    return value


def _missing(name: str) -> Exception:
    import sys

    from upshift.model.checks import name_to_come

    text = name_to_come(name)
    # ``from upshift import …`` has words of its own for an AttributeError; hasattr() knows nothing else.
    if text is not None and sys._getframe(2).f_code.co_name == "_handle_fromlist":
        return ImportError(text, name=__name__)
    return AttributeError(text or f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
