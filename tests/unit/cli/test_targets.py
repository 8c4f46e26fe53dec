"""How targets are now, and what becomes of a step that tries one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from upshift.backends.base import Finding
from upshift.cli import targets as module
from upshift.cli import upshift
from upshift.errors import BackendError
from upshift.model.configuration import Configuration, Target


class Place:
    """A backend that is asked how it is."""

    def __init__(self, name: str, answers: threading.Event) -> None:
        self.name, self._answers = name, answers

    def findings(self) -> Iterator[Finding]:
        yield Finding(name="access", text=f"{self.name} is here")
        if self.name == "slow":
            self._answers.wait()
        if self.name == "broken":
            raise BackendError("it takes no jobs", fix="Ask the site.")

    def close(self) -> None: ...


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    answers = threading.Event()

    def opened(target: Target, **_: Any) -> Place:
        return Place(target.name, answers)

    monkeypatch.setattr(module, "open_backend", opened)
    yield
    answers.set()


def test_one_target_that_does_not_answer_does_not_keep_the_others_from_being_told(
    places: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(threads: list[threading.Thread], until: float) -> None:
        for thread in threads[1:]:  # all but the slow one: however long they take on a busy machine
            thread.join()

    monkeypatch.setattr(module, "_wait", wait)
    targets = {name: Target(name=name, backend="fake") for name in ("slow", "broken", "fine")}
    found = {one.target.name: one for one in module.look(Configuration(targets=targets), patience=0.5)}
    assert list(found)[:3] == ["slow", "broken", "fine"]
    assert found["fine"].problem is None
    assert found["broken"].problem is not None and found["broken"].problem.remedy == "Ask the site."
    assert [one.text for one in found["slow"].findings] == ["slow is here", "it does not answer within 0.5 s"]
    assert found["fine"].configured and not found["local"].configured


def test_targets_fails_for_a_target_of_the_configuration_only(
    places: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "upshift.toml"
    file.write_text('default_target = "fine"\n[targets.fine]\nbackend = "fake"\n')
    done = CliRunner().invoke(upshift, ["targets"], env={"COLUMNS": "200"})
    assert (done.exit_code, "(fake, the default) fine is here" in done.output) == (0, True)
    file.write_text('[targets.broken]\nbackend = "fake"\nstore = "/s"\n')
    done = CliRunner().invoke(upshift, ["targets", "--json"])
    assert done.exit_code == 1
    broken = json.loads(done.output)[0]
    assert {name: broken[name] for name in ("name", "backend", "configured", "default", "store", "ok")} == {
        "name": "broken",
        "backend": "fake",
        "configured": True,
        "default": False,
        "store": "/s",
        "ok": False,
    }
    assert [one["status"] for one in broken["findings"]] == ["ok", "problem"]
