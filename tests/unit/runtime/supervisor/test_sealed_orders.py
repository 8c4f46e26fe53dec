"""Secrets of a supervisor whose environment others see: a file that is read once."""

from __future__ import annotations

from pathlib import Path

import pytest

from upshift.errors import ConfigError
from upshift.runtime.supervisor.protocol import ORDER, ORDER_FILE, leave, sealed, take_order

SAID = {ORDER: '{"secrets": {"TOKEN": "sesame-open"}}', "UPSHIFT_NODES": "2"}


def test_a_node_reads_what_was_left_for_it_and_nobody_reads_it_again(tmp_path: Path) -> None:
    paths = [tmp_path / "1.order.0", tmp_path / "1.order.1"]
    key, content = sealed(SAID)
    leave(paths, content)
    for path in paths:
        assert path.stat().st_mode & 0o777 == 0o600
        assert b"sesame" not in path.read_bytes() and b"NODES" not in path.read_bytes()
        environment = {ORDER_FILE: f"{key} {path}", "HOME": "/home/ann"}
        take_order(environment)
        assert environment == {**SAID, "HOME": "/home/ann"}
        assert not path.exists()
    with pytest.raises(ConfigError, match=r"is not there: .*1\.order\.0"):
        take_order({ORDER_FILE: f"{key} {paths[0]}"})


def test_one_that_was_changed_or_is_for_another_attempt_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "1.order.0"
    key, content = sealed(SAID)
    content = bytearray(content)
    content[40] ^= 1
    leave([path], bytes(content))
    with pytest.raises(ConfigError, match="it is damaged"):
        take_order({ORDER_FILE: f"{key} {path}"})
    leave([path], sealed(SAID)[1])
    with pytest.raises(ConfigError, match="it is damaged"):
        take_order({ORDER_FILE: f"{key} {path}"})


def test_without_such_a_file_nothing_changes() -> None:
    environment = {ORDER: "{}"}
    take_order(environment)
    assert environment == {ORDER: "{}"}
