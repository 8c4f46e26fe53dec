"""What a reason says: the same words for the same thing, whatever made the fingerprint name it."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from upshift.engine.keys import changed_inputs, changed_parts, described
from upshift.model.graph import FromStep, Node
from upshift.model.spec.task import Artifact, Collected
from upshift.runtime.storage.artifacts import save
from upshift.runtime.storage.store import Store, open_store


@pytest.fixture
def store(tmp_path: object) -> Store:
    return open_store(f"{tmp_path}/store")


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("features.normalize (features.py)", "normalize in features.py"),
        ("pkg.features.Model.fit (src/pkg/features.py)", "Model.fit in src/pkg/features.py"),
        ("pkg.load (pkg/__init__.py)", "load in pkg/__init__.py"),
        ("constant side.CFG (side.py)", "constant CFG in side.py"),
        (
            "constant side.LOCK (side.py) (cannot be compared)",
            "constant LOCK in side.py (cannot be compared)",
        ),
        ("closure rate of side.make.<locals>.f (side.py)", "closure rate of make.<locals>.f in side.py"),
        ("default x of side.f (side.py)", "default x of f in side.py"),
        ("attributes of side.Model (side.py)", "attributes of Model in side.py"),
        ("docstring of side.f (side.py)", "docstring of f in side.py"),
        ("top level of side (side.py)", "what side.py does when it is imported"),
        ("all of pkg.side (pkg/side.py): eval", "all of pkg/side.py: eval"),
        ("module fast (fast.so)", "module fast.so"),
        ("text of side.py", "text of side.py"),
        ("step itself", "step itself"),
    ],
)
def test_a_piece_of_code_is_named_by_its_name_and_file(title: str, words: str) -> None:
    assert described(title) == words


def test_what_was_edited_comes_before_what_is_only_reached_by_it() -> None:
    before = {"p.f (p.py)": "a:1", "p.g (p.py)": "a:1", "package numpy": "1.26"}
    now = {"p.a (p.py)": "a:1", "p.f (p.py)": "a:2", "package numpy": "2.0"}
    reason = changed_parts(
        {"code": {"entry": [], "reached": before}, "python": "3.10", "image": None},
        {"code": {"entry": [], "reached": now}, "python": "3.11", "image": {}},
    )
    assert reason == (
        "code changed: f in p.py, numpy 1.26 → 2.0, a in p.py (new), …; "
        "python changed: 3.10 → 3.11; image changed"
    )
    assert changed_parts({"code": 1}, {"code": 1}) is None


def test_a_package_that_is_imported_and_required_is_named_once() -> None:
    def parts(version: str) -> dict[str, object]:
        reached = {"package numpy": version, "required package numpy": version, "package sklearn": "1.7"}
        return {"code": {"entry": [], "reached": reached}}

    assert changed_parts(parts("1.26"), parts("2.0")) == "code changed: numpy 1.26 → 2.0"


def test_what_follows_from_an_edit_is_not_told_beside_it() -> None:
    def reason(*names: str) -> str | None:
        before, now = ({"code": {"reached": dict.fromkeys(names, f"a:{i}")}} for i in range(2))
        return changed_parts(before, now)

    attributes = "attributes of p.Model (p.py)"
    assert reason(attributes, "p.Model (p.py)") == "code changed: Model in p.py"
    assert reason(attributes, "constant p.N (p.py)") == (
        "code changed: attributes of Model in p.py, constant N in p.py"
    )


def test_inputs_are_named_with_values_where_these_are_small_and_plain(store: Store) -> None:
    def saved(**values: object) -> dict[str, Artifact | Collected]:
        return {name: save(value, store, name=name) for name, value in values.items()}

    node = Node(name="train", step="train", inputs={"data": FromStep(node="load")})
    same = saved(lr=0.1, data=[1])
    assert changed_inputs(same, saved(lr=0.1, data=[1]), node) is None
    assert changed_inputs(same, saved(lr=0.2, data=[1]), node) == "input changed: lr: 0.1 → 0.2"
    assert changed_inputs(same, saved(lr="a", data=list(range(99))), node) == (
        "input changed: lr: 0.1 → 'a', data from load"
    )
    assert changed_inputs(saved(), saved(lr=0.2), node) == "input changed: lr: unset → 0.2"
    assert changed_inputs(saved(x=(1, 2)), saved(x=(1, 3)), node) == "input changed: x: [1,2] → [1,3]"
    collected = {"x": Collected(items=(save(1, store),))}
    assert changed_inputs(saved(x=1), collected, node) == "input changed: x: 1 → [1]"


@attrs.frozen
class Config:
    lr: float
    depths: list[int]
    mode: str = "fast"


def test_an_object_that_changed_is_named_by_its_fields(store: Store) -> None:
    def changed(*configs: object) -> str | None:
        before, now = ({"config": save(config, store)} for config in configs)
        return changed_inputs(before, now, Node(name="train", step="train"))

    assert changed(Config(0.1, [1]), Config(0.2, [1])) == "input changed: config.lr: 0.1 → 0.2"
    assert changed(Config(0.1, [1]), Config(0.2, [2, 3], "slow")) == (
        "input changed: config.lr: 0.1 → 0.2, config.depths: [1] → [2,3], config.mode: 'fast' → 'slow'"
    )
    assert changed(Config(0.1, [1]), Config(0.1, list(range(50)))) == "input changed: config.depths"
    assert changed([Config(0.1, [1])], [Config(0.2, [1])]) == "input changed: config.0.lr: 0.1 → 0.2"
    assert changed(Config(0.1, [1]), np.eye(2)) == "input changed: config"


def _launched(**said: object) -> dict[str, object]:
    launch = {"launcher": "accelerate", "processes": 2, "devices": False, "arguments": {}, "files": {}}
    return {"launch": {**launch, **said}}


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (_launched(), _launched(processes=4), "processes 2 → 4"),
        (
            _launched(arguments={"mixed_precision": "no", "cpu": True}),
            _launched(arguments={"mixed_precision": "bf16"}),
            "mixed_precision no → bf16, cpu True → unset",
        ),
        (_launched(), _launched(files={"config_file": "a: 1"}), "config_file"),
        (_launched(files={"deepspeed_config_file": "{}"}), _launched(), "deepspeed_config_file"),
        (_launched(), _launched(devices=True), "whether each process has a device"),
        (_launched(), {"launch": None}, "accelerate with 2 processes → one process"),
        ({"launch": None}, _launched(processes=1), "one process → accelerate with 1 process"),
        (_launched(), _launched(launcher="torchrun"), "launcher accelerate → torchrun"),
    ],
)
def test_what_is_different_about_a_launch_is_named(
    before: dict[str, object], now: dict[str, object], words: str
) -> None:
    assert changed_parts(before, now) == f"launch changed: {words}"
