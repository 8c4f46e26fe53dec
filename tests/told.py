"""What the processes of a step have to tell a test: each writes a file of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TELL = """
import json
from pathlib import Path

import upshift
from upshift import run_with_torchrun

def tell(**what):
    Path(f"rank{upshift.current.rank}.json").write_text(json.dumps(what))

"""
"""For the top of a pipeline: ``tell(name=value)`` in a step."""


def told(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """What each rank told, in their order; no other rank told anything."""
    files = sorted(folder.glob("rank*.json"))
    assert [file.name for file in files] == [f"rank{rank}.json" for rank in range(ranks)]
    return [json.loads(file.read_text()) for file in files]
