"""The dashboard of a Ray cluster, by HTTP as ``ray job submit`` speaks it; and the nodes it lists."""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import attrs

from upshift.backends.base import Finding, Offer
from upshift.backends.scheduler import NotNow
from upshift.backends.shapes import Fit, counted, devices_finding, largest
from upshift.errors import BackendError, ConfigError, RequestRefused
from upshift.model.settings.accelerator import Wanted
from upshift.model.settings.resources import ResourceSettings
from upshift.model.settings.sizes import format_size
from upshift.model.spec.hardware import SCHEDULER, SUPERVISOR, Device, Hardware
from upshift.runtime.storage.objects.connections import Connections, Stale

DEFAULT = "http://127.0.0.1:8265"
TYPE = "accelerator_type:"
"""What the resource is called by which a node says of which type its accelerators are."""
SILENCE = 30.0
"""Seconds after which an answer is not waited for any more."""
_BUSY = frozenset({408, 429, 502, 503, 504})
_REFUSAL = "status code 400"
"""What the dashboard says, with status 500, where its agent has answered that the request is invalid."""
_OF_RAY = re.compile(rf"CPU|GPU|memory|object_store_memory|node:.*|{TYPE}.*")
_PLAIN = re.compile(r"[\w./-]+")


class Unknown(Exception):
    """The dashboard has nothing of that name."""


class Dashboard:
    """What answers at an address. Threads may share it."""

    def __init__(self, address: str, environ: Mapping[str, str] = os.environ) -> None:
        self.address = address
        self._url = urlsplit(address)
        self._connections = Connections(silence=SILENCE)
        token = token_of(environ)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def ask(self, method: str, path: str, content: Any = None) -> Any:
        """What it answers.

        Raises
        ------
        Unknown
            It has nothing there.
        BackendError
            It refuses.
        NotNow
            It does not answer.
        """
        body = [] if content is None else [memoryview(json.dumps(content).encode())]
        headers = {**self._headers, **({"Content-Type": "application/json"} if body else {})}
        try:
            status, answer = self._answer(method, path, headers, body)
        except (ssl.SSLCertVerificationError, ConfigError) as error:
            raise BackendError(f"{self.address} cannot be trusted: {error}") from None
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise NotNow(f"Ray does not answer at {self.address}: {why}") from None
        if status == 404:
            raise Unknown(path)
        if status in (401, 403):
            raise BackendError(
                f"Ray at {self.address} wants to know who asks, or refuses to answer: HTTP {status}",
                fix="Set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, as for ray job submit.",
            )
        if status in _BUSY or (status == 500 and _REFUSAL not in answer and "already exists" not in answer):
            raise NotNow(f"Ray does not answer at {self.address}: HTTP {status}, {_last(answer)}")
        if status >= 300:
            raise BackendError(f"Ray refuses it: {_last(answer)}")
        try:
            return json.loads(answer)
        except ValueError:
            raise BackendError(
                f"{self.address} is no dashboard of Ray's",
                why=f"It answers {path} with something else.",
                fix="Name the address of the dashboard, port 8265 unless told otherwise.",
            ) from None

    def _answer(
        self, method: str, path: str, headers: Mapping[str, str], body: list[memoryview]
    ) -> tuple[int, str]:
        length = {"Content-Length": str(sum(map(len, body)))} if method != "GET" else {}
        while True:
            try:
                with self._connections.response(
                    method, self._url, f"{self._url.path.rstrip('/')}{path}", {**headers, **length}, body
                ) as response:
                    return response.status, response.read().decode(errors="replace")
            except Stale:  # it closed a connection that had been kept: nothing was asked
                continue

    def close(self) -> None:
        """Close its connections."""
        self._connections.close()


def address_of(said: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """The address of the dashboard: as it was said, or as ``ray job submit`` finds it.

    Raises
    ------
    ConfigError
        It is another one of Ray's addresses, or none.
    """
    named = said or environ.get("RAY_API_SERVER_ADDRESS")
    if named is None:
        other = environ.get("RAY_ADDRESS", "")
        named = other if other.startswith(("http://", "https://")) else DEFAULT
    address = named if "://" in named else f"http://{named}"
    try:
        url: SplitResult | None = urlsplit(address)
        known = url is not None and url.scheme in ("http", "https") and url.hostname and url.port != 0
    except ValueError:
        known = False
    if not known:
        raise ConfigError(
            f"{named!r} is no address of a dashboard of Ray's",
            why="Jobs are submitted by HTTP, not through the port of Ray's client or of its store.",
            fix='Write address = "http://HEAD:8265".',
        )
    return address.rstrip("/")


def token_of(environ: Mapping[str, str]) -> str | None:
    """The token of a cluster with authentication, from where Ray's own commands have it."""
    if environ.get("RAY_AUTH_MODE") == "disabled":
        return None
    if environ.get("RAY_AUTH_TOKEN"):
        return environ["RAY_AUTH_TOKEN"].strip()
    path = environ.get("RAY_AUTH_TOKEN_PATH") or os.path.expanduser("~/.ray/auth_token")
    try:
        return Path(path).read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _last(text: str) -> str:
    """The last line of an answer: of a trace, what was wrong."""
    lines = [line.strip() for line in text.replace("\\n", "\n").splitlines() if line.strip()]
    return lines[-1][:500] if lines else "nothing more is said"


@attrs.frozen(kw_only=True)
class Node:
    """A node that is up."""

    name: str
    cpus: float
    memory: int  # bytes that Ray hands out
    gpus: int
    kind: str | None  # of its GPUs, as Ray calls it; None: it has not said
    resources: Mapping[str, float]  # the cluster's own
    labels: Mapping[str, str]

    @property
    def accelerators(self) -> int:
        """Its GPUs."""
        return self.gpus

    def __str__(self) -> str:
        gpus = f", {self.gpus} × {self.kind or 'GPU'}" if self.gpus else ""
        own = "".join(f", {amount:g} × {name}" for name, amount in self.resources.items())
        return f"{self.name} with {self.cpus:g} CPUs, {format_size(self.memory)} of memory{gpus}{own}"


def read_nodes(listed: Iterable[Mapping[str, Any]]) -> tuple[Node, ...]:
    """What ``/api/v0/nodes`` lists (``NodeState`` of ``ray.util.state``), of those that are alive."""
    return tuple(_node(node) for node in listed if node["state"] == "ALIVE")


def offer(
    request: ResourceSettings,
    said: Mapping[str, Any],
    nodes: Sequence[Node],
    *,
    grows: bool = False,
    avoid: Iterable[str] = (),
) -> Offer:
    """What a request gets, where it is submitted with these settings.

    Parameters
    ----------
    grows
        Whether an autoscaler may add nodes that are larger than those that are there.
    avoid
        Names of nodes that are not to be used, if there are enough others.

    Raises
    ------
    RequestRefused
        No node has a resource or a label that the settings name.
    """
    most = largest(nodes)
    why = "the cluster has no nodes" if most is None else f"its largest node is {most}"
    fit = Fit(request=request, nodes=nodes, why=why, unknown=grows)
    (cpus, memory), fits = fit.sizes("cpu_count", "memory")
    lacking = [] if grows else _lacking(said, nodes)
    if lacking:
        raise RequestRefused(f"no node of the cluster has {lacking[0]}", why=_listed(nodes))
    fits = [node for node in fits if not _lacking(said, [node])]
    gpus: tuple[Device, ...] | None = None if request.gpu_count is None else ()
    if request.gpu_count:
        gpus = fit.devices(
            (node.kind for node in fits),
            lambda devices: sum(_has(node, devices) for node in fits),
            added=_added if grows else lambda wanted: (),
        )
        if not gpus and not fit.short:
            untold = any(node.gpus and node.kind is None for node in nodes)
            more = "; it does not say of which type all of its GPUs are: gpu_count alone asks for any"
            fit.lacks_devices(why + (more if untold else ""))
    fit.confirm(fits)
    count, avoids = fit.spread(
        [node for node in fits if _has(node, gpus or ())], avoid, room=lambda some: _room(some, nodes)
    )
    for field, reason in (
        ("disk", "Ray does not hand out disk"),
        ("shared_memory", "/dev/shm is that of the node, and Ray hands out none of it"),
    ):
        value = getattr(request, field)
        if value is not None:
            fit.lacks(field, format_size(value), "no promise", reason)
    granted = Hardware(cpu_count=cpus, memory=memory, gpus=gpus, nodes=count)
    return fit.offer(granted, avoids, cpu=SCHEDULER, memory=SUPERVISOR)


def findings(nodes: Sequence[Node]) -> Iterator[Finding]:
    """What a job meets now: nodes, and their devices."""
    most = largest(nodes)
    if most is None:
        yield Finding(name="nodes", text="none is up", status="problem", remedy="Start some: ray start.")
        return
    yield Finding(name="nodes", text=f"{counted(nodes)}, the largest {most}")
    yield devices_finding({node.kind or "GPU": node.gpus} for node in nodes)


def _lacking(said: Mapping[str, Any], nodes: Sequence[Node]) -> list[str]:
    """The resources and labels of these that no node has; of labels, values that are no selectors."""
    return [
        *(
            f"{amount:g} × {name}"
            for name, amount in said.get("resources", {}).items()
            if not any(node.resources.get(name, 0) >= amount for node in nodes)
        ),
        *(
            f"label {name}={value}"
            for name, value in said.get("labels", {}).items()
            if _PLAIN.fullmatch(value) and not any(node.labels.get(name) == value for node in nodes)
        ),
    ]


def _listed(nodes: Sequence[Node]) -> str:
    if not nodes:
        return "It has no nodes."
    return "Its nodes: " + "; ".join(sorted({str(node) for node in nodes})[:8]) + "."


def _has(node: Node, devices: Sequence[Device]) -> bool:
    """Whether a node has so many of these devices."""
    model = devices[0].model if devices else None
    return node.gpus >= len(devices) and model in (None, node.kind)


def _room(some: Sequence[Node], nodes: Sequence[Node]) -> tuple[int, str]:
    has = "what is asked for on each" if some else "what is asked for"
    return len(some), f"no more nodes of the cluster have {has}. {_listed(nodes)}"


def _added(wanted: Wanted) -> tuple[Device, ...]:
    """Devices of a node that an autoscaler may add: any, or those of a kind."""
    if wanted.partition is not None or wanted.memory is not None:
        return ()
    if wanted.kind is not None:
        kind = wanted.kind
        return (Device(vendor=kind.vendor, model=kind.name, kind=kind.name),) * wanted.count
    return (Device(),) * wanted.count if wanted.name is None and wanted.vendor is None else ()


def _node(record: Mapping[str, Any]) -> Node:
    total = record["resources_total"]
    return Node(
        name=record["node_ip"],
        cpus=total.get("CPU", 0),
        memory=int(total.get("memory", 0)),
        gpus=int(total.get("GPU", 0)),
        kind=next((name.removeprefix(TYPE) for name in total if name.startswith(TYPE)), None),
        resources={name: amount for name, amount in total.items() if not _OF_RAY.fullmatch(name)},
        labels=record.get("labels") or {},
    )
