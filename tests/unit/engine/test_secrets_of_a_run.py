"""Secrets that a run needs: refused where a backend cannot bring them, read where it can, never recorded."""

from __future__ import annotations

import attrs
import pytest
from engine_kit import Bench

from upshift.engine.keys import key_parts
from upshift.errors import RequestRefused
from upshift.model.graph import Graph, StepDefinition
from upshift.model.settings.secrets import read_secrets


def double(x: int) -> int:
    return 2 * x


def graph_of(bench: Bench, **secrets: str) -> Graph:
    definition = attrs.evolve(bench.step(double, secrets=secrets), location="flow.py:3")
    return bench.graph({"double": (definition, {"x": bench.const(1)})})


def test_a_backend_that_cannot_bring_a_secret_to_a_step_is_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "a value")
    with pytest.raises(RequestRefused) as refused:
        bench.run(graph_of(bench, TOKEN="env:TOKEN"))
    assert refused.value.what == (
        "step double: secret TOKEN (env:TOKEN): backend fake cannot bring it to the step"
    )
    assert (refused.value.where, refused.value.exit_code) == ("flow.py:3", 2)
    assert bench.watcher.started == []


def test_a_key_has_the_sources_of_secrets(bench: Bench) -> None:
    def parts(definition: StepDefinition) -> object:
        (node,) = graph_of(bench).nodes
        return key_parts(definition, node)["secrets"]

    plain = bench.step(double)
    assert parts(plain) == {}
    assert parts(bench.step(double, secrets={"A": "env:B"})) == {"A": "env:B"}


def test_paths_start_from_the_project_or_from_home(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "key").write_bytes(b"a value\r\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    for source in ("file:key", "file:~/key", f"file:{tmp_path}/key"):
        assert read_secrets({"K": source}, project=str(tmp_path)) == {"K": "a value"}
    (tmp_path / "key").write_bytes(b"line one\nline two\n\n")
    assert read_secrets({"K": "file:key"}, project=str(tmp_path)) == {"K": "line one\nline two\n"}
