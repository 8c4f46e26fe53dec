"""``@gpu_profile``, and the options of a retry that have to do with memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from upshift import Retry, SettingsError, gpu_profile, retry, step


def fresh() -> Callable[[], int]:
    def train() -> int:
        return 1

    return train


@pytest.mark.parametrize(
    ("decorated", "interval"),
    [
        (lambda: gpu_profile(step(fresh())), 1.0),
        (lambda: step(gpu_profile(fresh())), 1.0),
        (lambda: gpu_profile(interval=2)(step(fresh())), 2.0),
        (lambda: step(gpu_profile(interval=0.5)(fresh())), 0.5),
        (lambda: gpu_profile(interval=1, include_artifacts=False)(step(fresh())), 1.0),
        (lambda: step(fresh()), None),
    ],
)
def test_with_and_without_parentheses_above_and_below_step(
    decorated: Callable[[], Any], interval: float | None
) -> None:
    assert decorated().options.settings.profile == interval


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: gpu_profile(interval=0), ["@gpu_profile: interval=0 is invalid", "from 0.1 to 60"]),
        (lambda: gpu_profile(interval=3600), ["interval=3600 is invalid"]),
        (lambda: gpu_profile(interval="1s"), ["interval='1s' is invalid", "from 0.1 to 60"]),
        (lambda: gpu_profile(intervall=1), ["@gpu_profile has no option 'intervall'", "'interval'"]),
        (
            lambda: gpu_profile(include_artifacts=True),
            ["include_artifacts is not supported", "series_path", "the report"],
        ),
        (lambda: gpu_profile(artifact_prefix="gpu_"), ["artifact_prefix is not supported"]),
        (lambda: gpu_profile(interval=2)(gpu_profile(step(fresh()))), ["profile is set twice on one step"]),
        (lambda: Retry(memory_factor=0.5, times=1), ["memory_factor=0.5 is invalid", "from 1 to 1,000"]),
        (lambda: Retry(memory_factor=2), ["memory_factor=2 could never matter: times=0"]),
        (
            lambda: retry(memory_factor=2, on=["timeout"]),
            ["could never matter: on=['timeout'] leaves it out", '"out-of-memory"'],
        ),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_is_written(
    wrong: Callable[[], Any], words: list[str]
) -> None:
    with pytest.raises(SettingsError) as caught:
        wrong()
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "test_gpu_profile.py" in str(caught.value)


def test_retry_takes_a_factor_for_memory() -> None:
    assert retry(memory_factor=1.5)(step(fresh())).options.settings.retry == Retry(times=3, memory_factor=1.5)
