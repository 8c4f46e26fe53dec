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
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from benchmarks.made_up import STARTED, MadeUp, definition, devices, large, metrics, series, used
from made_up_gang import HANG, RAISED, finetuning
from upshift.model.graph import Graph, Node
from upshift.report.page import report_page, visible
from upshift.runs.catalog.rows import TaskRow
from upshift.runs.history.runs import Run
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
def shape_of_plain(chromium: webdriver.Chrome, tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """How many elements there are in a page whose texts are all harmless."""
    home = tmp_path_factory.mktemp("plain")
    browser = Browser(chromium, home)
    browser.show(nasty(home / "home", step="train", text="plain"))
    browser.open_all()
    browser.script("document.querySelector('.window td button').click()")
    return list(browser.script(SHAPE))


@pytest.fixture(scope="module")
def page_of_many(tmp_path_factory: pytest.TempPathFactory) -> str:
    return report_page(large(tmp_path_factory.mktemp("many"), tasks=2000, seconds=600))


def test_a_report_shows_what_ran_and_how_it_went(browser: Browser, trained: Run) -> None:
    browser.show(trained)
    assert browser.one("h1").text.split() == ["training", "failed"]
    titles = [heading.text for heading in browser.all("section > h2")]
    assert titles == [
        "Failures",
        "Results",
        "Metrics",
        "GPUs",
        "Tasks",
        "Steps",
        "Graph",
        "Timeline",
        "Outputs",
    ]
    assert [node.text.split()[0] for node in browser.all(".node")] == [step.name for step in trained.steps]
    assert "12/12" in browser.all(".node")[2].text
    assert len(browser.all(".timeline .bar")) == 1 + 12 + 2 + 1 + 1
    headings = [heading.text for heading in browser.all(".steps > thead th")]
    assert headings == ["step", "status", "took", "asked", "granted", "seen", "used"]
    assert [cell.text for cell in browser.all("#step-4 .row td")][2:] == [
        "32 CPU · 16 GB",
        "16 CPU ! · 16 GB",
        "16 CPU · 64 GB",
        "11.6 CPU mean · 2.1 GB peak",
    ]
    assert "32 CPU asked, 16 CPU granted" in browser.one(".notices").text
    assert "attempt 1 failed (out-of-memory)" in browser.one("#step-3 .notes").text


def test_a_failure_says_what_to_run_next(browser: Browser, trained: Run) -> None:
    browser.show(trained)
    failure = browser.one("#failures article")
    assert "registry.example.org does not answer" in failure.text
    assert [each.text for each in failure.find_elements("css selector", ".command")] == [
        f"upshift logs {trained.id} publish",
        f"upshift replay {trained.id} publish",
        f"upshift resume {trained.id}",
    ]


def test_a_step_opens_by_a_click_by_the_keyboard_and_by_a_link_to_it(browser: Browser, trained: Run) -> None:
    browser.show(trained)
    detail = browser.one("#step-4-more")
    assert not detail.is_displayed()
    browser.one("#step-4 .row td").click()
    titles = [each.text.split()[0] for each in detail.find_elements("css selector", "figcaption")]
    assert detail.is_displayed() and titles[:2] == ["CPU", "Memory"]
    browser.one("#step-1 .opener").send_keys(Keys.ENTER)
    assert "It was over before the first sample" in browser.one("#step-1-more").text
    browser.one(".timeline a[href='#step-6']").click()
    browser.until(browser.one("#step-6-more").is_displayed)


def test_tables_are_sorted_by_their_heads(browser: Browser, trained: Run) -> None:
    browser.show(trained)

    def steps() -> list[str]:
        return [each.text for each in browser.all(".steps .opener")]

    order = steps()
    took = browser.all(".steps > thead button")[2]
    took.click()
    assert steps()[:3] == ["publish", "split", "evaluate"]
    assert took.find_element("xpath", "..").get_attribute("aria-sort") == "ascending"
    took.click()
    assert steps()[0] == "train" and set(steps()) == set(order)


def test_everything_opens(browser: Browser, trained: Run) -> None:
    browser.show(trained)
    browser.open_all()
    titles = {caption.text for caption in browser.all("figcaption b") if caption.text}
    gpus = {"GPU busy", "GPU memory", "GPU power", "GPU temperature"}
    assert {"CPU", "Memory", "Disk", "loss", "lr", *gpus} <= titles
    assert "epoch 39: loss 0.057" in browser.one("#step-3-more pre.log").text
    cells = browser.all("#gpus .devices tbody tr")[0].text
    assert cells.startswith("0 NVIDIA H100 80GB HBM3 85.5 GB 64 % 100 %")


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
    assert browser.one("#results figure:last-child figcaption").text == "Samples (rank 1)"


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
    path = Path(trained.row.store) / "runs" / trained.id / "tasks" / "train" / "0.2.series"
    found = read_series(path)
    assert found is not None
    busy = found.columns["gpu.1.busy"]
    plot = chart(browser, "#gpus", "GPU busy")
    assert f"{sum(busy) / len(busy):.3g}" in (plot.get_attribute("aria-label") or "")  # type: ignore[arg-type]
    first = read_values(browser, chart(browser, "#gpus", "GPU memory"), Keys.HOME)
    assert first["GPU 0"] == "3.5 GB (1 GB – 6 GB)"  # the first six of 2,300 samples, which became 400 points


def test_metrics_are_told_as_they_were_logged(browser: Browser, tmp_path: Path) -> None:
    graph = Graph(pipeline="p", steps={"f": definition()}, nodes=(Node(name="f", step="f"),))
    made = MadeUp(tmp_path, graph)
    made.file(made.task("f", start=0, seconds=100), "metrics", metrics(20, 100))
    run = made.record()
    browser.show(run)
    for metric, curve in run["f"].tasks[0].attempts[-1].metrics.items():
        plot = chart(browser, "#metrics", metric)
        for at, value in enumerate(curve.values):
            plot.send_keys(Keys.HOME if at == 0 else Keys.ARROW_RIGHT)
            step, _, text = announced(browser).partition(", ")
            assert (step, float(text)) == (f"step {at}", float(f"{value:.4g}"))
    plot.send_keys(Keys.ESCAPE)
    assert not browser.all(".tip")


def test_charts_of_the_same_time_are_looked_at_together(browser: Browser, trained: Run) -> None:
    browser.show(trained)
    plots = [chart(browser, "#gpus", title) for title in ("GPU busy", "GPU memory", "GPU power")]
    whole = [view(plot) for plot in plots]
    plots[1].send_keys(Keys.END, "+")
    looked_at = [view(plot) for plot in plots]
    assert looked_at[0] == looked_at[1] == looked_at[2] != whole[0]
    plots[2].find_element("css selector", ".back").click()
    assert [view(plot) for plot in plots] == whole
    later = chart(browser, "#gpus", "NVLink sent")
    assert view(later) == whole[0]


def test_the_pointer_shows_values_and_picks_a_part(browser: Browser, trained: Run) -> None:
    browser.show(trained)
    plot = chart(browser, "#gpus", "GPU busy")
    low, high = view(plot)
    over = plot.find_element("css selector", ".u-over")
    ActionChains(browser.driver).move_to_element(over).perform()
    assert browser.one("#gpus .tip").text.count("GPU") == 2
    drag = ActionChains(browser.driver).move_to_element(over).click_and_hold()
    drag.move_by_offset(over.size["width"] // 4, 0).release().perform()
    start, end = ((edge - low) / (high - low) for edge in browser.until(lambda: closer(plot, low, high)))
    assert start == pytest.approx(0.5, abs=0.02) and end == pytest.approx(0.75, abs=0.02)
    ActionChains(browser.driver).double_click(over).perform()
    browser.until(lambda: view(plot) == [low, high])


def test_a_line_can_be_hidden(browser: Browser, trained: Run) -> None:
    browser.show(trained)
    plot = chart(browser, "#gpus", "GPU busy")
    key = plot.find_element("xpath", "..").find_element("css selector", ".key")
    key.click()
    assert key.get_attribute("aria-pressed") == "false"
    assert "GPU 0" not in read_values(browser, plot, Keys.END)
    key.click()
    assert "GPU 0" in read_values(browser, plot, Keys.END)


def test_metrics_are_drawn_along_time_by_logarithms_or_smoothed(browser: Browser, trained: Run) -> None:
    browser.show(trained)
    plot = chart(browser, "#metrics article:last-child", "loss")
    value = read_values(browser, plot, Keys.HOME)
    browser.one("#metrics article:last-child select").send_keys("time")
    assert read_values(browser, plot, Keys.HOME)["at"].endswith(" s") and value["at"] == "step 1.5"
    last = read_values(browser, plot, Keys.END)[""]
    for _ in range(40):
        browser.one("#metrics article:last-child input[type='range']").send_keys(Keys.ARROW_RIGHT)
    assert read_values(browser, plot, Keys.END)[""] != last
    browser.one("#metrics article:last-child input[type='checkbox']").click()
    assert read_values(browser, plot, Keys.HOME)[""] == value[""]


def test_a_chart_can_be_as_wide_as_the_page(browser: Browser, trained: Run) -> None:
    browser.show(trained)
    plot = chart(browser, "#gpus", "GPU busy")
    narrow = plot.find_element("css selector", "canvas").size["width"]
    plot.find_element("xpath", "..").find_element("css selector", ".widen").click()
    browser.until(lambda: plot.find_element("css selector", "canvas").size["width"] > 2.5 * narrow)


def test_everything_can_be_reached_with_the_keyboard_and_shows_that_it_is(
    browser: Browser, trained: Run
) -> None:
    browser.show(trained)
    chart(browser, "#gpus", "GPU busy")  # what is drawn later is not there to be reached
    browser.script("window.scrollTo(0, 0)")
    seen = []
    for _ in range(400):
        ActionChains(browser.driver).send_keys(Keys.TAB).perform()
        found = browser.script(FOCUSED)
        if found is None or found == seen[:1]:
            break
        seen.append(found)
    assert seen[0]["name"] == "Skip to the report"
    kinds = {each["kind"] for each in seen}
    assert {"a", "button", "select", "input", "div"} <= kinds
    assert [each for each in seen if not each["name"]] == []
    assert [each for each in seen if not each["visible"]] == []
    names = [each["name"] for each in seen]
    assert {"train", "took", "As wide as the page"} <= set(names)
    assert sum(name.startswith("GPU busy") for name in names) == 1


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
    assert browser.one("#step-3-more .records").size["width"] <= width


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
def test_no_text_of_the_users_breaks_out_of_its_place(
    browser: Browser, tmp_path: Path, kind: str, shape_of_plain: list[int]
) -> None:
    text = NASTY[kind]
    browser.show(nasty(tmp_path, step="train", text=text))
    browser.open_all()
    browser.script("document.querySelector('.window td button').click()")
    assert browser.script("return window.broken") is None
    assert browser.script("return document.querySelector('h1 bdi').textContent") == visible(text)
    uncoloured = visible(text.replace("\x1b[31m", ""))
    assert uncoloured in browser.script("return document.querySelector('pre.log').textContent")
    assert browser.script(SHAPE) == shape_of_plain
    browser.complaints()  # a card's page may hold what the policy refuses, and says so


def test_thousands_of_tasks_are_few_elements(browser: Browser, page_of_many: str) -> None:
    browser.open(page_of_many)
    assert len(page_of_many.encode()) < 1_500_000
    assert browser.script("return document.querySelectorAll('*').length") < 2500
    assert len(browser.all("#tasks .window tbody tr")) < 45


def test_the_table_of_many_tasks_finds_any_of_them(browser: Browser, page_of_many: str) -> None:
    browser.open(page_of_many)
    window = browser.one("#tasks .window")
    shown = browser.one("#tasks .tools .quiet")
    assert shown.text == "2,000 of 2,000 tasks"
    browser.script("arguments[0].scrollTop = arguments[0].scrollHeight", window)
    browser.until(lambda: browser.all("[data-task='1999']"))
    browser.one("#tasks [data-task='1999']").click()
    assert "upshift logs 20261121-120000-made 'score[1999]'" in browser.one("#tasks .chosen").text
    browser.one("#tasks [data-tasks] select").send_keys("failed")
    assert shown.text == "3 of 2,000 tasks"
    rows = [row.text for row in browser.all("#tasks .window tbody tr:not(.space)")]
    assert len(rows) == 3
    assert rows[0].startswith("3 failed") and "ValueError: item 3 is odd" in rows[0]
    browser.all("#tasks .window th button")[3].click()
    times = [cell.text for cell in browser.all("#tasks .window tbody td:nth-child(4)") if cell.text]
    assert times == sorted(times, key=lambda text: float(text.split()[0]))
    browser.one("#tasks [data-task='3']").send_keys(Keys.ENTER)
    chosen = browser.one("#tasks .chosen").text
    assert (
        chosen.startswith("score[3] failed") and "ValueError: item 3 is odd" in chosen and "1 CPU" in chosen
    )
    browser.one("#tasks input").send_keys("item 1000 ")
    assert shown.text == "1 of 2,000 tasks"


def test_tasks_are_points_of_which_one_is_chosen(browser: Browser, trained: Run) -> None:
    browser.show(trained)
    figure = browser.one("#tasks .scatter")
    browser.script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", figure)
    over = browser.one("#tasks .scatter .u-over")
    up, along = figure.find_elements("css selector", "select")
    assert along.text.split("\n")[0] == "task" and "memory, peak" in up.text
    up.send_keys("memory")
    over = browser.one("#tasks .scatter .u-over")
    width, height = over.size["width"], over.size["height"]
    for away in range(height):  # the first task, which needed least: down on the left
        place = ActionChains(browser.driver).move_to_element(over)
        place.move_by_offset(-int(width * (0.5 - 0.5 / 12.1)), height // 2 - 1 - away * 4).perform()
        if browser.all("#tasks .scatter .tip"):
            break
    assert browser.one("#tasks .scatter .tip").text.split("\n") == ["task 0", "memory, peak", "900 MB"]
    place.click().perform()
    assert browser.one("#tasks .chosen h4").text == "tune[0] completed"


def test_a_run_that_goes_on_is_loaded_again_where_the_reader_is(browser: Browser, tmp_path: Path) -> None:
    run = training(tmp_path / "home", running=True)
    now = datetime.fromtimestamp(STARTED + 2500, timezone.utc)
    browser.show(run, now=now, every=0.5)
    assert browser.script(PAUSE) == "true"
    assert "this page follows it every 0.5 s" in browser.one("footer").text
    assert browser.one("#gpus h3").text.split() == ["train", "live"]
    browser.one("#step-1 .opener").click()
    where = "return Math.round(document.getElementById('step-1').getBoundingClientRect().top)"
    browser.script("document.getElementById('step-1').scrollIntoView({behavior: 'instant'}); scrollBy(0, 20)")
    before = browser.script(where)
    assert 0 < before < 100
    over = training(tmp_path / "over")
    file = browser.folder / "report.html"
    file.write_text(report_page(over), encoding="utf-8")
    assert browser.script(PAUSE) == "false"
    browser.until(
        lambda: browser.script("return document.querySelector('h1 .badge').textContent") == "failed"
    )
    assert browser.script(where) == before  # though there are failures above it now
    assert browser.one("#step-1-more").is_displayed()
    assert "follows" not in browser.one("footer").text


def test_a_page_that_follows_can_be_told_to_wait(browser: Browser, tmp_path: Path) -> None:
    run = training(tmp_path, running=True)
    browser.show(run, every=0.2)
    assert browser.script(PAUSE) == "true"
    ticking = """
        if (window.ticks === undefined) { window.ticks = 0; setInterval(() => { window.ticks += 1 }, 200) }
        return window.ticks
    """
    browser.until(lambda: browser.script(ticking) > 4)  # also where a reload was under way
    assert browser.script(PAUSE) == "false"
    browser.until(lambda: browser.script("return window.ticks") is None)
    browser.open("<title>nothing</title>")


def test_printing_opens_what_is_closed_and_draws_all(browser: Browser, trained: Run) -> None:
    browser.show(trained)
    shut = len(browser.all(".more[hidden]"))
    assert shut == 7
    browser.script("window.dispatchEvent(new Event('beforeprint'))")
    assert browser.all(".more[hidden]") == []
    assert browser.all("[data-chart]:not([data-drawn])") == []
    browser.script("window.dispatchEvent(new Event('afterprint'))")
    assert len(browser.all(".more[hidden]")) == shut
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert not browser.one(".top").is_displayed()
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_without_scripts_all_but_charts_is_there(browser: Browser, trained: Run) -> None:
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.show(trained)
        assert "need JavaScript" in browser.one("footer").text
        assert "11.6 CPU mean" in browser.one("#step-4").text
        assert "epoch 39: loss 0.057" in browser.one("#step-3-more").text
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
    values = read_values(browser, chart(browser, "#metrics article:last-child", "loss"), Keys.HOME)
    assert list(values) == ["at", trained.id, "20261120-other"]


def test_a_device_that_was_lost_leaves_a_gap_and_a_mark(browser: Browser, tmp_path: Path) -> None:
    graph = Graph(pipeline="p", steps={"f": definition(profile=1.0)}, nodes=(Node(name="f", step="f"),))
    made = MadeUp(tmp_path, graph, status="running", ended=None)
    task = made.task("f", start=0, seconds=None)
    made.other(TaskRow(task=made.id("f"), status="running"))
    made.file(task, "series", series(300, devices(2), lost=1))
    browser.show(made.record())
    plot = chart(browser, "#gpus", "GPU busy")
    assert set(read_values(browser, plot, Keys.END)) == {"at", "GPU 0"}
    plot.send_keys(Keys.HOME, Keys.SHIFT, Keys.ARROW_RIGHT * 20)
    assert "Xid 79 on GPU 1" in browser.one(".tip").text


def chart(browser: Browser, place: str, title: str) -> WebElement:
    """A chart, once it is drawn."""
    plot = browser.one(f"{place} .plot[aria-label^='{title}:']")
    browser.script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", plot)
    browser.until(lambda: plot.find_elements("css selector", ".u-over"))
    return plot


def read_values(browser: Browser, plot: WebElement, *keys: str) -> dict[str, str]:
    """What a chart tells when these keys are pressed in it."""
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


def view(plot: WebElement) -> list[float]:
    """What part of the x axis a chart shows."""
    return [float(number) for number in (plot.get_attribute("data-view") or "").split()]


def closer(plot: WebElement, low: float, high: float) -> list[float] | None:
    """The part that it shows, once that is not all of it."""
    return None if view(plot) == [low, high] else view(plot)


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
