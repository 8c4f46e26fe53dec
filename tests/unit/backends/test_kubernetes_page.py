"""The examples of the page on Kubernetes: what they say is what a pod gets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from upshift.authoring.loading import find_pipeline, load_module
from upshift.backends.kubernetes import rights
from upshift.backends.kubernetes.nodes import offer
from upshift.runtime.storage.store import open_store

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "kubernetes.md"


def block(title: str) -> str:
    """A block of the page."""
    found = re.search(rf'^```\w+ title="{title}"\n(.*?)^```$', PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_the_tpu_example_asks_for_the_slice_that_the_page_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPSHIFT_HOME", str(tmp_path / "home"))
    file = tmp_path / "tpu.py"
    file.write_text(block("tpu.py"))
    pipeline = find_pipeline(load_module(file), file, "training")
    graph = pipeline.build({}, open_store(str(tmp_path / "store")))
    found = offer(graph.steps["train"].settings.resources, {}, (), grows=True)
    assert found.shortfalls == () and found.granted is not None
    pod: dict[str, Any] = found.granted.details["pod"]
    assert (pod["resource"], len(found.granted.gpus or ()), found.granted.nodes) == ("google.com/tpu", 8, 1)
    labels = [f"{name}: {value}" for name, value in pod["node_selector"].items()]
    for label in labels:
        assert f"`{label}`" in PAGE.read_text()


def test_the_role_of_the_page_has_all_that_is_asked_for() -> None:
    role = next(yaml.safe_load_all(block("upshift-rbac.yaml")))
    given = {
        (group, resource): set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    for rule in (*rights.RULES, rights.QUEUES, rights.JOBSETS):
        assert given[(rule.group, rule.resource)] >= set(rule.verbs), rule
