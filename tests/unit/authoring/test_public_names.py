"""The names that users import, and nothing else."""

from __future__ import annotations

import upshift
import upshift.config
from upshift import errors


def test_the_public_names_are_these() -> None:
    assert set(upshift.__all__) - {name for name in upshift.__all__ if hasattr(errors, name)} == {
        "BatchSettings",
        "CaughtException",
        "Config",
        "DataArtifact",
        "DockerSettings",
        "External",
        "Flow",
        "FlowSpec",
        "HTML",
        "S3",
        "S3GetObject",
        "S3PutObject",
        "IncludeFile",
        "JSONType",
        "KubeflowSettings",
        "KubernetesSettings",
        "Metaflow",
        "Parameter",
        "Pipeline",
        "RaySettings",
        "ResourceSettings",
        "Retry",
        "Run",
        "NBRunner",
        "Runner",
        "SkyPilotSettings",
        "PythonEnvironment",
        "SlurmSettings",
        "Step",
        "Task",
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
    }


def test_every_error_is_public() -> None:
    known = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.UpshiftError)
    }
    assert known == {name for name in upshift.__all__ if hasattr(errors, name)}


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(upshift, "no_such_name")
    assert "step" in dir(upshift)


def test_settings_can_be_imported_as_the_seeds_do() -> None:
    assert upshift.config.ResourceSettings is upshift.ResourceSettings
    assert upshift.config.DockerSettings is upshift.DockerSettings
