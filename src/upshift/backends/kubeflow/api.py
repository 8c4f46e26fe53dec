"""The API of Kubeflow Pipelines, v2beta1: where it is, as whom it is asked, its refusals in words.

Options of a target have the names of ``kfp.Client``'s arguments, and what they leave open is looked for where
that looks (``sdk/python/kfp/client/client.py`` of kubeflow/pipelines 2.17).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import attrs

from upshift.backends.kubernetes.access import IN_POD, Access, read_access
from upshift.backends.kubernetes.api import BUSY, Api, Exists, Forbidden, Missing, message_of
from upshift.backends.registry import flag_option, text_option
from upshift.backends.scheduler import NotNow
from upshift.errors import BackendError, ConfigError, RequestRefused
from upshift.model.configuration import Target
from upshift.model.settings.secrets import read_secret

SYSTEM = "kubeflow"
"""The namespace that Kubeflow Pipelines itself is in."""
V2, V1 = "/apis/v2beta1", "/apis/v1beta1"
_PROJECTED = Path("/var/run/secrets/kubeflow/pipelines/token")
"""The token that a pod has for Kubeflow Pipelines."""
_TEXTS = (
    "host",
    "token",
    "cookies",
    "namespace",
    "experiment",
    "service_account",
    "ssl_ca_cert",
    "kube_context",
)
OPTIONS = (*_TEXTS, "verify_ssl")
"""What a target may say of it."""


class NoHost(ConfigError):
    """Nothing says where Kubeflow Pipelines is: pipelines can be exported, and not run."""


@attrs.define(eq=False)
class _Access(Access):
    """As whom it is asked; of a browser's session the cookie."""

    cookies: str | None = attrs.field(default=None, repr=False)

    def headers(self) -> dict[str, str]:
        found = super().headers()
        return found if self.cookies is None else {**found, "Cookie": self.cookies}


def checked_options(target: Target) -> dict[str, Any]:
    """Those options of a target that say where Kubeflow is, and as whom it is asked.

    Raises
    ------
    ConfigError
        One has an invalid value.
    """
    owner = f"target {target.name!r}"
    found: dict[str, Any] = {name: text_option(target, name) for name in _TEXTS if name in target.options}
    found["verify_ssl"] = flag_option(target, "verify_ssl", default=True)
    for name in ("token", "cookies"):
        if name in found and found[name].partition(":")[0] not in ("env", "file"):
            raise ConfigError(
                f"{owner}: {name} does not name the source of the value",
                why="The value itself does not belong in a configuration file.",
                fix=f'Name a variable or a file: {name} = "env:KF_TOKEN" or "file:/path".',
            )
    return found


def access_of(name: str, options: Mapping[str, Any]) -> Access:
    """Where Kubeflow Pipelines is, and as whom it is asked: as the target says, or as for ``kfp.Client()``.

    Raises
    ------
    ConfigError
        Nothing says where it is, or a file of the options cannot be read.
    """
    owner = f"target {name!r}"
    if context := options.get("kube_context"):
        found = read_access(context=context)
        found.server += f"/api/v1/namespaces/{SYSTEM}/services/ml-pipeline:http/proxy"
        return found
    host = options.get("host") or os.environ.get("KF_PIPELINES_ENDPOINT")
    pod = os.environ.get("KUBERNETES_SERVICE_HOST") and (IN_POD / "token").exists()
    if not host and not pod:
        raise NoHost(
            f"{owner} does not give the address of Kubeflow Pipelines",
            why="It names no host and no kube_context, KF_PIPELINES_ENDPOINT is not set, and this is no pod.",
            fix='Name it: options = { host = "https://kubeflow.example.org/pipeline" }.\n'
            f"Or write the pipeline to a file, and submit that: upshift export kubeflow FILE --on {name}",
        )
    host = host or f"http://ml-pipeline.{SYSTEM}.svc.cluster.local:8888"
    token, file = None, None
    if said := options.get("token"):
        file = Path(said.partition(":")[2]).expanduser() if said.startswith("file:") else None
        token = None if file else _secret("token", said)
        if file is not None and not file.is_file():
            raise ConfigError(f"{owner}: token names {file}, which is no file")
    elif "cookies" not in options:
        path = Path(os.environ.get("KF_PIPELINES_SA_TOKEN_PATH") or _PROJECTED)
        file = path if path.is_file() else None
    cookies = options.get("cookies")
    return _Access(
        server=_address(owner, host),
        source=owner,
        authority=_authority(owner, options.get("ssl_ca_cert")),
        insecure=not options["verify_ssl"],
        token=token,
        token_file=file,
        cookies=None if cookies is None else _secret("cookies", cookies),
    )


def _address(owner: str, host: str) -> str:
    address = (host if "://" in host else f"https://{host}").rstrip("/")  # as kfp.Client
    try:
        url = urlsplit(address)
        known = url.scheme in ("http", "https") and url.hostname and url.port != 0
    except ValueError:
        known = False
    if not known:
        raise ConfigError(
            f"{owner}: host = {host!r} is no address of Kubeflow Pipelines",
            fix='Write host = "https://kubeflow.example.org/pipeline".',
        )
    return address


def _secret(name: str, source: str) -> str:
    try:
        return read_secret(name, source, project=os.getcwd()).strip()
    except RequestRefused as error:
        raise ConfigError(error.what, fix=error.fix) from None


def _authority(owner: str, path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(f"{owner}: ssl_ca_cert cannot be read: {path}: {error.strerror}") from None


class PipelinesApi(Api):
    """The API of Kubeflow Pipelines."""

    title: ClassVar[str] = "Kubeflow"
    distrusted: ClassVar[str] = "Name the file with its certificate in the options of {source}: ssl_ca_cert."

    def _final(self, status: int, text: str) -> bool:
        """Its own refusals of what it was sent have status 500, too, and name a code of gRPC."""
        return status == 500 and _code(text) is not None

    def _read_answer(self, status: int, text: str, method: str, path: str) -> Any:
        server, said = self.access.server, message_of(text)[:2000] or f"HTTP {status}"
        if status < 300:
            try:
                return json.loads(text) if text.strip() else {}
            except ValueError:
                raise BackendError(
                    f"{server} is no API of Kubeflow Pipelines",
                    why="It answers with a page: of Kubeflow itself, or one to log in.",
                    fix="Name the address of the pipelines in host, often with /pipeline at its end.\n"
                    "If it wants a login, name the token or the cookies of one, as for kfp.Client: "
                    'token = "env:KF_TOKEN".',
                ) from None
        if status == 404:
            raise Missing(said)
        if status == 409:
            raise Exists(said)
        if status == 401 or 300 <= status < 400:
            what = "does not know who asks" if status == 401 else "wants a login first"
            raise BackendError(
                f"Kubeflow at {server} {what}: {said}",
                why=f"The token of {self.access.source} is missing, not valid, or has expired.",
                fix='Get a new one, and name where it is: token = "env:KF_TOKEN" or "file:PATH".',
            )
        if status == 403:
            raise Forbidden(
                f"Kubeflow refuses it: {said}",
                why=f"Whoever has the token of {self.access.source} may not do that.",
                fix="Correct namespace, or ask whoever runs Kubeflow for the role kubeflow-edit in it.",
            )
        if status in BUSY and not (method != "GET" and self._final(status, text)):
            raise NotNow(f"Kubeflow does not answer at {server}: {said}")
        raise BackendError(f"Kubeflow refuses it: {said}")


def _code(text: str) -> int | None:
    """The code of gRPC in a refusal; None: it is from a proxy before it."""
    try:
        said = json.loads(text)
        return said["code"] if isinstance(said.get("message"), str) else None
    except (ValueError, KeyError, AttributeError, TypeError):
        return None
