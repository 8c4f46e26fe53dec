"""What a command costs, with everything that it has started. Prints it and the command's output as JSON."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time

from upshift.runtime.confine import become_subreaper


def main() -> None:
    become_subreaper()  # what a command leaves running becomes a child of this process, and counts
    started = time.time()
    done = subprocess.run(
        sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True
    )
    seconds = time.time() - started
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime
    print(json.dumps({"started": started, "seconds": seconds, "cpu": cpu, "output": done.stdout}))


main()
