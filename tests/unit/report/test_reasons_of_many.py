"""What is said of many tasks that have reasons of their own."""

from __future__ import annotations

from upshift.report.human import counted


def test_one_reason_is_kept_whole() -> None:
    assert counted(["input changed: lr: 0.1 → 0.2"] * 3) == {"input changed: lr: 0.1 → 0.2": 3}


def test_where_reasons_differ_the_values_are_left_out() -> None:
    reasons = [f"input changed: x: {i} → [{i},0], data from load" for i in range(5)]
    reasons += ["first run", "code changed: f in p.py: eval"]
    assert counted(reasons) == {
        "input changed: x, data from load": 5,
        "first run": 1,
        "code changed: f in p.py: eval": 1,
    }
