"""What uv, Docker and apt say when a build fails is told by its cause, with what to do."""

from __future__ import annotations

import pytest

from upshift.errors import ImageError, RecipeError
from upshift.images import uv
from upshift.images.base import Recipe
from upshift.images.containers import bases
from upshift.images.containers.engine import ContainerEngine

ENGINE = ContainerEngine(
    name="docker", command=("docker",), version="20.10.24", platform="linux/amd64", buildkit=True
)


@pytest.mark.parametrize(
    ("said", "what", "fix", "kind"),
    [
        (
            "  × Failed to download and build `tool @ git+https://example.org/tool.git`\n"
            "  ├─▶ Git operation failed\n  ╰─▶ Git executable not found. Ensure that Git is installed.",
            "the requirements cannot be installed",
            "Correct requirements",
            RecipeError,
        ),
        (
            "error: Failed to fetch: `https://pypi.example.org/simple/six/`\n"
            "  Caused by: client error (Connect)\n  Caused by: invalid peer certificate: UnknownIssuer",
            "the certificate of the index is not trusted here",
            "SSL_CERT_FILE",
            RecipeError,
        ),
        (
            "error: Failed to fetch: `https://pypi.example.org/simple/six/`\n  Caused by: 401 Unauthorized",
            "the index or repository wants a login",
            "~/.netrc",
            RecipeError,
        ),
        (
            "error: Failed to fetch: `https://pypi.example.org/simple/six/`\n  Caused by: dns error",
            "cannot be reached",
            "the proxy",
            ImageError,
        ),
        ("error: No space left on device (os error 28)", "the disk is full", "uv cache prune", ImageError),
    ],
)
def test_why_uv_failed(said: str, what: str, fix: str, kind: type[ImageError]) -> None:
    error = uv.failure(said.splitlines(), "pipeline.py:3")
    assert type(error) is kind and what in error.what and fix in (error.fix or "")
    assert said.strip().rpartition("\n")[2].lstrip(" ╰─▶") in (error.why or "")
    assert error.where == ("pipeline.py:3" if kind is RecipeError else error.where)


@pytest.mark.parametrize(
    ("said", "what", "fix"),
    [
        ("failed to register layer: No space left on device", "disk on which Docker", "docker system df"),
        ("archive/tar: invalid tar header", "cannot read a layer", "zstd"),
    ],
)
def test_why_an_engine_failed(said: str, what: str, fix: str) -> None:
    error = ENGINE.failure(["build"], said)
    assert what in error.what and fix in (error.fix or "")


@pytest.mark.parametrize(
    ("said", "what", "fix"),
    [
        ("/bin/sh: 1: apt-get: not found", "has no apt-get to install git", "an image of Debian or Ubuntu"),
        ('exec: "/bin/sh": stat /bin/sh: no such file or directory', "has no apt-get", "in a Dockerfile"),
        ("E: Unable to locate package gti", "no such Debian package: gti", "Correct its name"),
        ("Temporary failure resolving 'deb.debian.org'", "server cannot be reached", "http_proxy"),
    ],
)
def test_why_debian_packages_were_not_installed(said: str, what: str, fix: str) -> None:
    _, told, advice = bases.cause_of(said, "git")
    assert what in told and fix in advice


def test_debian_packages_are_installed_whatever_shell_an_image_names() -> None:
    recipe = Recipe(parent="base", platform="linux/amd64", apt_packages=("git",))
    lines = bases.with_packages("base", recipe, "1000").splitlines()
    [run] = [line for line in lines if line.startswith("RUN ")]
    assert run.startswith('RUN ["/bin/sh", "-c", "')
    assert (lines[2], lines[-1]) == ("USER root", "USER 1000")
