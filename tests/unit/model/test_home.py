"""Who may look into ``UPSHIFT_HOME``."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from upshift.code.fingerprint import facts
from upshift.code.memo import Memo
from upshift.model.configuration import Configuration, home, make_folder
from upshift.model.spec import TaskId
from upshift.runs.catalog.opening import open_catalog
from upshift.runs.lease import Lease
from upshift.runtime.storage import files, home_folders
from upshift.runtime.storage.store import open_store
from upshift.runtime.supervisor import device_pool


@pytest.fixture(params=[0o000, 0o022])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


MAKERS: dict[str, Callable[[], object]] = {
    "catalog": lambda: open_catalog(Configuration()).count(),
    "store": lambda: open_store(str(home() / "store")).put(b"content"),
    "lease": lambda: Lease("20261123-120000-abcd", str(home() / "store")).release(),
    "memo": lambda: Memo("question").remember(1, {}),
    "facts of code": lambda: facts.keep(home() / "memos" / "facts", b"content"),
    "devices": lambda: device_pool.note(["GPU-1"], TaskId(run="r1", step="one")),
    "folder": lambda: files.make_folder(str(home() / "store" / "seals")),
    "scratch": lambda: os.close(home_folders.locked(str(home_folders.place() / "folder"))),
}


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("maker", MAKERS)
def test_a_home_is_its_owner_s_alone_whatever_makes_it_and_the_umask(maker: str, upshift_home: Path) -> None:
    MAKERS[maker]()
    assert mode(upshift_home) == 0o700


def test_a_home_is_private_by_whatever_path_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "below")
    monkeypatch.setenv("UPSHIFT_HOME", str(tmp_path / "link" / "home"))
    make_folder(tmp_path / "below" / "home" / "store")
    assert mode(tmp_path / "below" / "home") == 0o700


def test_a_home_that_a_team_has_made_for_itself_stays_open_to_it(upshift_home: Path) -> None:
    upshift_home.mkdir()
    upshift_home.chmod(0o2770)
    before = os.umask(0o007)
    try:
        MAKERS["catalog"]()
        MAKERS["store"]()
    finally:
        os.umask(before)
    assert mode(upshift_home) == 0o2770
    assert mode(upshift_home / "catalog.db") == 0o660
    folders = [Path(folder) for folder, _, _ in os.walk(upshift_home / "store")]
    assert folders and all(mode(folder) == 0o2770 for folder in folders)
