"""What every test gets: a home of its own, and a look at what the session left behind."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from buckets import (
    azure_store,
    bucket,
    container,
    google_bucket,
    no_aws,
    object_store,
    object_stores,
    place,
    platform,
    requests,
    requests_of_all,
)
from frameworks import cuda_library
from leftovers import Watch
from nfs import nfs_client, shared_folder
from nvml import fake_nvml, nvml_library
from postgres_here import new_place
from prepared import Prepared
from project import as_users_have_it

# Fixtures.
__all__ = [
    "azure_store",
    "bucket",
    "container",
    "cuda_library",
    "fake_nvml",
    "google_bucket",
    "new_place",
    "nfs_client",
    "no_aws",
    "nvml_library",
    "object_store",
    "object_stores",
    "place",
    "platform",
    "requests",
    "requests_of_all",
    "shared_folder",
]
pytest_plugins = ["share"]

NO_SKIPS = bool(os.environ.get("UPSHIFT_TEST_NO_SKIPS"))
ENVIRONMENT = dict(os.environ)
watch = pytest.StashKey[Watch]()
# Hypothesis takes the same examples each time where CI is set; nowhere is a slow machine a failure.
settings.register_profile("upshift", parent=settings.default, deadline=None)
settings.load_profile("upshift")
left_behind = pytest.StashKey[list[str]]()


@pytest.fixture(autouse=True)
def upshift_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty ``UPSHIFT_HOME``; no other ``UPSHIFT_*`` variable is set."""
    for name in [name for name in os.environ if name.startswith("UPSHIFT_")]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    monkeypatch.setenv("UPSHIFT_HOME", str(home))
    return home


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    """Interpreters that have imported Upshift, and fork to run it."""
    interpreters = Prepared(lambda: tmp_path_factory.mktemp("prepared"), as_users_have_it(ENVIRONMENT))
    yield interpreters
    interpreters.close()


@pytest.fixture(scope="session")
def home_of_pods(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the node of all clusters that are played: what pods and machines unpack there is compiled once."""
    return tmp_path_factory.mktemp("node")


def pytest_sessionstart(session: pytest.Session) -> None:
    base = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    session.config.stash[watch] = Watch(base)


def pytest_collection_finish() -> None:
    """The tests stay to the end: no collection of garbage has to look at them, and no fork to copy them."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Where ``UPSHIFT_TEST_NO_SKIPS`` is set, as in CI, a test that would be skipped fails."""
    if report.skipped and NO_SKIPS and not hasattr(report, "wasxfail"):
        report.outcome = "failed"


@pytest.hookimpl(tryfirst=True)
def pytest_collectreport(report: pytest.CollectReport) -> None:
    """The same for a module that would be skipped as a whole."""
    if report.skipped and NO_SKIPS:
        report.outcome = "failed"


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    found = session.config.stash[watch].leftovers()
    session.config.stash[left_behind] = found
    if found and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if sharing := session.config.pluginmanager.get_plugin("sharing"):
        sharing.tell(left=found)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    found = terminalreporter.config.stash.get(left_behind, [])
    if found:
        terminalreporter.section("left behind by the tests", red=True, bold=True)
        for line in found:
            terminalreporter.line(line)
