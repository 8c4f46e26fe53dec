"""What becomes a card, in what form, and what is left out with which words."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import IPython.display
import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from matplotlib.figure import Figure
from PIL import Image

import upshift
from upshift.runtime.step import rendering
from upshift.runtime.step.cards import Cards
from upshift.runtime.step.rendering import PLOTLY, Unshowable, is_picture, pictures, rendered

PNG = b"\x89PNG\r\n"


class Shows:
    """Shows itself in a notebook, in the ways that it is given."""

    def __init__(self, **ways: object) -> None:
        self.ways = ways

    def _repr_png_(self) -> object:
        return self.ways.get("png")

    def _repr_html_(self) -> object:
        return self.ways.get("html")


class Bundled:
    def _repr_mimebundle_(self, **_: object) -> object:
        return {"text/plain": "no", "image/png": "iVBORw0K"}, {"width": 5}


def figure(title: str = "") -> Figure:
    drawn = Figure(figsize=(2, 1))
    axes = drawn.subplots()
    axes.plot([1, 3, 2])
    axes.set_title(title)
    return drawn


def test_a_figure_of_matplotlib_is_a_png_with_its_title() -> None:
    drawn = figure("Loss")
    shown = rendered(drawn)
    assert (shown.media, shown.title) == ("image/png", "Loss")
    assert Image.open(io.BytesIO(shown.content)).size[0] > 200
    assert rendered(drawn.axes[0]).media == "image/png"
    drawn.suptitle("All of it")
    assert rendered(drawn).title == "All of it"
    assert rendered(figure()).title is None


def test_a_huge_figure_has_no_more_pixels_than_a_screen() -> None:
    content = rendered(Figure(figsize=(300, 100))).content
    assert max(Image.open(io.BytesIO(content)).size) <= rendering.SHARPEST + 50


def test_a_figure_of_plotly_is_data_with_the_script_that_draws_it() -> None:
    shown = rendered(go.Figure(go.Scatter(y=[1, 3, 2]), layout={"title": "Scores"}))
    assert (shown.media, shown.title) == (PLOTLY, "Scores")
    assert json.loads(shown.content)["data"][0]["type"] == "scatter"
    assert shown.script is not None and b"plotly.js v" in shown.script[:1000]
    assert b"cdn" not in shown.content


def test_an_image_is_a_png_a_photograph_a_jpeg_and_a_large_one_smaller() -> None:
    drawn = rendered(Image.new("RGBA", (8, 4)))
    assert drawn.media == "image/png" and drawn.content.startswith(PNG)
    noise = np.random.default_rng(0).integers(0, 255, (1500, 2500, 3), dtype=np.uint8)
    photograph = rendered(Image.fromarray(noise))
    assert photograph.media == "image/jpeg"
    assert Image.open(io.BytesIO(photograph.content)).size == (2000, 1200)
    assert photograph.remark == "of 2,500 × 1,500 pixels 2,000 × 1,200 are shown"
    assert rendered(Image.new("CMYK", (4, 4))).media == "image/png"


def test_a_text_is_markdown_unless_it_says_that_it_is_html() -> None:
    assert rendered("# Done").media == "text/markdown"
    shown = rendered(upshift.HTML("<b>1 < 2</b>"))
    assert (shown.media, shown.content) == ("text/html", b"<b>1 < 2</b>")


def test_what_shows_itself_in_a_notebook_is_shown_as_there() -> None:
    frame = rendered(pd.DataFrame({"a": [1, 2]}))
    assert frame.media == "text/html" and b"<table" in frame.content
    assert rendered(IPython.display.HTML("<i>x</i>")).content == b"<i>x</i>"
    assert rendered(IPython.display.Markdown("*x*")).media == "text/markdown"
    assert (
        rendered(IPython.display.SVG("<svg xmlns='http://www.w3.org/2000/svg'></svg>")).media
        == "image/svg+xml"
    )
    assert rendered(Shows(png=PNG, html="<p>")).content == PNG
    assert rendered(Shows(png=(PNG, {"width": 3}))).content == PNG
    assert rendered(Shows(html="<p>")).media == "text/html"
    assert rendered(Bundled()).content == PNG


@pytest.mark.parametrize(
    ("name", "media"),
    [("a.png", "image/png"), ("b.JPG", "image/jpeg"), ("c.svg", "image/svg+xml"), ("d.md", "text/markdown")],
)
def test_a_file_is_shown_as_its_name_ends(tmp_path: Path, name: str, media: str) -> None:
    (tmp_path / name).write_bytes(b"content")
    shown = rendered(tmp_path / name)
    assert (shown.media, shown.content, shown.title) == (media, b"content", name)


def test_rows_are_a_table() -> None:
    def cells(value: object) -> str:
        text = rendered(value).content.decode()
        return text[text.index("<table") :]

    assert cells([{"a": 1, "b": "<x>"}, {"a": 2.123456789, "c": None}]) == (
        "<table><thead><tr><th>a</th><th>b</th><th>c</th></tr></thead>"
        '<tr><td class="n">1</td><td>&lt;x&gt;</td><td></td></tr>'
        '<tr><td class="n">2.12346</td><td></td><td>None</td></tr></table>'
    )
    assert cells([(1, True)]) == '<table><tr><td class="n">1</td><td>True</td></tr></table>'
    assert cells({"lr": 0.1}) == '<table><tr><td>lr</td><td class="n">0.1</td></tr></table>'
    assert cells({"a": [1, 2], "b": (3,)}).count("<tr>") == 3
    long = cells([[i] * 60 for i in range(1005)])
    assert long.count("<tr>") == 1000 and long.endswith("<p>… 5 more rows and 10 more columns</p>")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (object(), "nothing is known of how to show an object"),
        (3.5, "nothing is known of how to show a float"),
        ([], "nothing is known of how to show a list"),
        ([1, 2], "if each of its items is a row"),
        (Path("model.pdf"), r"model\.pdf is none of \.gif"),
        (Path("/nowhere/a.png"), "/nowhere/a.png cannot be read: No such file"),
        (Shows(), "nothing is known of how to show a Shows"),
    ],
)
def test_what_cannot_be_shown_says_why(value: object, why: str) -> None:
    with pytest.raises(Unshowable, match=why):
        rendered(value)


def test_html_that_loads_anything_is_told() -> None:
    for text in (
        '<script src="https://cdn.example.com/x.js">',
        "<LINK rel=stylesheet href=//example.com/x.css>",
        "<script>load('https://cdn.jsdelivr.net/npm/vega')</script>",
    ):
        assert "cannot" in (rendered(upshift.HTML(text)).remark or ""), text
    for text in ('<a href="https://example.com/">x</a>', '<svg xmlns="http://www.w3.org/2000/svg">'):
        assert rendered(upshift.HTML(text)).remark is None, text


def test_figures_images_and_html_are_pictures_and_data_is_none(tmp_path: Path) -> None:
    for value in (
        figure(),
        figure().subplots(),
        go.Figure(),
        Image.new("L", (1, 1)),
        upshift.HTML("<p>"),
        IPython.display.HTML("<p>"),
        Path("plot.svg"),
    ):
        assert is_picture(value), value
    for value in (1, "text", b"", None, [1], pd.DataFrame(), np.zeros(3), Path("data.csv"), Path("a.md")):
        assert not is_picture(value), value


def test_pictures_are_found_in_lists_and_dictionaries_too() -> None:
    image, page = Image.new("L", (1, 1)), upshift.HTML("<p>")
    values = (3, [image, page], {"a": image}, [image, 1], [], page)
    names = ("a", "b", "c", "d", "e", "f")
    assert list(pictures(values, names, 10)) == [("b", image), ("b", page), ("c", image), ("f", page)]
    assert len(list(pictures(([image] * 50,), ("x",), 10))) == 10


def test_html_is_a_text_that_comes_back_from_where_it_was_saved() -> None:
    import pickle

    back = pickle.loads(pickle.dumps(upshift.HTML("<p>")))
    assert type(back) is upshift.HTML and back == "<p>"
    assert b"upshift.runtime" not in pickle.dumps(upshift.HTML("<p>"))


def test_no_package_that_draws_is_imported() -> None:
    code = (
        "import upshift, sys\n"
        "upshift.current.card.append('text')\nupshift.current.card.append([{'a': 1}])\n"
        "upshift.current.card.append(object())\n"
        "print([n for n in ('matplotlib', 'plotly', 'PIL', 'IPython', 'numpy') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second, last = done.stdout.splitlines()
    assert first == "card 'Note': text/markdown, 4 B; kept where a run runs the step"
    assert second.startswith("card 'Table': text/html, ") and last == "[]"
    assert "nothing is known of how to show an object" in done.stderr


def test_a_card_never_raises(capsys: pytest.CaptureFixture[str]) -> None:
    class Angry:
        def _repr_html_(self) -> str:
            raise RuntimeError("no")

    Cards().append(Angry(), title="Angry\ncard")
    Cards().append("x" * 6_000_000)
    assert capsys.readouterr().err.splitlines() == [
        "upshift: the card 'Angry card' is left out: RuntimeError: no",
        "upshift: the card 'Note' is left out: it has 6 MB, and a card 5 MB at most",
    ]
