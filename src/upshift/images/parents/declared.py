"""What the configuration of an image says of its contents: environment, labels and history.

Sources: docker-library/python ``Dockerfile-linux.template`` (``PYTHON_VERSION``); the Dockerfiles of
NVIDIA's container-images/cuda (``CUDA_VERSION``); pytorch/pytorch ``Dockerfile`` (``PYTORCH_VERSION``);
images of Debian (``debian.sh`` in the history) and Ubuntu (``org.opencontainers.image.version``). Read on
2026-11-21.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from upshift.images.base import Contents, Parent

GLIBC: Mapping[str, str] = {
    "debian buster": "2.28",
    "debian bullseye": "2.31",
    "debian bookworm": "2.36",
    "debian trixie": "2.41",
    "debian 10": "2.28",
    "debian 11": "2.31",
    "debian 12": "2.36",
    "debian 13": "2.41",
    "ubuntu 18.04": "2.27",
    "ubuntu 20.04": "2.31",
    "ubuntu 22.04": "2.35",
    "ubuntu 24.04": "2.39",
    "amzn 2": "2.26",
    "amzn 2023": "2.34",
    "rhel 8": "2.28",
    "rhel 9": "2.34",
}
"""The C library of distributions, by name and version or code name.

Source: mayeut/pep600_compliance ``README.rst``, 'Distro compatibility'. Read on 2026-11-21.
"""

_NUMBERS = re.compile(r"\d+(?:\.\d+)+")
_DEBIAN = re.compile(r"debian\.sh .*'(buster|bullseye|bookworm|trixie)'")


def contents(parent: Parent) -> Contents:
    """What its configuration says; what it does not say is None."""
    environment = parent.environment
    torch = version(environment.get("PYTORCH_VERSION"))
    return Contents(
        python=version(environment.get("PYTHON_VERSION")),
        cuda=version(environment.get("CUDA_VERSION")),
        packages={"torch": torch} if torch else None,
        complete=False,
        glibc=_glibc(parent),
        source="its configuration",
    )


def version(text: str | None) -> str | None:
    """The version at the beginning of a text."""
    found = _NUMBERS.match(text or "")
    return found[0] if found else None


def _glibc(parent: Parent) -> str | None:
    labels = parent.labels
    if labels.get("org.opencontainers.image.ref.name") == "ubuntu":
        return GLIBC.get(f"ubuntu {labels.get('org.opencontainers.image.version', '')}")
    history = parent.config.get("history")
    for step in history if isinstance(history, list) else ():
        found = _DEBIAN.search(str(step.get("created_by", "")) if isinstance(step, dict) else "")
        if found:
            return GLIBC[f"debian {found[1]}"]
    return None
