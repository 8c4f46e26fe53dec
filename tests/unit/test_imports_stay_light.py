"""What `import upshift` brings along, and what the layers allow, cannot all be seen statically."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("numpy", "pandas", "pyarrow", "torch", "rich", "click", "psutil", "sqlite3", "asyncio", "pynvml")


def loaded_by(code: str) -> set[str]:
    """Top-level modules that are loaded after running this code in a fresh interpreter."""
    script = f"{code}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "code",
    [
        "import upshift",
        "from upshift import step, pipeline, unmapped, ResourceSettings, DockerSettings",
        "import upshift.runtime.supervisor.forkserver",
    ],
)
def test_no_heavy_package_comes_along(code: str) -> None:
    assert loaded_by(code).isdisjoint(HEAVY)


def test_every_public_name_is_there() -> None:
    import upshift

    for name in upshift.__all__:
        assert getattr(upshift, name) is not None


NEEDED_BY_FEW = (
    "accelerators.agent",
    "accelerators.vendors",
    "launch.network",
    "launch.arguments",
    "launch.blame",
    "step.components",
    "storage.bucket_checkpoints",
    "storage.objects.transport",
    "supervisor.device_pool",
    "supervisor.node_connection",
    "supervisor.gpu_usage",
)
"""Modules of the runtime for devices, several processes or nodes, buckets, and cards."""


def test_a_run_imports_nothing_of_flows_and_of_what_is_installed(tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text(
        "from upshift import pipeline, step\n\n"
        "@step\ndef one() -> int: return 1\n\n@pipeline\ndef example(): return one()\n"
    )
    script = (
        "import sys\nfrom upshift.cli import main\n"
        f"sys.argv = ['upshift', 'run', {str(tmp_path / 'pipeline.py')!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "print(*(name for name in sys.modules if name.startswith('upshift.authoring.flow')))\n"
        "print('importlib.metadata' in sys.modules)\n"
        f"print(*(name for name in {NEEDED_BY_FEW!r} if f'upshift.runtime.{{name}}' in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-3:] == ["", "False", ""]


def test_what_few_runs_need_is_there() -> None:
    import importlib

    for name in NEEDED_BY_FEW:
        importlib.import_module(f"upshift.runtime.{name}")
