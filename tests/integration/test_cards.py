"""What a step shows: kept whatever becomes of the step, as long as any run refers to it, without secrets."""

from __future__ import annotations

import re
from pathlib import Path

import upshift
from project import Project
from upshift.runs.history.attempts import Shown


def cards(step: str, run: str = "latest") -> list[Shown]:
    return list(upshift.get_run(run)[step].tasks[0].attempts[-1].cards)


def titles(step: str) -> list[str]:
    return [shown.title for shown in cards(step)]


DRAW = """
import os, signal, upshift

@step(secrets={"TOKEN": "env:TOKEN"})
def draw(how: str) -> int:
    token = os.environ["TOKEN"]
    card = upshift.current.card
    card.append(f"# Done with {token}", title=f"Note of {token}")
    card.append([{"token": token, "n": 1}], title="Rows")
    card.append(upshift.HTML(f"<b>{token}</b>"))
    card.append(object(), title="Nothing")
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "failed":
        raise ValueError("no")
    return 1

@pipeline
def p(how: str = "completed"):
    return draw(how)
"""
ENV = {"TOKEN": "s3cr3t-t0ken"}


def test_cards_are_shown_and_read_without_secrets(project: Project) -> None:
    done = project.run(DRAW, env=ENV)
    assert "upshift: the card 'Nothing' is left out: nothing is known of how to show an object" in done.out
    note, rows, page = cards("draw")
    assert (note.title, note.media, note.content) == ("Note of ***", "text/markdown", b"# Done with ***")
    assert (page.title, page.content) == ("HTML", b"<b>***</b>")
    assert b"<td>***</td>" in rows.content and ENV["TOKEN"].encode() not in rows.content
    assert note._repr_mimebundle_() == {"text/markdown": "# Done with ***"}
    assert repr(note) == "<Card 'Note of ***': text/markdown, 15 bytes>"
    shown = project.upshift("show", "latest").out
    assert re.search(r"^draw +Note of \*\*\* +text/markdown +15 B$", shown, re.M)
    listed = project.attempt("draw")["cards"]
    assert [card["title"] for card in listed] == ["Note of ***", "Rows", "HTML"]
    assert listed[0]["digest"] == note.card.digest and listed[0]["bytes"] == 15


ESCAPED = """
import html, os, pandas, plotly.graph_objects as go, upshift

class Drawn:
    def _repr_svg_(self):
        return f"<svg xmlns='http://www.w3.org/2000/svg'><text>{html.escape(os.environ['TOKEN'])}</text></svg>"

@step(secrets={"TOKEN": "env:TOKEN"})
def draw() -> int:
    token = os.environ["TOKEN"]
    card = upshift.current.card
    pandas.set_option("display.max_colwidth", None)
    card.append({"url": token}, title="Rows")
    card.append([["x" * 100 + token]], title="Long cell")
    card.append({token: ["x"]}, title="Name of a column")
    card.append(pandas.DataFrame({"url": [token]}))
    card.append(Drawn())
    card.append(go.Figure(layout_title_text=token))
    card.append(upshift.HTML(f"<img src='http://x/{'x' * 50}?{token}'>"), title="x" * 150 + token)
    card.append(object(), title="x" * 150 + token)
    return 1

@pipeline
def p():
    return draw()
"""


def test_secrets_that_are_escaped_or_shortened_are_masked(project: Project) -> None:
    token = f"postgresql://ann:Pa55w0rdQ@db/x?sslmode=require&name=<{'abcdefg' * 70}>"
    done = project.run(ESCAPED, env={"TOKEN": token})
    shown = cards("draw")
    assert len(shown) == 7 and "is left out" in done.out
    texts = [f"{card.title} {card.content.decode()}" for card in shown]
    project.upshift("report", "latest", "-o", "report.html")
    texts += [done.out, done.err, (project.folder / "report.html").read_text()]
    texts += [project.upshift("show", "latest", "--json").out]
    for text in texts:
        assert "Pa55" not in text and "abcdefgabc" not in text
    assert all("***" in text for text in texts[:7])


def test_a_step_that_fails_or_is_killed_keeps_its_cards(project: Project) -> None:
    project.write(DRAW)
    for how in ("failed", "killed"):
        project.upshift("run", "pipeline.py", "-p", f"how={how}", env=ENV, expect=1)
        assert titles("draw") == ["Note of ***", "Rows", "HTML"]
        assert cards("draw")[0].content == b"# Done with ***"


def test_cards_of_a_reused_task_stay_as_long_as_it_does(project: Project) -> None:
    project.run(DRAW, env=ENV)
    before = [shown.content for shown in cards("draw")]
    project.upshift("run", "pipeline.py", env=ENV)
    assert project.tasks("draw")[0]["cached"]
    first = upshift.list_runs()[-1].id
    project.upshift("gc", "--run", first)
    assert [shown.content for shown in cards("draw")] == before
    digests = [project.home / "store" / "blobs" / _path(shown.card.digest) for shown in cards("draw")]
    assert all(path.exists() for path in digests)
    project.upshift("gc", "--run", "latest")
    assert not any(path.exists() for path in digests)


def _path(digest: str) -> Path:
    name, _, hexadecimal = digest.partition(":")
    return Path(name, hexadecimal[:2], hexadecimal[2:])


def test_gc_leaves_the_cards_of_a_step_that_runs(project: Project) -> None:
    project.write("""
    import upshift

    @step
    def draw() -> None:
        upshift.current.card.append("x" * 5000, title="Note")
        open("shown", "w").close()
        open("gate").read()

    @pipeline
    def p():
        draw()
    """)
    shown, gate = project.fifo("shown"), project.fifo("gate")
    running = project.start("run", "pipeline.py")
    try:
        with open(shown):
            pass
        project.upshift("gc")
    finally:
        with open(gate, "w"):
            pass
        running.communicate(timeout=60)
    project.upshift("gc")
    assert running.returncode == 0 and cards("draw")[0].content == b"x" * 5000


def test_figures_images_and_html_that_a_step_returns_are_cards(project: Project) -> None:
    project.run("""
    from matplotlib.figure import Figure
    import plotly.graph_objects as go
    from PIL import Image
    from pathlib import Path
    import pandas as pd
    import upshift

    @step
    def figure() -> Figure:
        drawn = Figure()
        drawn.subplots().plot([1, 2])
        return drawn

    @step
    def several() -> tuple[int, go.Figure, Image.Image, list]:
        named = go.Figure(layout={"title": {"text": "Scores"}})
        return 1, named, Image.new("L", (3, 3)), [upshift.HTML("<p>1"), upshift.HTML("<p>2")]

    @step
    def file() -> Path:
        Path("page.html").write_text("<p>page")
        return Path("page.html")

    @step
    def data() -> pd.DataFrame:
        return pd.DataFrame({"a": [1]})

    @pipeline
    def p():
        return figure(), several(), file(), data()
    """)
    assert [(shown.title, shown.media) for shown in cards("figure")] == [("figure", "image/png")]
    assert [(shown.title, shown.media) for shown in cards("several")] == [
        ("Scores", "application/vnd.plotly+json"),
        ("output_2", "image/png"),
        ("output_3", "text/html"),
        ("output_3", "text/html"),
    ]
    assert titles("file") == ["page.html"] and titles("data") == []
    output = upshift.get_run("latest")["several"].output
    assert output[3] == ["<p>1", "<p>2"] and type(output[3][0]) is upshift.HTML
    first = cards("several")[0]
    assert set(first._repr_mimebundle_()) == {"application/vnd.plotly.v1+json"}
    project.upshift("gc")
    store = project.home / "store" / "blobs"
    assert first.card.script is not None and (store / _path(first.card.script)).stat().st_size > 1_000_000


def test_a_figure_that_cannot_be_drawn_is_a_line_in_the_log(project: Project) -> None:
    done = project.run("""
    from matplotlib.figure import Figure
    import upshift

    class Broken(Figure):
        def savefig(self, *args, **kwargs):
            raise RuntimeError("out of ink")

        def __reduce__(self):
            return (int, (7,))

    @step
    def draw() -> object:
        upshift.current.card.append(Broken(), title="Loss")
        return Broken()

    @pipeline
    def p():
        return draw()
    """)
    assert "upshift: the card 'Loss' is left out: RuntimeError: out of ink" in done.out
    assert "upshift: the card 'draw' is left out: RuntimeError: out of ink" in done.out
    assert titles("draw") == []


def test_a_step_has_so_many_cards_and_a_word_for_the_rest(project: Project) -> None:
    done = project.run("""
    import upshift

    @step
    def draw() -> None:
        for i in range(102):
            upshift.current.card.append(f"note {i}", title=f"{i}")

    @pipeline
    def p():
        draw()
    """)
    assert len(titles("draw")) == 100
    assert done.out.count("a step has 100 cards at most") == 2


def test_a_fork_of_the_step_shows_too(project: Project) -> None:
    project.run("""
    import multiprocessing, upshift

    def work(n: int) -> None:
        upshift.current.card.append("x" * 5000 + str(n), title=f"of {n}")

    @step
    def draw() -> None:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            pool.map(work, range(4))

    @pipeline
    def p():
        draw()
    """)
    assert sorted(titles("draw")) == ["of 0", "of 1", "of 2", "of 3"]
    assert all(shown.content.startswith(b"xxx") for shown in cards("draw"))


def test_the_cards_of_a_mapped_step_say_whose_they_are(project: Project) -> None:
    project.run(
        """
        import upshift

        @step
        def train(i: int) -> int:
            upshift.current.card.append("# Done", title="Confusion")
            return i

        @pipeline
        def p():
            return train.map(i=[1, 2])
        """
    )
    shown = project.upshift("show", "latest").out
    for task in ("train[0]", "train[1]"):
        assert re.search(rf"^{re.escape(task)} +Confusion +text/markdown", shown, re.M), shown
