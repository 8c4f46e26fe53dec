"""Where a cluster is, who one is there, and which right is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from upshift.backends.kubernetes.access import Access, read_access
from upshift.backends.kubernetes.api import Api, remedy_of
from upshift.errors import BackendError, ConfigError


def config(path: Path, **user: Any) -> Path:
    path.write_text(
        json.dumps(
            {
                "current-context": "one",
                "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": "https://k8s.example.org/"}}],
                "users": [{"name": "u", "user": user}],
            }
        )
    )
    return path


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda path: None, ["there is no kubeconfig", "Set KUBECONFIG"]),
        (lambda path: path.write_text("a: [b"), ["cannot be read as a kubeconfig"]),
        (lambda path: path.write_text("just a text"), ["is no kubeconfig"]),
        (lambda path: path.write_text("{}"), ["names no current context", "get-contexts"]),
        (lambda path: path.write_text("current-context: prod"), ["has no context 'prod'"]),
        (
            lambda path: config(path, **{"auth-provider": {"name": "gcp"}}),
            ["auth-provider is not supported", "exec"],
        ),
        (
            lambda path: config(path, **{"client-certificate": "none.crt"}),
            ["client-certificate cannot be read"],
        ),
    ],
)
def test_a_kubeconfig_that_will_not_do_is_refused_with_what_would(
    tmp_path: Path, write: Any, words: list[str]
) -> None:
    write(tmp_path / "config")
    with pytest.raises(ConfigError) as caught:
        read_access(environ={"KUBECONFIG": str(tmp_path / "config")})
    for word in words:
        assert word in str(caught.value)


def test_a_plugin_logs_in_and_is_asked_again_when_its_token_expires(tmp_path: Path) -> None:
    count = tmp_path / "count"
    script = f'echo x >> {count}; echo \'{{"status": {{"token": "t\'$(wc -l < {count})\'"}}}}\''
    access = read_access(str(config(tmp_path / "config", exec={"command": "sh", "args": ["-c", script]})))
    assert access.server == "https://k8s.example.org"
    assert [access.headers()["Authorization"] for _ in range(2)] == ["Bearer t1"] * 2
    access.refresh()
    assert access.headers()["Authorization"] == "Bearer t2"


def test_a_plugin_that_fails_or_is_not_there_is_named(tmp_path: Path) -> None:
    for command, words in (("false", "false does not log in"), ("no-such-login", "is not on the PATH")):
        access = read_access(str(config(tmp_path / "config", exec={"command": command})))
        with pytest.raises(BackendError, match=words):
            access.headers()


def test_a_pod_finds_its_own_cluster(tmp_path: Path) -> None:
    for name, content in (("token", "secret\n"), ("ca.crt", "x"), ("namespace", "ml")):
        (tmp_path / name).write_text(content)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "HOME": "/nowhere"}
    access = (
        read_access(environ=environ, in_pod=tmp_path)
        if not Path("~/.kube/config").expanduser().exists()
        else None
    )
    if access is not None:
        assert (access.server, access.namespace) == ("https://[fd00::1]:443", "ml")
        assert access.headers() == {"Authorization": "Bearer secret"}


def test_an_address_of_something_else_says_so() -> None:
    def unreachable() -> Access:
        return Access(server="http://127.0.0.1:9", source="the test")

    from upshift.backends.scheduler import NotNow

    with pytest.raises(NotNow, match=r"does not answer at http://127\.0\.0\.1:9"):
        Api(read=unreachable).ask("GET", "/version")


@pytest.mark.parametrize(
    ("method", "path", "rule"),
    [
        ("POST", "/apis/batch/v1/namespaces/ml/jobs", '["batch"], resources: ["jobs"], verbs: ["create"]'),
        ("GET", "/api/v1/namespaces/ml/pods/p/log", '[""], resources: ["pods/log"], verbs: ["get"]'),
        ("GET", "/api/v1/namespaces/ml/pods", '[""], resources: ["pods"], verbs: ["list"]'),
        ("WATCH", "/api/v1/namespaces/ml/pods", '[""], resources: ["pods"], verbs: ["watch"]'),
        (
            "DELETE",
            "/apis/batch/v1/namespaces/ml/jobs/j",
            '["batch"], resources: ["jobs"], verbs: ["delete"]',
        ),
        ("GET", "/api/v1/nodes", 'in a ClusterRole: {apiGroups: [""], resources: ["nodes"], verbs: ["list"]'),
    ],
)
def test_a_right_that_is_missing_is_named_as_a_rule(method: str, path: str, rule: str) -> None:
    said = remedy_of('User "ann" cannot do that', method, path)
    assert said is not None and rule in said
    assert remedy_of("exceeded quota", method, path) is None
