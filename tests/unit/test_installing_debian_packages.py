"""What `make engines` installs waits for another apt or dpkg."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

INSTALL = Path(__file__).parent.parent / "debian-packages"
APT = """#!/bin/sh
echo "$@" >>"{folder}/calls"
case $1 in update)
  [ "$(wc -l <"{folder}/calls")" -gt 2 ] || {{ echo "E: {problem}"; exit 100; }} ;;
esac
"""


def installed(folder: Path, problem: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """What the script says, and how apt-get was called, which works from the third time on."""
    programs = {"apt-get": APT.format(folder=folder, problem=problem), "sleep": "#!/bin/sh\n"}
    programs["sudo"] = '#!/bin/sh\nexec "$@"\n'
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        [INSTALL, "which tests need", "podman"], env=env, capture_output=True, text=True, timeout=60
    )
    return done, (folder / "calls").read_text().splitlines()


def test_a_lock_that_another_apt_holds_is_waited_for(tmp_path: Path) -> None:
    done, calls = installed(tmp_path, "Could not get lock /var/lib/apt/lists/lock. It is held by process 7")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "apt is busy: waiting for it\n"
    assert calls[:3] == ["update -q"] * 3
    assert calls[3].startswith("-o DPkg::Lock::Timeout=") and calls[3].endswith(" podman")


def test_what_waiting_does_not_mend_is_told_at_once(tmp_path: Path) -> None:
    done, calls = installed(tmp_path, "The repository is not signed.")
    assert (done.returncode, calls) == (1, ["update -q"])
    assert "is not signed" in done.stderr
