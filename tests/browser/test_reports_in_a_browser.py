"""The report of a run, as somebody sees and handles it in a real browser."""

from __future__ import annotations

import http.server
import json
import threading
from datetime import datetime, timezone
from pathlib import Path

import attrs
import pytest
from browser_kit import FAINT, FOCUSED, SHAPE, Browser
from made_up_runs import nasty, training
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from benchmarks.made_up import STARTED, MadeUp, definition, devices, large, metrics, series, used
from made_up_gang import HANG, RAISED, finetuning
from upshift.model.graph import Graph, Node
from upshift.report.html.document import report_page
from upshift.report.html.elements import visible
from upshift.runs.history import Run
from upshift.runs.rows import TaskRow
from upshift.runtime.storage.series import read_series

NASTY = {
    "script": "</script><script>window.broken = 1</script>",
    "attribute": '" onmouseover="window.broken = 1" x=\'\' autofocus onfocus=window.broken=1 ',
    "picture": "<img src=x onerror='window.broken = 1'>",
    "comment": "<!--<script>window.broken = 1",
    "template": "</template></svg></style></title></textarea><svg onload='window.broken = 1'>",
    "backwards": "exe.\u202egnp.\u2066x\u2069 \u200fعربى",
    "control": "a\x00b\x1b[31mc\x07d\x85e\ufffe",
    "json": '"}]\u2028\u2029\\u003c/script\\',
    "markdown": "[x](javascript:broken=1) ![y](javascript:broken=1) <b onclick='broken=1'>z</b>",
}

PAUSE = (
    "const pause = document.getElementById('pause'); pause.click(); return pause.getAttribute('aria-pressed')"
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return training(tmp_path_factory.mktemp("training"))


@pytest.fixture(scope="module")
def page_of_many(tmp_path_factory: pytest.TempPathFactory) -> str:
    return report_page(large(tmp_path_factory.mktemp("many")))


def test_a_report_shows_what_ran_and_how_it_went(browser: Browser, trained: Run) -> None:
    browser.show(trained)
    assert browser.one("h1").text.split() == ["training", "failed"]
    titles = [heading.text for heading in browser.all("section > h2")]
    assert titles == ["Failures", "Graph", "Timeline", "Steps", "Metrics", "Cards", "Outputs"]
    assert "registry.example.org does not answer" in browser.one("#failures").text
    assert [node.text.split()[0] for node in browser.all(".node")] == [step.name for step in trained.steps]
    assert len(browser.all(".timeline .bar")) == 1 + 12 + 2 + 1 + 1
    headings = [heading.text for heading in browser.all("#step-3 .records th")]
    assert headings == ["asked", "granted", "seen", "used"]
    assert [cell.text for cell in browser.all("#step-4 .records tbody tr:first-child td")] == [
        "32 CPU",
        "16 CPU !",
        "16 CPU",
        "11.6 CPU mean",
    ]
    assert "32 CPU asked, 16 CPU granted" in browser.one(".notices").text
    assert "attempt 1 failed (out-of-memory)" in browser.one("#step-3").text


def test_what_is_closed_is_not_there_until_it_is_opened(browser: Browser, trained: Run) -> None:
    browser.show(trained)
    details = browser.one("#step-4 details.later")
    inner = details.find_element("css selector", ".inner")
    assert inner.get_attribute("innerHTML") == ""
    details.find_element("css selector", "summary").click()
    browser.until(lambda: details.find_elements("css selector", ".plot"))
    assert [each.text.split()[0] for each in details.find_elements("css selector", "figcaption")][:2] == [
        "CPU",
        "Memory",
    ]


def test_everything_opens(browser: Browser, trained: Run) -> None:
    browser.show(trained)
    browser.open_all()
    titles = {caption.text for caption in browser.all("figcaption b") if caption.text}
    assert {
        "CPU",
        "Memory",
        "Disk",
        "GPU busy",
        "GPU memory",
        "GPU power",
        "GPU temperature",
        "loss",
        "lr",
    } <= titles
    assert "epoch 39: loss 0.057" in browser.one("pre.log").text
    assert browser.one("#step-3 .devices tbody tr").text.startswith(
        "0 NVIDIA H100 80GB HBM3 85.5 GB 64 % 100 %"
    )


def test_a_step_of_several_processes_shows_each_rank(browser: Browser, tmp_path: Path) -> None:
    browser.show(finetuning(tmp_path, failure=HANG))
    places = browser.all("#failures details.place")
    assert [place.text for place in places] == [
        "ranks 0, 1 and 3 wait in all_reduce (train.py:31)",
        "rank 2 is at data.py:9",
    ]
    places[1].find_element("css selector", "summary").click()
    assert 'File "data.py", line 9 in next_batch' in places[1].text
    browser.open_all()
    rows = [
        [cell.text for cell in row.find_elements("css selector", "td")]
        for row in browser.all(".ranks tbody tr")
    ]
    assert rows[0] == [
        "0",
        "stopped",
        "0 (gpu-a)",
        "4000",
        "GPU 0",
        "64 %",
        "41.2 GB",
        "in all_reduce (train.py:31)",
    ]
    assert rows[2] == ["2", "stopped", "1 (gpu-b)", "4002", "GPU 0", "64 %", "41.2 GB", "data.py:9"]
    ranks = browser.all("details.rank")
    summary = ranks[3].find_element("css selector", "summary").text
    assert summary.split() == ["rank", "3", "stopped", "in", "all_reduce", "(train.py:31)"]
    assert 'File "data.py", line 9' in ranks[2].find_element("css selector", "pre.stack").text
    assert ranks[1].find_element("css selector", "pre.log").text.endswith("rank 1: epoch 2")
    assert [key.text for key in browser.all("#metrics .key")] == [f"rank {rank}" for rank in range(4)]
    assert browser.one("#cards figure:last-child figcaption").text == "Samples (rank 1)"


def test_a_rank_that_failed_is_marked_and_named(browser: Browser, tmp_path: Path) -> None:
    browser.show(finetuning(tmp_path, failure=RAISED))
    assert "Rank 2 on node gpu-b" in browser.one("#failures").text
    browser.open_all()
    states = [cell.text for cell in browser.all(".ranks td:nth-child(2)")]
    assert states == ["stopped", "stopped", "failed", "stopped"]


def test_the_ranks_of_a_step_that_runs_are_there(browser: Browser, tmp_path: Path) -> None:
    browser.show(finetuning(tmp_path, running=True))
    browser.open_all()
    assert [cell.text for cell in browser.all(".ranks td:nth-child(2)")] == ["running"] * 4
    assert browser.all("details.rank pre.log")[3].text.startswith("rank 3: epoch 0")


def test_charts_have_the_values_that_were_measured(browser: Browser, trained: Run) -> None:
    browser.show(trained)
    browser.open_all()
    path = Path(trained.row.store) / "runs" / trained.id / "tasks" / "train" / "0.2.series"
    found = read_series(path)
    assert found is not None
    busy = found.columns["gpu.1.busy"]
    label = browser.one(".profile .plot").get_attribute("aria-label") or ""
    assert f"{sum(busy) / len(busy):.3g}" in label  # type: ignore[arg-type]
    first = read_values(browser, ".profile .plot[aria-label^='GPU memory']", Keys.HOME)
    assert first["GPU 0"] == "3 GB (1 GB – 5 GB)"  # the first five of 2,300 samples, which became 480 points


def test_metrics_are_told_as_they_were_logged(browser: Browser, tmp_path: Path) -> None:
    graph = Graph(pipeline="p", steps={"f": definition()}, nodes=(Node(name="f", step="f"),))
    made = MadeUp(tmp_path, graph)
    made.file(made.task("f", start=0, seconds=100), "metrics", metrics(50, 100))
    run = made.record()
    browser.show(run)
    browser.open_all()
    for metric, curve in run["f"].tasks[0].attempts[-1].metrics.items():
        plot = browser.one(f"#metrics .plot[aria-label^='{metric}:']")
        for at, value in enumerate(curve.values):
            plot.send_keys(Keys.HOME if at == 0 else Keys.ARROW_RIGHT)
            step, _, text = announced(browser).partition(", ")
            assert (step, float(text)) == (f"step {at}", float(f"{value:.4g}"))


def test_the_arrows_walk_along_a_chart_and_tell_its_values(browser: Browser, trained: Run) -> None:
    browser.show(trained)
    browser.open_all()
    plot = browser.one("#metrics .plot[data-across='step']")
    plot.send_keys(Keys.HOME)
    heard = [announced(browser)]
    for _ in range(3):
        plot.send_keys(Keys.ARROW_RIGHT)
        heard.append(announced(browser))
    assert [text.split(",")[0] for text in heard] == ["step 0", "step 1", "step 2", "step 3"]
    plot.send_keys(Keys.ESCAPE)
    assert not browser.all(".tip")


def test_charts_of_the_same_time_are_looked_at_together(browser: Browser, trained: Run) -> None:
    browser.show(trained)
    browser.open_all()
    plots = browser.all(".profile .plot")
    whole = [view(plot) for plot in plots]
    plots[1].send_keys(Keys.END, "+")
    assert all(view(plot)[2] < 10000 for plot in plots)
    assert len({view(plot)[0] for plot in plots}) == 1
    assert all(plot.find_elements("css selector", ".cross") == [] for plot in plots)
    labels = [text.text for text in plots[0].find_elements("css selector", ".xs text")]
    assert labels[0] != "0 s" and len(labels) > 1
    plots[2].find_element("css selector", ".whole").click()
    assert [view(plot) for plot in plots] == whole


def test_the_pointer_shows_values_and_picks_a_part(browser: Browser, trained: Run) -> None:
    browser.show(trained)
    browser.open_all()
    plots = browser.all(".profile .plot")
    browser.script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", plots[0])
    ActionChains(browser.driver).move_to_element(plots[0]).perform()
    assert browser.one(".profile .tip").text.count("GPU") == 2
    assert len(browser.all(".profile .cross")) == len(plots)
    width = plots[0].size["width"]
    drag = ActionChains(browser.driver).move_to_element(plots[0]).click_and_hold()
    drag.move_by_offset(width // 4, 0).release().perform()
    start, _, extent, _ = view(plots[0])
    assert 4800 < start < 5200 and 2300 < extent < 2700
    ActionChains(browser.driver).double_click(plots[0]).perform()
    assert view(plots[0])[2] == 10000


def test_a_line_can_be_hidden(browser: Browser, trained: Run) -> None:
    browser.show(trained)
    browser.open_all()
    key = browser.one(".profile .key")
    key.click()
    assert key.get_attribute("aria-pressed") == "false"
    assert "GPU 0" not in read_values(browser, ".profile .plot", Keys.END)
    key.click()
    assert "GPU 0" in read_values(browser, ".profile .plot", Keys.END)


def test_everything_can_be_reached_with_the_keyboard_and_shows_that_it_is(
    browser: Browser, trained: Run
) -> None:
    browser.show(trained)
    seen = []
    for _ in range(400):
        ActionChains(browser.driver).send_keys(Keys.TAB).perform()
        found = browser.script(FOCUSED)
        if found is None or found == seen[:1]:
            break
        seen.append(found)
    assert seen[0]["name"] == "Skip to the report"
    kinds = {each["kind"] for each in seen}
    assert {"a", "button", "summary", "div"} <= kinds
    assert [each for each in seen if not each["name"]] == []
    assert [each for each in seen if not each["visible"]] == []
    names = [each["name"] for each in seen]
    assert {"Charts, log and attempts", "GPU profile"} <= set(names)
    assert sum(name.startswith("GPU busy") for name in names) == 1


def test_a_step_is_opened_by_the_keyboard(browser: Browser, trained: Run) -> None:
    browser.show(trained)
    browser.one("#step-1 summary").send_keys(Keys.ENTER)
    assert "It was over before the first sample" in browser.until(lambda: browser.one("#step-1 .inner").text)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_colours_are_those_of_the_system_and_text_can_be_read(
    browser: Browser, trained: Run, scheme: str
) -> None:
    browser.prefer(scheme)
    browser.show(trained)
    browser.open_all()
    light = browser.script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert light == (scheme == "light")
    faint = browser.script(FAINT)
    assert faint == []


def test_the_colours_can_be_chosen_and_stay_chosen(browser: Browser, trained: Run) -> None:
    def background() -> str:
        return str(browser.script("return getComputedStyle(document.body).backgroundColor"))

    browser.show(trained)
    light = background()
    button = browser.one("#theme")
    button.click()
    assert background() == light
    button.click()
    assert background() != light
    browser.driver.refresh()
    assert background() != light
    assert browser.one("#theme").get_attribute("aria-label") == "Colours: dark"
    browser.one("#theme").click()
    assert background() == light


@pytest.mark.parametrize("width", [320, 768])
def test_a_narrow_window_needs_no_scrolling_sideways(browser: Browser, trained: Run, width: int) -> None:
    browser.size(width)
    browser.show(trained)
    browser.open_all()
    assert browser.script(
        "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )
    assert browser.one("#step-3 .records").size["width"] <= width


def test_the_heads_of_the_table_of_gpus_stay_on_a_line(browser: Browser, trained: Run) -> None:
    browser.size(400)
    browser.show(trained)
    browser.open_all()
    heads = browser.all(".devices thead th")
    assert heads
    assert all(head.size["height"] < 40 for head in heads), [head.size for head in heads]


def test_cards_show_pictures_text_and_pages(browser: Browser, trained: Run) -> None:
    browser.show(trained)
    browser.open_all()
    picture = browser.one(".card img")
    browser.until(lambda: browser.script("return arguments[0].naturalWidth", picture))
    assert [cell.text for cell in browser.all(".prose tbody tr:first-child td")] == ["4", "9", "17"]
    frame = browser.one(".card iframe")
    browser.script("arguments[0].scrollIntoView()", frame)
    browser.until(lambda: frame.size["height"] < 200)  # it told the page how high it is
    browser.driver.switch_to.frame(frame)
    assert browser.one("#n").text == "42"
    assert browser.script("return window.origin") == "null"
    browser.driver.switch_to.default_content()


def test_a_plotly_figure_is_drawn_by_the_script_that_came_with_it(browser: Browser, tmp_path: Path) -> None:
    made = MadeUp(tmp_path, Graph(pipeline="p", steps={"f": definition()}, nodes=(Node(name="f", step="f"),)))
    library, _ = made.store.put(
        b"const Plotly={newPlot:(id,data)=>{document.getElementById(id).textContent=data[0].y}};//</script>"
    )
    content = json.dumps({"data": [{"y": "drawn </script>"}], "layout": {}}).encode()
    card = made.card("fig", "application/vnd.plotly+json", content)
    made.task("f", start=0, seconds=1, cards=[attrs.evolve(card, script=library)])
    browser.show(made.record())
    browser.open_all()
    browser.driver.switch_to.frame(browser.one(".card iframe"))
    browser.until(lambda: browser.one("#plot").text == "drawn </script>")
    browser.driver.switch_to.default_content()


def test_a_card_reaches_neither_the_network_nor_the_page(browser: Browser, tmp_path: Path) -> None:
    with listening() as (address, asked):
        made = MadeUp(
            tmp_path, Graph(pipeline="p", steps={"f": definition()}, nodes=(Node(name="f", step="f"),))
        )
        html = f"""<img src="{address}/1.png"><link rel="stylesheet" href="{address}/2.css">
        <script src="{address}/3.js"></script><iframe src="{address}/4"></iframe>
        <script>
        fetch("{address}/5").catch(() => 0);
        new Image().src = "{address}/6.png";
        try {{ parent.document.title = "taken" }} catch (error) {{ document.title = error.name }}
        try {{ top.location = "{address}/7" }} catch (error) {{ 0 }}
        document.body.dataset.done = "yes";
        </script><script>location.href = "{address}/8"</script>"""
        svg = f"""<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><image href="{address}/9.png"/>
        <script>fetch("{address}/10")</script></svg>"""
        cards = [made.card("a", "text/html", html.encode()), made.card("b", "image/svg+xml", svg.encode())]
        made.task("f", start=0, seconds=1, cards=cards)
        browser.show(made.record())
        browser.open_all()
        browser.until(lambda: browser.script("return document.querySelector('.card img').naturalWidth"))
        browser.until(lambda: any("Content Security Policy" in line for line in browser.complaints()))
        assert "taken" not in browser.driver.title
    assert asked == []
    browser.complaints(), browser.requests()  # which were refused, and said so


@pytest.mark.parametrize("kind", NASTY)
def test_no_text_of_the_users_breaks_out_of_its_place(browser: Browser, tmp_path: Path, kind: str) -> None:
    text = NASTY[kind]
    plain = report_page(nasty(tmp_path / "plain", step="train", text="plain"))
    browser.open(plain)
    browser.open_all()
    shape = browser.script(SHAPE)
    browser.show(nasty(tmp_path / "nasty", step="train", text=text))
    browser.open_all()
    for row in browser.all(".window td button")[:1]:
        row.click()
    assert browser.script("return window.broken") is None
    assert browser.script("return document.querySelector('h1 bdi').textContent") == visible(text)
    uncoloured = visible(text.replace("\x1b[31m", ""))
    assert uncoloured in browser.script("return document.querySelector('pre.log').textContent")
    assert browser.script(
        "return document.querySelector('#step-0 .plot[aria-label]').getAttribute('aria-label')"
    )
    assert browser.script(SHAPE) == shape
    browser.complaints()  # a card's page may hold what the policy refuses, and says so


def test_ten_thousand_tasks_are_few_elements(browser: Browser, page_of_many: str) -> None:
    browser.open(page_of_many)
    assert len(page_of_many.encode()) < 10_000_000
    assert browser.script("return document.querySelectorAll('*').length") < 1500
    browser.one("#step-1 summary").click()
    browser.one("#step-1 .window")
    assert browser.script("return document.querySelectorAll('#step-1 *').length") < 1500
    assert len(browser.all("#step-1 .window tbody tr")) < 40
    assert len(browser.all("#step-1 .strip path")) < 40


def test_the_table_of_many_tasks_finds_any_of_them(browser: Browser, page_of_many: str) -> None:
    browser.open(page_of_many)
    browser.one("#step-1 summary").click()
    window = browser.one("#step-1 .window")
    shown = browser.one("#step-1 .tools .quiet")
    assert shown.text == "10,000 of 10,000 tasks"
    browser.script("arguments[0].scrollTop = arguments[0].scrollHeight", window)
    browser.until(lambda: browser.all("[data-task='9999']"))
    choose = browser.one("#step-1 select")
    choose.send_keys("failed")
    assert shown.text == "11 of 10,000 tasks"
    rows = [row.text for row in browser.all("#step-1 .window tbody tr:not(.space)")]
    assert len(rows) == 11
    assert rows[0].startswith("3 failed") and "ValueError: item 3 is odd" in rows[0]
    browser.all("#step-1 .window th button")[3].click()
    times = [cell.text for cell in browser.all("#step-1 .window tbody td:nth-child(4)") if cell.text]
    assert times == sorted(times, key=lambda text: float(text.split()[0]))
    browser.one("#step-1 [data-task='3']").send_keys(Keys.ENTER)
    chosen = browser.one("#step-1 .chosen").text
    assert chosen.startswith("score[3]\nValueError: item 3 is odd\n")
    assert "1 CPU" in chosen and "upshift logs 20261121-120000-made 'score[3]'" in chosen
    browser.one("#step-1 input").send_keys("item 1000 ")
    assert shown.text == "1 of 10,000 tasks"


def test_a_run_that_goes_on_is_loaded_again_where_the_reader_is(browser: Browser, tmp_path: Path) -> None:
    run = training(tmp_path / "home", running=True)
    now = datetime.fromtimestamp(STARTED + 2500, timezone.utc)
    browser.show(run, now=now, every=0.5)
    assert "this page follows it every 0.5 s" in browser.one("footer").text
    assert "GPU profile · live" in browser.one(".profile summary").text
    browser.one("#step-1 summary").click()
    where = "return Math.round(document.getElementById('step-1').getBoundingClientRect().top)"
    browser.script("document.getElementById('step-1').scrollIntoView({behavior: 'instant'}); scrollBy(0, 20)")
    before = browser.script(where)
    assert 0 < before < 100
    over = training(tmp_path / "over")
    file = browser.folder / "report.html"
    file.write_text(report_page(over), encoding="utf-8")
    browser.until(
        lambda: browser.script("return document.querySelector('h1 .badge').textContent") == "failed"
    )
    assert browser.script(where) == before  # though there are failures above it now
    assert browser.script("return document.querySelector('#step-1 .later').open")
    assert browser.one("#step-1 .inner").text
    assert "follows" not in browser.one("footer").text


def test_a_page_that_follows_can_be_told_to_wait(browser: Browser, tmp_path: Path) -> None:
    run = training(tmp_path, running=True)
    browser.show(run, every=0.2)
    assert browser.script(PAUSE) == "true"
    browser.script("window.ticks = 0; setInterval(() => { window.ticks += 1 }, 200)")
    browser.until(lambda: (browser.script("return window.ticks") or 0) > 4)
    assert browser.script(PAUSE) == "false"
    browser.until(lambda: browser.script("return window.ticks") is None)
    browser.open("<title>nothing</title>")


def test_printing_opens_what_is_closed(browser: Browser, trained: Run) -> None:
    browser.show(trained)
    shut = len(browser.all("details.later:not([open])"))
    assert shut > 2
    browser.script("window.dispatchEvent(new Event('beforeprint'))")
    assert browser.all("details.later:not([open])") == []
    assert browser.all(".later > .inner:empty") == []
    browser.script("window.dispatchEvent(new Event('afterprint'))")
    assert len(browser.all("details.later:not([open])")) == shut
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert not browser.one(".top").is_displayed()
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_without_scripts_all_but_charts_and_logs_is_there(browser: Browser, trained: Run) -> None:
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.show(trained)
        assert "need JavaScript" in browser.one("footer").text
        assert "11.6 CPU mean" in browser.one("#step-4").text
        assert browser.all(".timeline .bar")
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_metrics_of_several_runs_are_drawn_over_each_other(
    browser: Browser, tmp_path: Path, trained: Run
) -> None:
    graph = Graph(
        pipeline="training", steps={"train": definition()}, nodes=(Node(name="train", step="train"),)
    )
    made = MadeUp(tmp_path, graph, id="20261120-other")
    made.file(
        made.task("train", start=0, seconds=100, used=used(100, 1, 1)), "metrics", metrics(500, 100, seed=9)
    )
    browser.show(trained, made.record())
    browser.open_all()
    values = read_values(browser, "#metrics .plot[data-x$=' 1999.0']", Keys.HOME)
    assert list(values) == ["at", trained.id, "20261120-other"]


def test_a_device_that_was_lost_leaves_a_gap_and_a_mark(browser: Browser, tmp_path: Path) -> None:
    graph = Graph(pipeline="p", steps={"f": definition(profile=1.0)}, nodes=(Node(name="f", step="f"),))
    made = MadeUp(tmp_path, graph, status="running", ended=None)
    task = made.task("f", start=0, seconds=None)
    made.other(TaskRow(task=made.id("f"), status="running"))
    made.file(task, "series", series(300, devices(2), lost=1))
    browser.show(made.record())
    plot = browser.one(".profile .plot")
    title = browser.script("return arguments[0].querySelector('.mark title').textContent", plot)
    assert title == "Xid 79 on GPU 1"
    ends = browser.script(
        "const boxes = [...arguments[0].querySelectorAll('.line')].map((line) => line.getBBox());"
        "return boxes.map((box) => box.x + box.width)",
        plot,
    )
    assert ends[0] == pytest.approx(10000, abs=40) and ends[1] == pytest.approx(6640, abs=60)


def read_values(browser: Browser, selector: str, *keys: str) -> dict[str, str]:
    """What a chart tells when these keys are pressed in it."""
    plot = browser.one(selector)
    plot.send_keys(*keys)
    found = browser.script(
        "const tip = arguments[0].querySelector('.tip');"
        "return [['at', tip.querySelector('b').textContent], ...[...tip.querySelectorAll('div')]"
        ".map((row) => [...row.querySelectorAll('span')].map((span) => span.textContent))]",
        plot,
    )
    return {row[0] if len(row) == 2 else "": row[-1] for row in found}


def announced(browser: Browser) -> str:
    return str(browser.script("return document.querySelector('[aria-live]').textContent"))


def view(plot: object) -> list[float]:
    curves = plot.find_element("css selector", ".curves")  # type: ignore[attr-defined]
    return [float(number) for number in curves.get_dom_attribute("viewBox").split()]


class listening:  # noqa: N801
    """A server on this machine that remembers what it was asked for."""

    def __enter__(self) -> tuple[str, list[str]]:
        asked: list[str] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                self.send_error(404)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        return f"http://127.0.0.1:{self.server.server_address[1]}", asked

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
