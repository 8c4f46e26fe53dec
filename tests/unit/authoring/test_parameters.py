# ruff: noqa: UP045  (Optional is what is tested)
"""Parameters from the command line and from a file, read by annotation."""

from __future__ import annotations

import datetime
import enum
import json
import sys
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NewType, Optional, Union

import attrs
import pydantic
import pytest

from upshift import MissingExtra, Pipeline, UsageError, pipeline
from upshift.authoring.parameters import parse_params
from upshift.model.plain import plain_of

if TYPE_CHECKING:
    from nowhere import Model

Rate = NewType("Rate", float)


class Color(enum.Enum):
    RED = "r"
    BLUE = 2


@dataclass
class Layer:
    size: int
    name: str = "dense"


@dataclass
class Net:
    layers: list[Layer]
    rate: float = 0.1
    extra: dict[str, int] = field(default_factory=dict)


@attrs.frozen
class Box:
    width: int
    height: int = 1


class Validated:
    """Behaves like a pydantic model."""

    def __init__(self, data: Any) -> None:
        self.data = data

    @classmethod
    def model_validate(cls, data: Any) -> Validated:
        if not isinstance(data, dict):
            raise ValueError("not a dictionary")
        return cls(data)


@pipeline
def example(
    n: int = 1,
    rate: float = 0.1,
    flag: bool = False,
    name: str = "a",
    path: Path = Path("here"),
    sizes: list[int] = [],  # noqa: B006
    pair: tuple[int, str] = (1, "x"),
    many: tuple[int, ...] = (),
    unique: set[int] = set(),  # noqa: B006
    table: dict[str, float] = {},  # noqa: B006
    counts: dict[int, int] = {},  # noqa: B006
    mode: Literal["fast", "slow", 3] = "fast",
    color: Color = Color.RED,
    maybe: Optional[int] = None,
    either: Union[int, str] = 0,
    modern: float | None = None,
    net: Optional[Net] = None,
    box: Box = Box(1),
    model: Validated = Validated({}),  # noqa: B008
    annotated: Annotated[int, "of items"] = 0,
    speed: Rate = Rate(1.0),
    day: datetime.date = datetime.date(2026, 1, 1),
    hour: datetime.time = datetime.time(1),
    wait: datetime.timedelta = datetime.timedelta(0),
    price: Decimal = Decimal(0),
    raw: bytes = b"",
    pauses: list[datetime.timedelta] = [],  # noqa: B006
    thing: Color | bytearray | None = None,
    every=datetime.timedelta(1),  # type: ignore[no-untyped-def]
    anything: Any = None,
    guess=3,  # type: ignore[no-untyped-def]
    hidden: Model = 0.5,
    names: Optional[list[str]] = None,
) -> None: ...


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("n=5", 5),
        ("n=-5", -5),
        ("rate=1e-3", 0.001),
        ("rate=2", 2.0),
        ("rate=inf", float("inf")),
        *[(f"flag={text}", True) for text in ("true", "True", "1", "yes", "on")],
        *[(f"flag={text}", False) for text in ("false", "0", "no", "off")],
        ("name=007", "007"),
        ("name=", ""),
        ("name=a=b", "a=b"),
        ("path=data/x.csv", Path("data/x.csv")),
        ("sizes=[1, 2]", [1, 2]),
        ('pair=[1, "b"]', (1, "b")),
        ("many=[1, 2, 3]", (1, 2, 3)),
        ("unique=[1, 1]", {1}),
        ('table={"x": 1, "y": 2.5}', {"x": 1.0, "y": 2.5}),
        ('counts={"3": 1}', {3: 1}),
        ("mode=slow", "slow"),
        ("mode=3", 3),
        ("color=BLUE", Color.BLUE),
        ("color=r", Color.RED),
        ("color=2", Color.BLUE),
        ("maybe=4", 4),
        ("maybe=none", None),
        ("maybe=null", None),
        ("either=5", 5),
        ("either=five", "five"),
        ("modern=0.5", 0.5),
        ('net={"layers": [{"size": 3}], "extra": {"a": 1}}', Net([Layer(3)], extra={"a": 1})),
        ('box={"width": 4}', Box(4)),
        ("annotated=9", 9),
        ("speed=0.5", 0.5),
        ("day=2026-11-21", datetime.date(2026, 11, 21)),
        ("hour=12:30", datetime.time(12, 30)),
        ("wait=90", datetime.timedelta(seconds=90)),
        ("wait=0.5", datetime.timedelta(seconds=0.5)),
        ("wait=PT1H30M", datetime.timedelta(hours=1, minutes=30)),
        ("wait=P1W2DT3.5S", datetime.timedelta(days=9, seconds=3.5)),
        ("wait=-PT0,5H", datetime.timedelta(minutes=-30)),
        ("price=0.10", Decimal("0.10")),
        ("raw=grüße", "grüße".encode()),
        ("raw=5", b"5"),
        ('pauses=[1, "PT1M"]', [datetime.timedelta(seconds=1), datetime.timedelta(minutes=1)]),
        ("every=P2D", datetime.timedelta(2)),
        ("thing=r", Color.RED),
        ("anything=[1]", [1]),
        ("anything=text", "text"),
        ("guess=7", 7),
        ("hidden=0.25", 0.25),
        ('names=["a"]', ["a"]),
        (" n =5", 5),
    ],
)
def test_a_value_is_read_by_its_annotation(text: str, value: object) -> None:
    (found,) = parse_params(example, [text]).values()
    assert found == value
    assert type(found) is type(value)


def test_a_model_validates_itself() -> None:
    assert parse_params(example, ['model={"a": 1}'])["model"].data == {"a": 1}
    with pytest.raises(UsageError, match="Validated: not a dictionary"):
        parse_params(example, ["model=3"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n=x", "a whole number"),
        ("n=1.5", "a whole number"),
        ("rate=fast", "a number"),
        ("flag=maybe", "true or false"),
        ("sizes=3", "a JSON list of whole numbers"),
        ("sizes=[1", "a JSON list of whole numbers"),
        ('sizes=["a"]', "a whole number"),
        ("sizes=[true]", "a whole number"),
        ("pair=[1]", "a JSON list: a whole number, str"),
        ("table=[1]", "a JSON object"),
        ('table={"x": "y"}', "a number"),
        ("mode=medium", "one of 'fast', 'slow', 3"),
        ("color=GREEN", "one of RED, BLUE"),
        ("maybe=x", "a whole number or null"),
        ('net={"layers": [], "rte": 1}', "a JSON object with layers, rate, extra; unknown field 'rte'"),
        ("net={}", "missing field 'layers'"),
        ('box={"width": "x"}', "Box.width: a whole number"),
        ("day=tomorrow", "Expected a date, 2026-11-21."),
        *[
            (f"wait={text}", "a duration: seconds, or ISO 8601")
            for text in ("soon", "P", "PT", "P1M", "nan", "inf")
        ],
        ("price=cheap", "Expected a decimal number."),
        ("price=true", "Expected a decimal number."),
        ("pauses=[true]", "a duration"),
        ("thing=x", "bytearray, which cannot be written as text; call the pipeline from Python"),
        ("guess=x", "a whole number"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(text: str, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_params(example, [text])
    name, _, value = text.partition("=")
    message = str(caught.value)
    assert f"parameter {name!r}" in message
    assert value[:3] in message
    assert expected in message


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (["raet=1"], ["pipeline 'example' has no parameter 'raet'", "Did you mean 'rate'?"]),
        (["rate"], ["--param 'rate' is not NAME=VALUE", "--param rate=VALUE"]),
        (["=3"], ["is not NAME=VALUE"]),
    ],
)
def test_what_is_no_parameter_is_refused(params: list[str], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse_params(example, params)
    for word in words:
        assert word in str(caught.value)


def test_a_parameter_is_given_once() -> None:
    for second in ("1", "2"):
        with pytest.raises(UsageError, match=f"'n' is given twice: '1' and '{second}'"):
            parse_params(example, ["n=1", "sizes=[1]", f"n={second}"])


def test_a_path_is_not_empty_and_none_is_none() -> None:
    @pipeline
    def paths(a: Path | None = None, b: str | Path = "", c: Path | int = 1) -> None: ...

    for empty in ("path=", "a="):
        with pytest.raises(UsageError, match="not an empty text"):
            parse_params(example if empty == "path=" else paths, [empty])
    assert parse_params(paths, ["a=none", "b=x", "c=5"]) == {"a": None, "b": Path("x"), "c": 5}
    assert parse_params(paths, ["a=None.csv", "c=x"]) == {"a": Path("None.csv"), "c": Path("x")}


@pipeline
def needs(a: int, b: str, c: int = 3, **more: Any) -> None: ...


def test_all_that_is_missing_is_listed() -> None:
    with pytest.raises(UsageError) as caught:
        parse_params(needs, ["c=4"])
    assert "pipeline 'needs' needs a, b" in str(caught.value)
    assert "--param a=… --param b=…" in str(caught.value)
    assert "test_parameters.py:" in str(caught.value)


def test_a_pipeline_that_takes_anything_takes_any_name() -> None:
    assert parse_params(needs, ["a=1", "b=2", "z=[3]"]) == {"a": 1, "b": "2", "z": [3]}


FILE: dict[str, Any] = {
    "n": 4,
    "rate": 1,
    "flag": True,
    "name": "x",
    "path": "data",
    "sizes": [1],
    "pair": [1, "b"],
    "mode": "slow",
    "color": "BLUE",
    "net": {"layers": [{"size": 1}]},
    "maybe": None,
    "price": 0.1,
    "raw": "text",
}


def test_parameters_from_a_json_file(tmp_path: Path) -> None:
    file = tmp_path / "params.json"
    file.write_text(json.dumps(FILE))
    assert parse_params(example, ["n=5"], file) == {
        "n": 5,
        "rate": 1.0,
        "flag": True,
        "name": "x",
        "path": Path("data"),
        "sizes": [1],
        "pair": (1, "b"),
        "mode": "slow",
        "color": Color.BLUE,
        "net": Net([Layer(1)]),
        "maybe": None,
        "price": Decimal("0.1"),
        "raw": b"text",
    }


def test_parameters_from_a_toml_file(tmp_path: Path) -> None:
    file = tmp_path / "params.toml"
    file.write_text('n = 4\nday = 2026-11-21\n[net]\nlayers = [{ size = 2, name = "wide" }]\n')
    assert parse_params(example, [], str(file)) == {
        "n": 4,
        "day": datetime.date(2026, 11, 21),
        "net": Net([Layer(2, "wide")]),
    }


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("p.json", '{"n": "4"}', ["parameter 'n': '4' does not fit", "p.json", "a whole number"]),
        ("p.json", '{"n": true}', ["a whole number"]),
        ("p.json", '{"raw": 5}', ["parameter 'raw': 5 does not fit", "text"]),
        ("p.json", '{"m": 4}', ["has no parameter 'm'", "p.json"]),
        ("p.json", "{", ["is not JSON"]),
        ("p.json", "[1]", ["holds no parameters by name, but a list", 'Write {"name": value, …}']),
        ("p.toml", "n = [", ["is not TOML"]),
        ("p.json", None, ["cannot be read", "No such file"]),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    tmp_path: Path, name: str, content: str | None, words: list[str]
) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_text(content)
    with pytest.raises(UsageError) as caught:
        parse_params(example, [], file)
    for word in words:
        assert word in str(caught.value)


def test_from_python_no_type_is_checked() -> None:
    @pipeline
    def loose(n: int) -> None:
        assert n == "x"  # type: ignore[comparison-overlap]

    assert isinstance(loose, Pipeline)
    loose.callee.function("x")


class Sgd(pydantic.BaseModel):
    lr: float = pydantic.Field(0.1, gt=0)
    momentum: float = 0.9


class Settings(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True)
    optimizer: Sgd = Sgd()
    epochs: int = pydantic.Field(5, alias="n_epochs")
    color: Color = Color.RED


class Shape(NamedTuple):
    width: int
    height: int = 2


@attrs.frozen
class Inner:
    shapes: list[Shape]
    _private: int = 4
    wait: datetime.timedelta = datetime.timedelta(0)


@dataclass
class Outer:
    inner: Inner
    rates: dict[str, float] = field(default_factory=dict)
    maybe: Layer | None = None
    checked: int = 0

    def __post_init__(self) -> None:
        if self.checked < 0:
            raise ValueError("checked is never negative")


OUTER = Outer(Inner([Shape(1), Shape(3)]), {"a": 1.0})


@pipeline
def deep(
    required: Outer,
    outer: Outer = OUTER,
    settings: Settings = Settings(n_epochs=7),  # noqa: B008
    table: dict[str, Any] = {"x": {"y": 1}},  # noqa: B006
    sizes: list[int] = [1, 2],  # noqa: B006
    either: Inner | Shape | None = None,
    free=Shape(5),  # type: ignore[no-untyped-def]  # noqa: B008
) -> None: ...


REQUIRED = "required.inner.shapes=[[1]]"


@pytest.mark.parametrize(
    ("params", "name", "value"),
    [
        ([], "required", Outer(Inner([Shape(1)]))),
        (["required.checked=3"], "required", Outer(Inner([Shape(1)]), checked=3)),
        (
            ["outer.inner.shapes.1.width=9", "outer.rates.b=2"],
            "outer",
            Outer(Inner([Shape(1), Shape(9)]), {"a": 1.0, "b": 2.0}),
        ),
        (
            ["outer.inner.private=5", "outer.inner.wait=PT1M"],
            "outer",
            Outer(Inner([Shape(1), Shape(3)], 5, datetime.timedelta(minutes=1)), {"a": 1.0}),
        ),
        (["outer.maybe.size=4"], "outer", Outer(Inner([Shape(1), Shape(3)]), {"a": 1.0}, Layer(4))),
        (
            ['outer={"inner": {"shapes": []}, "checked": 1}', "outer.checked=2"],
            "outer",
            Outer(Inner([]), checked=2),
        ),
        (["settings.optimizer.lr=0.5"], "settings", Settings(n_epochs=7, optimizer=Sgd(lr=0.5))),
        (["settings.epochs=9", "settings.color=BLUE"], "settings", Settings(n_epochs=9, color=Color.BLUE)),
        (["table.x.y=2", "table.z=[1]"], "table", {"x": {"y": 2}, "z": [1]}),
        (["sizes.1=7"], "sizes", [1, 7]),
        (["either.shapes=[]"], "either", Inner([])),
        (["free.height=6"], "free", Shape(5, 6)),
    ],
)
def test_a_field_is_set_and_the_others_stay(params: list[str], name: str, value: object) -> None:
    before = repr(OUTER)
    assert parse_params(deep, [REQUIRED, *params])[name] == value
    assert repr(OUTER) == before


@pytest.mark.parametrize(
    ("param", "words"),
    [
        ("outer.iner.private=3", ["'outer.iner': Outer has no field 'iner'", "Did you mean outer.inner?"]),
        ("outer.inner.private=x", ["parameter 'outer.inner.private': 'x' does not fit", "a whole number"]),
        ("outer.rates.b=x", ["parameter 'outer.rates.b': 'x' does not fit", "a number"]),
        ("outer.checked=-1", ["'outer.checked': '-1' does not fit", "reports: checked is never negative"]),
        ("settings.optimizer.lr=0", ["'settings.optimizer.lr': '0' does not fit", "lr: Input should be"]),
        ("settings.optimizer.lr.x=0", ["settings.optimizer.lr is a float, without fields"]),
        ("sizes.2=1", ["sizes is a list without an item '2'", "It holds sizes.0 to sizes.1."]),
        ("either.color=1", ["Inner has no field 'color'"]),
        ("outer.maybe.name=x", ["parameter 'outer.maybe': Layer also needs size", "-p outer.maybe.size=…"]),
        ("private=3", ["no parameter 'private'", "Write --param required.inner.private=…"]),
        ("outer.=1", ["Outer has no field ''"]),
    ],
)  # fmt: skip
def test_a_field_that_does_not_fit_is_refused_by_its_full_name(param: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse_params(deep, [REQUIRED, param])
    for word in words:
        assert word in str(caught.value)


YAML = """
rate: 1e-3
name: no
maybe: ~
sizes: [1, 0x10]
day: 2026-11-21
flag: true
net.rate: 0.5
net: {layers: [{size: 012}]}
"""


def test_parameters_from_a_yaml_file_which_is_yaml_1_2(tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    file.write_text(YAML)
    assert parse_params(example, ["net.rate=2"], file) == {
        "rate": 0.001,
        "name": "no",
        "maybe": None,
        "sizes": [1, 16],
        "day": datetime.date(2026, 11, 21),
        "flag": True,
        "net": Net([Layer(12)], 2.0),
    }


def test_a_yaml_file_needs_a_package_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "params.yml"
    file.write_text("n: 3")
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(MissingExtra, match=r'pip install "upshift\[yaml\]"'):
        parse_params(example, [], file)


def test_the_parameters_of_an_earlier_run_give_way_to_what_is_typed(tmp_path: Path) -> None:
    file = tmp_path / "params.json"
    file.write_text('{"rate": 2}')
    earlier = {"n": 3, "rate": 1.0, "net": Net([Layer(1)], 0.5), "gone": 1}
    assert parse_params(example, ["net.rate=1"], file, earlier) == {
        "n": 3,
        "rate": 2.0,
        "net": Net([Layer(1)], 1.0),
    }


def test_what_a_record_says_of_a_parameter_is_read_again() -> None:
    plain = json.dumps(plain_of(Net([Layer(3)], 0.5)))
    assert parse_params(example, [f"net={plain}"]) == {"net": Net([Layer(3)], 0.5)}
    with pytest.raises(UsageError, match="a Box, and not a Net"):
        parse_params(example, [f"box={plain}"])
    settings = Settings(n_epochs=2, optimizer=Sgd(lr=1))
    plain = json.dumps(plain_of(settings))
    assert parse_params(deep, [REQUIRED, f"settings={plain}"])["settings"] == settings
