"""Make a project of so many files, and a code package of it; says how long the package took."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from upshift.code.packages import make_package
from upshift.runtime.storage.store import open_store

with tempfile.TemporaryDirectory() as folder:
    project = Path(folder)
    for number in range(int(sys.argv[1])):
        file = project / f"package_{number % 20}" / f"module_{number}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"value = {number}\n" * 100, encoding="utf-8")
    store = open_store(os.path.join(os.environ["UPSHIFT_HOME"], "store"))
    start = time.perf_counter()
    package = make_package(project, store)
    took = time.perf_counter() - start
    assert len(package.files) == int(sys.argv[1])
print(json.dumps({"seconds": took}))
