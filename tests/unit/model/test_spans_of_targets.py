"""Spans of time in a target, and what takes precedence over them."""

from __future__ import annotations

from pathlib import Path

import pytest

from upshift.errors import ConfigError
from upshift.model.configuration import load_configuration


def test_a_target_says_after_what_silence_a_node_is_lost(tmp_path: Path) -> None:
    file = tmp_path / "upshift.toml"
    file.write_text('[targets.cluster]\nbackend = "slurm"\nnodes_silence = "2m"\n')
    assert load_configuration(tmp_path, {}).target("cluster").nodes_silence == "2m"
    file.write_text('[targets.cluster]\nbackend = "slurm"\nnodes_silence = "2 years"\n')
    with pytest.raises(ConfigError, match="target 'cluster': nodes_silence: expected a number and one of"):
        load_configuration(tmp_path, {})


@pytest.mark.parametrize("seconds", ["soon", "-1", "0", "1e3"])
def test_a_silence_that_is_no_number_of_seconds_is_refused_before_anything_runs(
    tmp_path: Path, seconds: str
) -> None:
    with pytest.raises(ConfigError, match=r"UPSHIFT_NODES_SILENCE = .* is invalid"):
        load_configuration(tmp_path, {"UPSHIFT_NODES_SILENCE": seconds})
