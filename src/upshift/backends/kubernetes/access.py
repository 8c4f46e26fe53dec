"""Which cluster, and as whom: a kubeconfig as ``kubectl`` reads it, or a pod's own service account.

Sources: Kubernetes, "Organizing Cluster Access Using kubeconfig Files"; client-go, ``clientauthentication``.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs

from upshift.errors import BackendError, ConfigError, MissingExtra, suggestion

IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its service account."""
PATIENCE = 60.0
"""Seconds that a plugin may take to log in."""
_REREAD = 60.0
"""Seconds for which a token from a file is used: those of pods are renewed within the hour."""
_EARLY = 30.0
"""Seconds before a token expires that a new one is asked for."""


@attrs.define(eq=False)
class Access:
    """A cluster, and the user that asks it."""

    server: str
    source: str  # where this is from, for people
    namespace: str = "default"
    authority: bytes | None = None  # certificates in PEM; None: those of the system
    insecure: bool = False
    certificate: tuple[bytes, bytes] | None = attrs.field(default=None, repr=False)
    token: str | None = attrs.field(default=None, repr=False)
    token_file: Path | None = None
    login: str | None = attrs.field(default=None, repr=False)  # name and password, in base64
    plugin: Mapping[str, Any] | None = None
    _expires: float | None = None
    _lock: Any = attrs.field(factory=threading.Lock, repr=False)

    def headers(self) -> dict[str, str]:
        """What says who asks."""
        with self._lock:
            if self.token_file is not None and time.time() >= (self._expires or 0.0):
                self._read_file()
            if self.plugin is not None and (
                (self.token is None and self.certificate is None)
                or (self._expires is not None and time.time() >= self._expires)
            ):
                self._log_in()
            if self.token is not None:
                return {"Authorization": f"Bearer {self.token}"}
            return {} if self.login is None else {"Authorization": f"Basic {self.login}"}

    def refresh(self) -> None:
        """Forget a token that is not taken any more, if another one can be had."""
        with self._lock:
            if self.token_file is not None:
                self._read_file()
            if self.plugin is not None:
                self.token = None
                self._log_in()

    def context(self) -> ssl.SSLContext | None:
        """How connections are made safe; None: not at all."""
        if self.server.startswith("http://"):
            return None
        if self.plugin is not None:  # whose answer may be a certificate
            self.headers()
        context = ssl.create_default_context()
        if self.authority is not None:
            context.load_verify_locations(cadata=self.authority.decode(errors="replace"))
            if hasattr(ssl, "VERIFY_X509_STRICT"):  # authorities of clusters lack what that asks for
                context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if self.certificate is not None:
            with tempfile.NamedTemporaryFile() as file:  # ssl reads files only
                file.write(b"\n".join(self.certificate))
                file.flush()
                try:
                    context.load_cert_chain(file.name)
                except (ssl.SSLError, OSError) as error:
                    raise ConfigError(
                        f"{self.source}: the client's certificate cannot be used: {error}"
                    ) from None
        return context

    def close(self) -> None:
        """Nothing is held."""

    def _read_file(self) -> None:
        assert self.token_file is not None
        try:
            self.token = self.token_file.read_text().strip()
        except OSError as error:
            raise BackendError(f"{self.source}: {self.token_file} cannot be read: {error.strerror}") from None
        self._expires = time.time() + _REREAD

    def _log_in(self) -> None:
        """Have the plugin say a token."""
        assert self.plugin is not None
        version = str(self.plugin.get("apiVersion") or "client.authentication.k8s.io/v1")
        command = [str(self.plugin["command"]), *map(str, self.plugin.get("args") or ())]
        cluster: dict[str, Any] = {"server": self.server}
        if self.authority is not None:
            cluster["certificate-authority-data"] = base64.b64encode(self.authority).decode()
        info = {
            "apiVersion": version,
            "kind": "ExecCredential",
            "spec": {
                "interactive": False,
                **({"cluster": cluster} if self.plugin.get("provideClusterInfo") else {}),
            },
        }
        own = {str(one["name"]): str(one["value"]) for one in self.plugin.get("env") or ()}
        try:
            done = subprocess.run(
                command,
                env={**os.environ, **own, "KUBERNETES_EXEC_INFO": json.dumps(info)},
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except FileNotFoundError:
            raise BackendError(
                f"{self.source}: the command {command[0]} is not on the PATH",
                why="It logs in to the cluster.",
                fix=str(self.plugin.get("installHint") or "Install it, as for kubectl."),
            ) from None
        except subprocess.TimeoutExpired:
            raise BackendError(
                f"{self.source}: {command[0]} has not logged in within {PATIENCE:g} s"
            ) from None
        try:
            status = json.loads(done.stdout)["status"]
        except (ValueError, KeyError, TypeError):
            said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise BackendError(
                f"{self.source}: {command[0]} does not log in: {said}",
                fix="Log in again, as for kubectl: kubectl auth whoami shows whether it works.",
            ) from None
        self.token = status.get("token")
        if status.get("clientCertificateData"):
            self.certificate = (
                status["clientCertificateData"].encode(),
                status.get("clientKeyData", "").encode(),
            )
        self._expires = None
        with contextlib.suppress(ValueError, TypeError):
            until = datetime.fromisoformat(str(status.get("expirationTimestamp")).replace("Z", "+00:00"))
            self._expires = until.timestamp() - _EARLY


def read_access(
    kubeconfig: str | None = None,
    context: str | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    in_pod: Path = IN_POD,
) -> Access:
    """The cluster that a target names, or that ``kubectl`` would ask.

    Raises
    ------
    ConfigError, BackendError
        There is none, or it cannot be read.
    MissingExtra
        A kubeconfig is YAML, which nothing here can read.
    """
    named = kubeconfig or environ.get("KUBECONFIG")
    paths = [Path(part).expanduser() for part in (named or "~/.kube/config").split(os.pathsep) if part]
    there = [path for path in paths if path.exists()]
    if not there:
        if named is None and environ.get("KUBERNETES_SERVICE_HOST") and (in_pod / "token").exists():
            return _of_pod(environ, in_pod)
        raise ConfigError(
            f"there is no kubeconfig: {', '.join(map(str, paths))}",
            why="It holds the address of the cluster and your credentials.",
            fix="Set KUBECONFIG, or the target's option kubeconfig, to the file that kubectl uses.",
        )
    return _of_config(there, context)


def _of_pod(environ: Mapping[str, str], folder: Path) -> Access:
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    namespace = folder / "namespace"
    return Access(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        source="the service account of this pod",
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
        authority=(folder / "ca.crt").read_bytes(),
        token_file=folder / "token",
    )


def _of_config(paths: Sequence[Path], context: str | None) -> Access:
    contexts: dict[str, Any] = {}
    clusters: dict[str, tuple[Path, Any]] = {}
    users: dict[str, tuple[Path, Any]] = {}
    current = None
    for path in paths:  # what a file says first counts
        said = _read(path)
        current = current or said.get("current-context")
        for one in said.get("contexts") or ():
            contexts.setdefault(one["name"], one.get("context") or {})
        for one in said.get("clusters") or ():
            clusters.setdefault(one["name"], (path, one.get("cluster") or {}))
        for one in said.get("users") or ():
            users.setdefault(one["name"], (path, one.get("user") or {}))
    files = ", ".join(map(str, paths))
    chosen = context or current
    if not chosen or chosen not in contexts:
        raise ConfigError(
            f"{files} has no context {chosen!r}" if chosen else f"{files} names no current context",
            fix=suggestion(chosen, contexts) if chosen and contexts else "See kubectl config get-contexts.",
        )
    said = contexts[chosen]
    source = f"{files} (context {chosen})"
    path, cluster = clusters.get(said.get("cluster", ""), (paths[0], None))
    if not cluster or not cluster.get("server"):
        raise ConfigError(f"{source}: its cluster {said.get('cluster')!r} has no server")
    of_user, user = users.get(said.get("user", ""), (paths[0], {}))
    for owner, field, instead in (
        (cluster, "proxy-url", "Set HTTPS_PROXY instead."),
        (cluster, "tls-server-name", "Have the server's own name in server."),
        (user, "auth-provider", "Kubernetes has none since 1.26: use exec, as kubectl does."),
    ):
        if owner.get(field):
            raise ConfigError(f"{source}: {field} is not supported", fix=instead)
    certificate = _content(of_user, user, "client-certificate", source)
    key = _content(of_user, user, "client-key", source)
    login = f"{user['username']}:{user.get('password', '')}" if user.get("username") else None
    return Access(
        server=str(cluster["server"]).rstrip("/"),
        source=source,
        namespace=said.get("namespace") or "default",
        authority=_content(path, cluster, "certificate-authority", source),
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
        certificate=(certificate, key or b"") if certificate is not None else None,
        token=user.get("token"),
        token_file=_beside(of_user, user["tokenFile"]) if user.get("tokenFile") else None,
        login=None if login is None else base64.b64encode(login.encode()).decode(),
        plugin=user.get("exec"),
    )


def _read(path: Path) -> Mapping[str, Any]:
    try:
        import yaml
    except ImportError:
        raise MissingExtra(
            f"{path} is YAML, which PyYAML reads", fix='pip install "upshift[kubernetes]"'
        ) from None
    try:
        said = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read as a kubeconfig: {error}") from None
    if not isinstance(said, Mapping):
        raise ConfigError(f"{path} is no kubeconfig")
    return said


def _content(path: Path, said: Mapping[str, Any], field: str, source: str) -> bytes | None:
    """What is in a kubeconfig itself, or in a file that it names."""
    try:
        if said.get(f"{field}-data"):
            return base64.b64decode(said[f"{field}-data"], validate=False)
        return _beside(path, said[field]).read_bytes() if said.get(field) else None
    except (OSError, binascii.Error) as error:
        raise ConfigError(f"{source}: its {field} cannot be read: {error}") from None


def _beside(path: Path, named: str) -> Path:
    return path.parent / Path(named).expanduser()
