"""As ``zenml.integrations.huggingface.steps``. What is there is not in this version, and says so."""

from __future__ import annotations

from typing import NoReturn

from upshift.config.later import name_to_come


def __getattr__(name: str) -> NoReturn:
    if name == "run_with_accelerate":
        raise ImportError(name_to_come(name), name=__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
