"""What decorators do in runs of flows, and what ``upshift.current`` tells there in Metaflow's words."""

from __future__ import annotations

import upshift
from project import Project

HEADER = "from upshift import *\nfrom upshift import current\nimport os, time\n"


def flow(project: Project, steps: str, *, above: str = "", name: str = "flow.py") -> None:
    """A file with a flow of these steps."""
    body = "".join(f"    {line}\n" if line else "\n" for line in steps.strip("\n").split("\n"))
    project.write(
        f'{above}\nclass Tried(FlowSpec):\n{body}\nif __name__ == "__main__":\n    Tried()\n',
        name,
        header=HEADER,
    )


CAUGHT = """
@step
def start(self):
    self.xs = [0, 4]
    self.next(self.work, foreach="xs")

@catch(var="failed")
@retry(times=1, minutes_between_retries=0)
@step
def work(self):
    self.before = self.input
    self.quotient = 8 / self.input
    self.next(self.join)

@step
def join(self, inputs):
    self.told = [(one.before, one.failed is None) for one in inputs]
    self.failed = inputs[0].failed
    self.next(self.crash)

@catch(var="died", print_exception=False)
@step
def crash(self):
    self.lost = 1
    os._exit(3)
    self.next(self.slow)

@timeout(seconds=0.3)
@catch(var="late")
@step
def slow(self):
    time.sleep(60)
    self.next(self.end)

@step
def end(self):
    self.alive = not hasattr(self, "lost")
"""


def test_a_flow_goes_on_after_steps_whose_failures_are_caught(project: Project) -> None:
    flow(project, CAUGHT)
    done = project.upshift("run", "flow.py")
    output = upshift.get_run("latest").output
    assert output.told == [(0, False), (4, True)]
    assert (output.failed.type, output.failed.exception) == ("builtins.ZeroDivisionError", "division by zero")
    assert "self.quotient = 8 / self.input" in output.failed.stacktrace
    assert (output.died.type, output.late.type) == ("user-error", "timeout")
    assert "exit code 3" in str(output.died)
    assert output.alive
    assert [a["status"] for a in project.tasks("work")[0]["attempts"]] == ["failed", "completed"]
    assert [a["reason"] for a in project.tasks("slow")[0]["attempts"]] == ["timeout", None]
    assert "the flow continues, because of @catch" in done.err
    assert "caught: ZeroDivisionError: division by zero" in done.out
    assert "exit code 3" not in done.out


NAMES = """
alpha = Parameter("alpha", default=3)

@environment(vars={"TRIED": "yes"})
@step
def start(self):
    self.told = {
        name: getattr(current, name)
        for name in (
            "run_id flow_name step_name task_id retry_count pathspec username namespace tags origin_run_id "
            "project_name branch_name project_flow_name is_user_branch is_production"
        ).split()
    }
    self.variable = os.environ["TRIED"]
    self.alpha_told = current.parameters.alpha
    self.other = ("run_id" in current, "nothing" in current, current.get("nothing", 7))
    self.xs = [1]
    self.next(self.each, foreach="xs")

@retry(times=1, minutes_between_retries=0)
@step
def each(self):
    if current.retry_count == 0:
        raise ValueError("once")
    self.path = current.pathspec
    self.next(self.join)

@step
def join(self, inputs):
    self.paths = [one.path for one in inputs]
    self.merge_artifacts(inputs, exclude=["path"])
    self.next(self.end)

@step
def end(self):
    pass
"""


def test_current_has_the_names_of_metaflow_in_a_flow(project: Project) -> None:
    flow(project, NAMES, above='@schedule(daily=True)\n@project(name="shop")')
    done = project.upshift("run", "flow.py", "--tag", "mine")
    run = upshift.get_run("latest")
    output = run.output
    assert output.told == {
        "run_id": run.id,
        "flow_name": "Tried",
        "step_name": "start",
        "task_id": "0",
        "retry_count": 0,
        "pathspec": f"Tried/{run.id}/start/0",
        "username": run.user,
        "namespace": f"user:{run.user}",
        "tags": frozenset({"project:shop", "mine"}),
        "origin_run_id": None,
        "project_name": "shop",
        "branch_name": f"user.{run.user}",
        "project_flow_name": f"shop.user.{run.user}.Tried",
        "is_user_branch": True,
        "is_production": False,
    }
    assert (output.variable, output.alpha_told, output.other) == ("yes", 3, (True, False, 7))
    assert output.paths == [f"Tried/{run.id}/each/0"]
    assert "@schedule has no effect: nothing but you starts a run" in done.err


def test_a_step_for_a_cluster_that_is_not_there_is_refused(project: Project) -> None:
    flow(
        project,
        """
@kubernetes(cpu=1, image="any")
@step
def start(self):
    self.next(self.end)

@step
def end(self):
    pass
""",
    )
    refused = project.upshift("run", "flow.py", expect=2, env={"KUBECONFIG": "/nowhere/config"})
    for word in ("there is no kubeconfig: /nowhere/config", "Set KUBECONFIG"):
        assert word in refused.err


CARDS = """
from upshift.cards import Artifact, Error, HTML, Image, Markdown, ProgressBar, Table, VegaChart


class Shows(FlowSpec):
    @card(type="html", id="page")
    @card(id="more")
    @environment(vars={"A": "b"})
    @step
    def start(self):
        shown = current.card
        shown.append(Markdown("# Results\\nfine"))
        bar = ProgressBar(max=4, label="Progress", unit="batches")
        shown.append(Table([["a", 1], [Markdown("b"), bar]], headers=["x", "y"]), title="Both")
        shown.append(bar, id="bar")
        assert shown.components["bar"] is bar and shown.components[2] is bar
        for number in range(4):
            bar.update(number + 1)
            shown.refresh()
        more = shown["more"]
        more.extend([Artifact({"a": 1}, "settings"), VegaChart({"mark": "bar"})])
        try:
            Image(b"no picture")
        except upshift.UsageError as error:
            more.append(Error(error, "refused"))
        shown["other"] = ["replaced"]
        shown["other"] = [Markdown("stays")]
        self.html = "<b>page</b>"
        self.next(self.end)

    @step
    def end(self):
        current.card.append("gone")
        current.card.clear()
"""


def test_cards_are_made_of_components_that_a_step_may_change(project: Project) -> None:
    project.write(CARDS, "flow.py", header="import upshift\nfrom upshift import *\n")
    project.upshift("run", "flow.py")
    run = upshift.get_run("latest")
    cards = run["start"].tasks[0].attempts[-1].cards
    shown = {(card.id, card.title): card.content.decode() for card in cards}
    assert [*shown] == [
        (None, "Results"),
        (None, "Both"),
        (None, "Progress"),
        ("more", "settings"),
        ("more", "VegaChart"),
        ("more", "refused"),
        ("other", "Note"),
        ("page", "html"),
    ]
    assert shown[None, "Results"] == "fine"
    assert "4 / 4 batches" in shown[None, "Progress"]
    assert "<td>b</td>" in shown[None, "Both"]
    assert '"mark": "bar"' in shown["more", "VegaChart"]
    assert "is the content of no PNG, JPEG or GIF file" in shown["more", "refused"]
    assert shown["other", "Note"] == "stays"
    assert shown["page", "html"] == "<b>page</b>"
    assert run["end"].tasks[0].attempts[-1].cards == []
    assert "more: settings" in project.upshift("show", "latest").out
    assert "page: html" in project.upshift("report", "latest", "-o", "-").out
    assert project.attempt("start")["cards"][3]["id"] == "more"
