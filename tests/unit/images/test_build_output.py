"""What engines write while they build: recorded from Docker 20.10 and Podman 4.3.

``BUILDX``, that of Docker 28, is not recorded: it was written by hand.
"""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from upshift.errors import ImageError, RecipeError
from upshift.images.base import Ingredients, Recipe
from upshift.images.containers.build_failure import build_failure
from upshift.images.containers.build_log import BuildLog
from upshift.images.containers.build_output import BuildOutput
from upshift.images.containers.engine import ContainerEngine

RECIPE = Recipe(
    parent="base", platform="linux/amd64", requirements=("six",), apt_packages=("git", "gcc"), user="ml"
)
ORIGINS = {
    "requirements": "p.py:1 (@step)",
    "apt_packages": "p.py:2 (@step)",
    "parent_image": "p.py:3 (@step)",
    "user": "p.py:4 (@step)",
}
DOCKERFILE = """FROM base
ENV A=1
# comment
RUN echo one && \\
    echo two >&2 && \\
    exit 3
"""
LEGACY = """            BuildKit is currently disabled; enable it by removing the DOCKER_BUILDKIT=0
            environment-variable.

DEPRECATED: The legacy builder is deprecated and will be removed in a future release.
            Install the buildx component to build images with BuildKit:
            https://docs.docker.com/go/buildx/

Sending build context to Docker daemon  1.583kB
Step 1/3 : FROM base
 ---> 84c4a91e71c0
Step 2/3 : ENV A=1
 ---> Running in 77809763614d
Removing intermediate container 77809763614d
 ---> 69852f5f6244
Step 3/3 : RUN echo one &&     echo two >&2 &&     exit 3
 ---> Running in b842faadd606
\x1b[91mtwo
\x1b[0mone
Removing intermediate container b842faadd606
The command '/bin/sh -c echo one &&     echo two >&2 &&     exit 3' returned a non-zero code: 3
"""
BUILDKIT = """#1 [internal] load build definition from Bad
#1 sha256:273d84f401a7ccc20360d4471e8ba0cf01c486f08bdc4c570985a8df36d5ea3d
#1 transferring dockerfile: 127B done
#1 DONE 0.0s

#4 [1/2] FROM docker.io/library/base
#4 sha256:5fbb364e99ece483ab0952029f09932decc08301f4ca8b35da3017d921bfeb42
#4 DONE 0.0s

#5 [2/2] RUN echo one &&     echo two >&2 &&     exit 3
#5 sha256:2c63e63f1aebe96ec783acbfac7a9724b8a19e20e3693237033c20e8afdafee4
#5 0.167 one
#5 0.167 two
#5 ERROR: executor failed running [/bin/sh -c echo one &&     echo two >&2 &&     exit 3]: exit code: 3
------
 > [2/2] RUN echo one &&     echo two >&2 &&     exit 3:
------
executor failed running [/bin/sh -c echo one &&     echo two >&2 &&     exit 3]: exit code: 3
"""
BUILDX = """#5 [2/2] RUN echo one &&     echo two >&2 &&     exit 3
#5 0.151 one
#5 0.151 two
#5 ERROR: process "/bin/sh -c echo one &&     echo two >&2 &&     exit 3" did not complete successfully: exit code: 3
------
 > [2/2] RUN echo one &&     echo two >&2 &&     exit 3:
0.151 one
0.151 two
------
Dockerfile:4
--------------------
   3 |     # comment
   4 | >>> RUN echo one && \\
   5 | >>>     echo two >&2 && \\
   6 | >>>     exit 3
--------------------
ERROR: failed to solve: process "/bin/sh -c echo one" did not complete successfully: exit code: 3
"""  # noqa: E501
PODMAN = """STEP 1/3: FROM base
STEP 2/3: ENV A=1
--> b060a6213ba
STEP 3/3: RUN echo one &&     echo two >&2 &&     exit 3
one
two
Error: building at STEP "RUN echo one &&     echo two >&2 &&     exit 3": while running runtime: exit status 3
"""
ENGINE = ContainerEngine(
    name="docker", command=("docker",), version="28.0", platform="linux/amd64", buildkit=True
)


def taken(text: str) -> tuple[BuildOutput, list[str]]:
    output = BuildOutput()
    return output, [shown for line in text.splitlines() if (shown := output.take(line)) is not None]


@pytest.mark.parametrize("said", [LEGACY, BUILDKIT, BUILDX, PODMAN])
def test_the_instruction_that_failed_its_line_and_what_it_said(said: str) -> None:
    output, _ = taken(said)
    assert " ".join((output.instruction or "").split()) == "RUN echo one && echo two >&2 && exit 3"
    assert sorted(output.lines) == ["one", "two"]
    assert output.line_in(DOCKERFILE) == 4
    assert output.status == 3


def test_what_it_wrote_to_stderr_is_kept_however_much_followed() -> None:
    run = "RUN make"
    said = "\x1b[91mfatal error: foo.h\nmake: *** Error 2\n\x1b[0m" + "".join(
        f"line {n}\n" for n in range(60)
    )
    output, _ = taken(f"Step 2/2 : {run}\n{said}The command '/bin/sh -c make' returned a non-zero code: 2\n")
    assert output.said.excerpt == [
        "fatal error: foo.h",
        "make: *** Error 2",
        "…",
        *(f"line {n}" for n in range(30, 60)),
    ]


def test_the_failure_of_a_dockerfile_has_instruction_output_exit_code_and_where_all_is_kept(
    tmp_path: Path,
) -> None:
    output, _ = taken(LEGACY)
    ingredients = Ingredients(
        recipe=attrs.evolve(RECIPE, parent=None, dockerfile=DOCKERFILE), dockerfile=tmp_path / "Dockerfile"
    )
    error = build_failure(ENGINE, DOCKERFILE, output, [], ingredients, log="/logs/all.log")
    assert error.what == "the Dockerfile fails with exit code 3"
    assert error.where == f"{tmp_path}/Dockerfile:4"
    said = "RUN echo one && echo two >&2 && exit 3\n  two\n  one\nAll that was said: /logs/all.log"
    assert error.why == said
    assert error.fix


def test_all_that_was_said_is_kept_without_secrets(tmp_path: Path, upshift_home: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKEN", "s3cr3t-enough")
        log = BuildLog(tmp_path / "output", ["--index-url https://me:${TOKEN}@host/simple", "six"])
    output = BuildOutput(mask=log.mask, keep=log.write)
    output.take("Step 1/1 : RUN install")
    for number in range(100):
        output.take(f"\x1b[91m{number} of s3cr3t-enough\x1b[0m at https://me:other@host/")
    kept = log.keep()
    assert kept is not None and kept.startswith(str(upshift_home / "logs" / "builds"))
    lines = Path(kept).read_text().splitlines()
    assert lines == [
        "Step 1/1 : RUN install",
        *(f"{n} of *** at https://***@host/" for n in range(100)),
    ]
    assert "s3cr3t" not in "\n".join(output.lines)


def test_what_is_shown_is_what_happens() -> None:
    run = "RUN echo one &&     echo two >&2 &&     exit 3"
    assert taken(BUILDKIT)[1] == ["Step 1/2: FROM docker.io/library/base", f"Step 2/2: {run}", "one", "two"]
    assert taken(PODMAN)[1] == ["STEP 1/3: FROM base", "STEP 2/3: ENV A=1", f"STEP 3/3: {run}", "one", "two"]


def test_of_several_at_work_the_one_that_failed_counts() -> None:
    said = """#6 [a 2/2] RUN true-ish
#7 [b 2/2] RUN failing
#7 0.1 broken
#6 0.2 fine
#7 ERROR: process "/bin/sh -c failing" did not complete successfully: exit code: 1
"""
    output, _ = taken(said)
    assert (output.instruction, output.lines) == ("RUN failing", ["broken"])


@pytest.mark.parametrize(
    "said",
    [
        "Error response from daemon: dockerfile parse error line 2: unknown instruction: FOO",
        "failed to solve with frontend dockerfile.v0: failed to create LLB definition: "
        "dockerfile parse error line 2: unknown instruction: FOO",
        "ERROR: failed to solve: dockerfile parse error on line 2: unknown instruction: FOO",
    ],
)
def test_a_dockerfile_that_cannot_be_read(said: str) -> None:
    output, _ = taken(said)
    assert output.line_in("FROM a\nFOO\n") == 2
    assert output.lines == [said]


def test_what_an_engine_says_by_itself_is_kept_when_nothing_else_was_said() -> None:
    said = """STEP 1/2: FROM base
STEP 2/2: COPY nothing /x
Error: building at STEP "COPY nothing /x": checking on sources: no such file or directory
"""
    output, _ = taken(said)
    assert output.lines == ["checking on sources: no such file or directory"]


def test_where_the_line_is_not_known_none_is_said() -> None:
    output, _ = taken('STEP 2/2: COPY a-$B /x\nError: building at STEP "COPY a-1 /x": no such file\n')
    assert output.line_in(DOCKERFILE) is None


@pytest.mark.parametrize(
    ("instruction", "said", "users"),
    [
        ("RUN pip install -r requirements.txt", "No matching distribution found for six==99", True),
        ("RUN pip install -r requirements.txt", "Max retries exceeded with url: /simple/six/", False),
        ("RUN apt-get install -y foo", "E: Unable to locate package foo", True),
        ("RUN apt-get install -y foo", "Temporary failure resolving 'deb.debian.org'", False),
        ("RUN id somebody", "id: 'somebody': no such user", True),
        ("FROM registry/base", "dial tcp 10.0.0.1:443: i/o timeout", False),
    ],
)
def test_what_the_user_asked_for_is_told_from_what_a_server_did(
    instruction: str, said: str, users: bool
) -> None:
    error = failure(f"Step 1/1 : {instruction}\n{said}\n", RECIPE)
    assert isinstance(error, RecipeError) == users


@pytest.mark.parametrize(
    ("instruction", "said", "users"),
    [
        ("RUN make", "dial tcp: i/o timeout", True),
        ("FROM registry/base", "manifest unknown", True),
        ("FROM registry/base", "dial tcp 10.0.0.1:443: i/o timeout", False),
    ],
)
def test_a_dockerfile_whose_parent_cannot_be_reached_is_not_the_users_fault(
    instruction: str, said: str, users: bool
) -> None:
    text = f"Step 1/1 : {instruction}\n{said}\n"
    ingredients = Ingredients(recipe=attrs.evolve(RECIPE, parent=None, dockerfile=instruction))
    error = build_failure(ENGINE, instruction, taken(text)[0], text.splitlines(), ingredients)
    assert isinstance(error, RecipeError) == users


def failure(said: str, recipe: Recipe) -> ImageError:
    output, _ = taken(said)
    return build_failure(
        ENGINE, "rendered", output, said.splitlines(), Ingredients(recipe=recipe, origins=ORIGINS)
    )


@pytest.mark.parametrize(
    ("instruction", "said", "what", "fix"),
    [
        (
            'RUN "$python" -m pip install -r requirements.txt',
            "/usr/bin/python3: No module named pip",
            "the image has neither uv nor pip to install the requirements with",
            "Build on an image that has pip",
        ),
        (
            'RUN "$uv" pip install -r requirements.txt',
            "error: no such version",
            "the requirements cannot be installed",
            "",
        ),
        (
            "RUN apt-get -q install git gcc",
            "E: Unable to locate package gcc",
            "the image's distribution has no such Debian package: gcc",
            "Correct its name",
        ),
        (
            "RUN apt-get -q update",
            "E: The repository 'http://deb.example trixie InRelease' is not signed.",
            "apt-get update cannot verify the package lists of the image's distribution",
            "a newer version of the image",
        ),
        (
            "RUN apt-get -q update && apt-get -q install git gcc",
            "W: Failed to fetch http://deb.example/InRelease  Temporary failure resolving 'deb.example'\n"
            "E: Unable to locate package gcc",
            "the Debian packages cannot be loaded: their server cannot be reached",
            "network",
        ),
        (
            "RUN apt-get -q install git gcc",
            "E: Sub-process /usr/bin/dpkg returned an error code (1)",
            "the Debian packages cannot be installed: git, gcc",
            "",
        ),
        (
            "RUN apt-get -q update",
            "/bin/sh: apt-get: not found",
            "the image has no apt-get to install git, gcc",
            "Debian or Ubuntu",
        ),
        ("RUN id ml", "id: 'ml': no such user", "the image has no user ml", "Name one that it has"),
        (
            "RUN id ml",
            "write: no space left on device",
            "the disk on which Docker keeps its images is full",
            "docker system df",
        ),
    ],
)
def test_a_rendered_dockerfile_that_fails_is_explained_by_the_settings(
    instruction: str, said: str, what: str, fix: str
) -> None:
    error = failure(f"STEP 2/3: {instruction}\n{said}\n", RECIPE)
    assert error.what == what
    assert said in (error.why or "")
    assert error.where in ORIGINS.values() or "disk" in what
    assert fix in (error.fix or "")


@pytest.mark.parametrize(
    ("said", "what", "fix"),
    [
        (
            "  × No solution found when resolving dependencies:\n  ╰─▶ Because there is no version of "
            "six==99.99 and you require six==99.99, we can conclude that these are unsatisfiable.",
            "there is no such version of one of the requirements",
            "Correct the version",
        ),
        (
            "  ╰─▶ Because nosuch was not found in the package registry and you require nosuch",
            "no index has one of the requirements",
            "Correct its name",
        ),
        (
            "ERROR: Could not find a version that satisfies the requirement nosuch (from versions: none)\n"
            "ERROR: No matching distribution found for nosuch",
            "no index has one of the requirements",
            "Correct its name",
        ),
        (
            "WARNING: Retrying … NewConnectionError('…: Failed to establish a new connection')'\n"
            "ERROR: Could not find a version that satisfies the requirement six (from versions: none)",
            "the index or repository of the requirements cannot be reached",
            "proxy",
        ),
        (
            "  × No solution found when resolving dependencies:\n  ╰─▶ Because you require six==1.16.0 and "
            "six==1.17.0, we can conclude that your requirements are unsatisfiable.",
            "the requirements contradict each other",
            "one set of versions",
        ),
        ("ERROR: ResolutionImpossible: for help visit", "the requirements contradict each other", "one set"),
        (
            "  ╰─▶ Hash mismatch for `six==1.16.0`",
            "a file of the requirements has another hash than the one that is written down",
            "Lock anew",
        ),
        (
            "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.",
            "a file of the requirements has another hash than the one that is written down",
            "Lock anew",
        ),
        (
            "error: unexpected argument '--no-such' found",
            "the installer refuses one of its options",
            "python_package_installer_args",
        ),
        ("no such option: --no-such", "the installer refuses one of its options", "python_package_installer"),
        ("  × Failed to build `old==1.0`", "one of the requirements cannot be compiled", "build-essential"),
    ],
)
def test_what_an_installer_says_has_a_cause_and_a_remedy(said: str, what: str, fix: str) -> None:
    error = failure(f"STEP 2/3: RUN pip install -r requirements.txt\n{said}\n", RECIPE)
    assert (error.what, error.where) == (what, ORIGINS["requirements"])
    assert fix in (error.fix or "")


def test_what_docker_says_of_its_own_builders_is_not_shown() -> None:
    output = BuildOutput()
    shown = [output.take(line) for line in LEGACY.partition("Step 1/3")[0].splitlines()]
    assert shown and not any(shown)


def test_of_what_apt_says_its_complaints_are_shown() -> None:
    said = (
        "Get:1 http://deb.example/debian InRelease\nReading package lists...\nE: Unable to locate package gcc"
    )
    error = failure(f"STEP 2/3: RUN apt-get -q install git gcc\n{said}\n", RECIPE)
    assert error.why == "E: Unable to locate package gcc"
