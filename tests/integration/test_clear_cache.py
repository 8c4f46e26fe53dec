"""``clear_cache=True`` cleans up before the step is called."""

from __future__ import annotations

import upshift
from project import Project


def test_garbage_of_the_users_module_is_gone_before_the_step_is_called(project: Project) -> None:
    project.run("""
import gc, weakref

class Cycle:
    def __init__(self):
        self.me = self

def look() -> bool:
    return gone() is None

class Loaded:
    \"\"\"An input that leaves garbage behind when it is loaded.\"\"\"
    def __setstate__(self, state):
        global gone
        gc.disable()
        gone = weakref.ref(Cycle())

@step
def load() -> Loaded:
    loaded = Loaded()
    loaded.value = 1
    return loaded

@step(clear_cache=True)
def cleaned(loaded: Loaded) -> bool:
    return look()

@step
def as_it_was(loaded: Loaded) -> bool:
    return look()

@pipeline
def example():
    loaded = load()
    return cleaned(loaded), as_it_was(loaded)
""")
    assert upshift.get_run("latest").output == (True, False)
