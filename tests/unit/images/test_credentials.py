"""Logins are found where Docker and Podman keep them, and their secrets are shown to nobody."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from upshift.images.registries.credentials import RegistryCredentials, RegistryLogin


def auth(user: str, password: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


def write(file: Path, content: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


class Home:
    """A user's home, with programs on its PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {
            "HOME": str(folder),
            "PATH": f"{folder}/bin:/usr/bin:/bin",
            "XDG_RUNTIME_DIR": f"{folder}/run",
        }

    def docker(self, content: Any) -> Path:
        return write(self.folder / ".docker/config.json", content)

    def helper(self, name: str, script: str) -> None:
        file = write(self.folder / f"bin/docker-credential-{name}", f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def credentials(self, *, patience: float = 30.0, **variables: str) -> RegistryCredentials:
        return RegistryCredentials(environ={**self.environ, **variables}, patience=patience)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def login(credentials: RegistryCredentials, registry: str, repository: str = "") -> RegistryLogin | None:
    return credentials.find(registry, repository).login


def test_a_login_of_docker(home: Home) -> None:
    file = home.docker({"auths": {"registry.example.org:5000": auth("ann", "a:b c")}})
    found = login(home.credentials(), "registry.example.org:5000", "ml/base")
    assert found == RegistryLogin(source=str(file), username="ann", password="a:b c")
    assert login(home.credentials(), "registry.example.org") is None


def test_secrets_are_not_shown(home: Home) -> None:
    home.docker(
        {"auths": {"r.org": {**auth("ann", "s3cret"), "identitytoken": "t0ken", "registrytoken": "r"}}}
    )
    found = home.credentials().find("r.org")
    assert "ann" in repr(found)
    assert "s3cret" not in repr(found) and "t0ken" not in repr(found)


@pytest.mark.parametrize(
    "key", ["r.org", "https://r.org", "https://r.org/v1/", "http://r.org/v2/", "R.org", "r.org/"]
)
def test_a_registry_may_be_written_as_an_address(home: Home, key: str) -> None:
    home.docker({"auths": {key: auth("ann", "x")}})
    assert login(home.credentials(), "r.org") is not None


@pytest.mark.parametrize("key", ["https://index.docker.io/v1/", "docker.io", "index.docker.io"])
def test_docker_hub_has_several_names(home: Home, key: str) -> None:
    home.docker({"auths": {key: auth("ann", "x")}})
    assert login(home.credentials(), "docker.io", "library/python") is not None


def test_podmans_logins_may_be_for_a_part_of_a_registry(home: Home) -> None:
    entries = {
        "quay.io": auth("all", "x"),
        "quay.io/org": auth("org", "x"),
        "quay.io/org/app": auth("app", "x"),
    }
    write(home.folder / "run/containers/auth.json", {"auths": entries})
    credentials = home.credentials()

    def user(repository: str) -> str:
        found = login(credentials, "quay.io", repository)
        return found.username if found else ""

    assert [user("org/app"), user("org/other"), user("organ/app"), user("")] == ["app", "org", "all", "all"]


def test_a_login_for_a_part_is_none_for_the_rest(home: Home) -> None:
    home.docker({"auths": {"quay.io/org": auth("org", "x")}})
    assert login(home.credentials(), "quay.io", "other/app") is None


def test_places_are_looked_at_in_order(home: Home, tmp_path: Path) -> None:
    def content(user: str) -> dict[str, Any]:
        return {"auths": {"r.org": auth(user, "x")}}

    def user(**variables: str) -> str:
        found = login(home.credentials(**variables), "r.org")
        return found.username if found else ""

    write(home.folder / ".config/containers/auth.json", content("config"))
    assert user() == "config"
    write(home.folder / "run/containers/auth.json", content("run"))
    assert user() == "run"
    home.docker(content("docker"))
    assert user() == "docker"
    write(tmp_path / "elsewhere/config.json", content("elsewhere"))
    assert user(DOCKER_CONFIG=str(tmp_path / "elsewhere")) == "elsewhere"
    told = write(tmp_path / "told.json", content("told"))
    assert user(REGISTRY_AUTH_FILE=str(told)) == "told"
    inline = json.dumps(content("inline"))
    assert user(REGISTRY_AUTH_FILE=str(told), DOCKER_AUTH_CONFIG=inline) == "inline"


def test_a_helper_is_asked_for_the_registry(home: Home) -> None:
    home.docker({"credsStore": "all", "credHelpers": {"own.org": "own"}, "auths": {"r.org": {}}})
    home.helper(
        "all", """read server; echo "{\\"Username\\": \\"$server\\", \\"Secret\\": \\"from all\\"}" """
    )
    home.helper("own", """echo '{"Username": "<token>", "Secret": "identity"}'""")
    credentials = home.credentials()
    found = login(credentials, "r.org")
    assert found == RegistryLogin(source="docker-credential-all", username="r.org", password="from all")
    hub = login(credentials, "docker.io")
    assert hub is not None and hub.username == "https://index.docker.io/v1/"
    own = login(credentials, "own.org")
    assert own == RegistryLogin(source="docker-credential-own", identity_token="identity")


def test_where_the_helper_has_none_the_file_may(home: Home) -> None:
    home.docker({"credsStore": "empty", "auths": {"r.org": auth("ann", "x")}})
    home.helper("empty", "echo 'credentials not found in native keychain'; exit 1")
    found = home.credentials().find("r.org")
    assert found.login is not None and found.login.username == "ann"
    assert found.problems == ()


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo 's3cret went wrong' >&2; exit 3", "failed (exit code 3)"),
        ("echo s3cret", "gave an answer that is invalid"),
        ("echo '[\"s3cret\"]'", "gave an answer that is invalid"),
        ("""echo '{"Username": 1, "Secret": 7}'""", "gave an answer that is invalid"),
        ("""echo '{"Username": "ann", "Secret": 7}'""", "gave an answer that is invalid"),
        (r"""printf '{"Username": "ann", "Secret": "\\ud800"}'""", "gave an answer that is invalid"),
        ("head -c 200000 /dev/zero | tr '\\0' '['", "gave an answer that is invalid"),
        ("exec tail -f /dev/null", "has not answered within 0.2 s"),
    ],
)
def test_a_helper_that_fails_is_named_without_its_words(home: Home, script: str, problem: str) -> None:
    file = home.docker({"credsStore": "bad"})
    home.helper("bad", script)
    found = home.credentials(patience=0.2 if "within" in problem else 30.0).find("r.org")
    assert found.login is None
    assert found.problems == (f"docker-credential-bad, which {file} names, {problem}",)


def test_a_helper_that_is_not_installed_is_named(home: Home) -> None:
    file = home.docker({"credHelpers": {"r.org": "gone"}})
    found = home.credentials().find("r.org")
    assert found.looked == (str(file), "docker-credential-gone")
    assert found.problems == (f"docker-credential-gone, which {file} names, is not installed",)
    assert home.credentials().find("other.org").problems == ()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "is not valid JSON"),
        ("[]", "is not valid JSON"),
        ("[" * 200_000, "is not valid JSON"),
        ({"auths": {"r.org": {"username": "ann", "password": "\ud800"}}}, "is damaged"),
        ({"auths": {"r.org": {"identitytoken": "\ud800"}}}, "is damaged"),
        ({"auths": {"r.org": {"registrytoken": "a\r\nHost: b"}}}, "is damaged"),
        ({"credsStore": "a\0b"}, r"names 'docker-credential-a\x00b', which is not a program"),
        ({"credHelpers": {"r.org": "\ud800"}}, "which is not a program"),
        ({"auths": {"r.org": {"auth": "%%%"}}}, "is damaged"),
        ({"auths": {"r.org": {"auth": "/w=="}}}, "is damaged"),
    ],
)
def test_a_damaged_file_is_named(home: Home, content: Any, problem: str) -> None:
    file = home.docker(content)
    found = home.credentials().find("r.org")
    assert found.login is None
    assert len(found.problems) == 1
    assert str(file) in found.problems[0] and problem in found.problems[0]


@pytest.mark.parametrize(
    "content",
    ["", "{}", {"auths": []}, {"auths": {"r.org": 7}}, {"auths": {"r.org": {"auth": 7}}}, {"credHelpers": 1},
     {"credsStore": ["x"]}],
)  # fmt: skip
def test_what_makes_no_sense_in_a_file_is_no_login(home: Home, content: Any) -> None:
    home.docker(content)
    found = home.credentials().find("r.org")
    assert (found.login, found.problems) == (None, ())


def test_a_folder_in_place_of_a_file_is_named(home: Home) -> None:
    (home.folder / ".docker/config.json").mkdir(parents=True)
    problems = home.credentials().find("r.org").problems
    assert problems == (f"{home.folder}/.docker/config.json cannot be read (Is a directory)",)
