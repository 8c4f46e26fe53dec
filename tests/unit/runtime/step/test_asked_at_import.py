"""Which modules have to be imported by each rank itself: those that ask for ranks when they are imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FIRST = """
import sys
from upshift.runtime.supervisor import forkable
forkable.watch()
sys.path[:0] = ["own", "other/site-packages"]
import training
print(forkable.asked_for_rank())
"""
HELPER = 'import os\ndef my_rank():\n    return int(os.environ.get("RANK", 0))\n'

ASKS = {
    "get": {"training": 'import os\nLOCAL_RANK = int(os.environ.get("LOCAL_RANK", 0))'},
    "getenv": {"training": 'import os\nMAIN = os.getenv("RANK", "0") == "0"'},
    "in": {"training": 'import os\nMANY = "WORLD_SIZE" in os.environ'},
    "failing": {"training": 'import os\ntry:\n    os.environ["MASTER_ADDR"]\nexcept KeyError: pass'},
    "a function of another module": {
        "utils": HELPER,
        "training": "from utils import my_rank\nIS_MAIN = my_rank() == 0",
    },
    "a class": {
        "training": HELPER + "class Cfg:\n    def __init__(self):\n        self.rank = my_rank()\nCFG = Cfg()"
    },
    "functions in functions": {"training": HELPER + "def outer():\n    return my_rank()\nRANK = outer()"},
    "a package": {
        "../other/site-packages/rank_zero": HELPER + "rank = my_rank()",
        "training": "import rank_zero",
    },
    "a copy": {"training": "import os\nENVIRONMENT = dict(os.environ)"},
    "a package that copies for a module": {
        "../other/site-packages/settings": "import os\ndef load():\n    return {**os.environ}",
        "training": "import settings\nSETTINGS = settings.load()",
    },
    "a variable of Accelerate": {
        "training": 'import os\nPRECISION = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")'
    },
    "upshift.current": {"training": "import upshift\nIS_MAIN = upshift.current.rank == 0"},
}
DO_NOT = {
    "later": {"training": HELPER + 'rank = lambda: os.environ["RANK"]'},
    "other variables": {"training": 'import os\nHOME = os.environ.get("HOME")\nos.environ["A"] = "1"'},
    "a process": {"training": "import subprocess\nsubprocess.run(['true'])"},
    "a package that copies": {
        "../other/site-packages/progress": 'import os\nOWN = [n for n in os.environ if n.startswith("OWN_")]',
        "training": "import progress",
    },
}


def asked(folder: Path, modules: dict[str, str], code: str = FIRST) -> str:
    for place in ("own", "other/site-packages"):
        (folder / place).mkdir(parents=True)
    for name, source in modules.items():
        (folder / "own" / f"{name}.py").write_text(source)
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("how", ASKS)
def test_a_module_that_asks_at_its_import_is_noted(how: str, tmp_path: Path) -> None:
    assert asked(tmp_path, ASKS[how]) == "True"


@pytest.mark.parametrize("how", DO_NOT)
def test_a_module_that_asks_later_or_not_at_all_is_left_alone(how: str, tmp_path: Path) -> None:
    assert asked(tmp_path, DO_NOT[how]) == "False"


def test_where_nobody_has_watched_anybody_may_have_asked(tmp_path: Path) -> None:
    assert asked(tmp_path, {"training": ""}, FIRST.replace("forkable.watch()\n", "")) == "True"


def test_the_environment_is_otherwise_as_it_was(tmp_path: Path) -> None:
    code = FIRST.replace(
        "import training", "import os\nos.environ['A'] = 'b'\nprint(os.getenv('A'), os.system('test $A = b'))"
    )
    assert asked(tmp_path, {}, code) == "b 0\nFalse"


def test_libraries_for_training_do_not_ask(tmp_path: Path) -> None:
    for library in ("torch", "accelerate", "transformers", "peft", "pandas"):
        pytest.importorskip(library)
    source = "import torch.distributed, accelerate, transformers.trainer, peft, pandas"
    assert asked(tmp_path, {"training": source}) == "False"


def test_a_state_of_accelerate_that_is_there_asks(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    source = "from accelerate import Accelerator\naccelerator = Accelerator(cpu=True)"
    assert asked(tmp_path, {"training": source}) == "True"
