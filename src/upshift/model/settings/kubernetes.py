"""What a step is told for Kubernetes, and for Kubeflow Pipelines, which knows a part of it."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import attrs

from upshift.errors import SettingsError, user_location
from upshift.model.checks import Told, bad_value, flag, line, number, refuse_unknown_fields, shown
from upshift.model.settings.sizes import FORMS, meant_by, parse_size

TMPFS_PATH = "/upshift_tmp"
"""Where a tmpfs is mounted unless a step says otherwise."""
OWN = "upshift"
"""What labels and annotations of Upshift's own begin with: ``upshift/run``."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL = re.compile(r"(?:[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"(?:[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?")
_PULLS = ("Always", "IfNotPresent", "Never")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_OF_TOLERATIONS = ("key", "operator", "value", "effect", "tolerationSeconds", "toleration_seconds")


def _bad(field: str, value: object, expected: str) -> SettingsError:
    return bad_value("KubernetesSettings", field, value, expected)


def _word(value: Any, field: Any) -> str | None:
    """The name of an object of the cluster."""
    if value is None:
        return None
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise _bad(field.name, value, "a name as Kubernetes has them: small letters, digits, '-' and '.'")
    return value


def _words(value: Any, field: Any) -> tuple[str, ...]:
    names = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, Sequence):
        raise _bad(field.name, value, 'a list of names: ["registry-login"]')
    for name in names:
        _word(name, field)
    return tuple(names)


def _one_of(*forms: str) -> Any:
    def convert(value: Any, field: Any) -> str | None:
        if value is None:
            return None
        found = next(
            (form for form in forms if isinstance(value, str) and value.lower() == form.lower()), None
        )
        if found is None:
            raise _bad(field.name, value, "one of " + ", ".join(map(repr, forms)))
        return found

    return Told(convert)


def _table(value: Any, field: str, form: str) -> Mapping[str, Any]:
    if isinstance(value, str) and value.strip():  # as the command line has it: NAME=VALUE,NAME=VALUE
        value = dict(part.partition("=")[::2] for part in value.split(","))
    if not isinstance(value, Mapping):
        raise _bad(field, value, form)
    return value


def _labels(value: Any, field: Any) -> dict[str, str]:
    table = _table(value, field.name, 'values by name: {"team": "ml"}')
    for name, said in table.items():
        if not isinstance(name, str) or not _LABEL.fullmatch(name):
            raise _bad(field.name, name, 'names as Kubernetes has them: "team", "example.org/team"')
        if not isinstance(said, str) or not _VALUE.fullmatch(said):
            expected = "text of at most 63 letters, digits, '-', '_' and '.', a letter or digit at both ends"
            raise _bad(f"{field.name}[{name!r}]", said, expected)
        if name.partition("/")[0] == OWN:
            raise SettingsError(
                f"KubernetesSettings: {field.name} has {shown(name)}",
                where=user_location(),
                why="Upshift finds its jobs by labels of that prefix.",
                fix="Choose another prefix.",
            )
    return dict(table)


def _selector(value: Any, field: Any) -> dict[str, str]:
    if isinstance(value, str) and value.strip() and "=" not in value:
        raise _bad(field.name, value, 'values by name: {"node.kubernetes.io/instance-type": "p5.48xlarge"}')
    return _labels(value, field)


def _annotations(value: Any, field: Any) -> dict[str, str]:
    table = _table(value, field.name, 'texts by name: {"example.org/owner": "ann"}')
    for name, said in table.items():
        if not isinstance(name, str) or not _LABEL.fullmatch(name) or not isinstance(said, str):
            raise _bad(f"{field.name}[{name!r}]", said, "text, by a name as Kubernetes has them")
    return dict(table)


def _tolerations(value: Any, field: Any) -> tuple[Mapping[str, Any], ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _bad(field.name, value, 'a list: [{"key": "dedicated", "operator": "Exists"}]')
    return tuple(_toleration(field.name, number, one) for number, one in enumerate(value))


def _toleration(field: str, number: int, one: Any) -> dict[str, Any]:
    where = f"{field}[{number}]"
    if not isinstance(one, Mapping) or not all(name in _OF_TOLERATIONS for name in one):
        raise _bad(where, one, f"a dict with some of {', '.join(_OF_TOLERATIONS[:5])}")
    said = {("tolerationSeconds" if name == "toleration_seconds" else name): v for name, v in one.items()}
    operator, effect, seconds = (
        said.get("operator", "Equal"),
        said.get("effect"),
        said.get("tolerationSeconds"),
    )
    if operator not in ("Equal", "Exists"):
        raise _bad(f"{where}['operator']", operator, "'Equal' or 'Exists'")
    if effect is not None and effect not in _EFFECTS:
        raise _bad(f"{where}['effect']", effect, f"one of {', '.join(_EFFECTS)}")
    if said.get("key") is None and operator != "Exists":
        raise _bad(where, one, 'a key; all taints are tolerated by {"operator": "Exists"}')
    if operator == "Exists" and said.get("value"):
        raise _bad(where, one, 'no value with the operator "Exists"')
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int)):
        raise _bad(f"{where}['tolerationSeconds']", seconds, "a whole number of seconds")
    if seconds is not None and effect != "NoExecute":
        raise _bad(where, one, 'the effect "NoExecute" where there are tolerationSeconds')
    texts = [said[name] for name in ("key", "value") if said.get(name) is not None]
    if not all(isinstance(text, str) for text in texts) or not all(map(_VALUE.fullmatch, texts[1:])):
        raise _bad(where, one, "key and value as text")
    if said.get("key") is not None and not _LABEL.fullmatch(said["key"]):
        raise _bad(f"{where}['key']", said["key"], 'a key such as "nvidia.com/gpu"')
    return {name: v for name, v in said.items() if v is not None}


def _claims(value: Any, field: Any) -> dict[str, str]:
    table = _table(value, field.name, 'mount paths by claim: {"team-data": "/data"}')
    for name, path in table.items():
        _word(name, field)
        _absolute(path, f"{field.name}[{name!r}]")
    if len(set(table.values())) < len(table):
        raise _bad(field.name, dict(table), "a path of its own for each claim")
    return dict(table)


def _absolute(value: Any, field: str) -> str:
    if (
        not isinstance(value, str)
        or not value.startswith("/")
        or value == "/"
        or re.search(r"[\s:]|/\.\.(/|$)", value)
    ):
        raise _bad(field, value, 'an absolute path: "/data"')
    return value.rstrip("/")


def _path(value: Any, field: Any) -> str | None:
    return None if value is None else _absolute(value, field.name)


def _json(value: Any, field: Any) -> Mapping[str, Any]:
    """A part of a manifest, as plain data."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = json.loads(value)
    if not isinstance(value, Mapping):
        raise _bad(field.name, value, "a dict, as in a manifest")
    try:
        plain = json.loads(json.dumps(value))
    except (TypeError, ValueError):
        raise _bad(field.name, value, "a dict of plain data, as in a manifest") from None
    if plain != _lists(value):
        raise _bad(field.name, value, "a dict whose keys are texts, as in a manifest")
    return dict(plain)


def _lists(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _lists(item) for name, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


def _patch(value: Any, field: Any) -> Mapping[str, Any]:
    patch = _json(value, field)
    unknown = patch.keys() - {"metadata", "spec"}
    if unknown:
        expected = 'a pod\'s "metadata" and "spec": {"spec": {"hostNetwork": True}}'
        raise _bad(field.name, dict(patch), expected)
    return patch


def _spreads(value: Any, field: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise _bad(field.name, value, "a list of constraints, as in a manifest")
    return tuple(_json(one, field) for one in value)


def _size(value: Any, field: Any) -> int | None:
    """Bytes; a bare number is MiB, as in Metaflow."""
    if value is None:
        return None
    try:
        size = parse_size(value, unit="MiB")
    except ValueError:
        size = 0
    if size < 10**6:
        raise bad_value(
            "KubernetesSettings", field.name, value, f"{FORMS}; a bare number is MiB", meant=meant_by(value)
        )
    return size


def _whole(most: int) -> Any:
    def convert(value: Any, field: Any) -> int | None:
        if value is None:
            return None
        return number("KubernetesSettings", field.name, value, most=most, whole=True)  # type: ignore[no-any-return]

    return Told(convert)


def _queue(value: Any, field: Any) -> str | None:
    if value is None:
        return None
    name = line("KubernetesSettings", field.name, value)
    if not _NAME.fullmatch(name) or len(name) > 63:
        raise _bad(field.name, value, "the name of a LocalQueue of Kueue's")
    return name


@refuse_unknown_fields
@attrs.frozen(kw_only=True)
class KubernetesSettings:
    """How a step runs in a pod, beside its resources: ``settings={"kubernetes": KubernetesSettings(…)}``.

    The options of a target of Kubernetes have the same names, and count where a step says nothing.

    Parameters
    ----------
    namespace
        Where its objects are made. Default: that of the kubeconfig's context, else ``"default"``.
    service_account
        As whom its pods act: how steps reach a bucket without keys.
    image_pull_secrets
        Secrets with the login of a registry.
    image_pull_policy
        ``"Always"``, ``"IfNotPresent"`` or ``"Never"``.
    secrets
        Secrets of the cluster of which each key becomes an environment variable. They are not masked in
        logs; those of ``@step(secrets={"HF_TOKEN": "k8s:hf/token"})`` are.
    node_selector
        Labels that its node has.
    tolerations
        Taints that it does not mind, as in a manifest. That of a device that it asks for is among them.
    affinity, topology_spread_constraints, security_context
        As in a manifest; the last one of its container.
    labels, annotations
        More of them, on jobs and pods.
    persistent_volume_claims
        Claims by name, and where each is mounted: ``{"team-data": "/data"}``.
    use_tmpfs, tmpfs_size, tmpfs_path, tmpfs_tempdir
        A folder in memory: whether there is one, how large (``"4GB"``, or MiB; default: half of the step's
        memory, which it is a part of), where (``"/upshift_tmp"``), and whether temporary files go there
        (default: True).
    priority_class, runtime_class
        Names of a PriorityClass and a RuntimeClass.
    queue
        A LocalQueue of Kueue's: the job is suspended until that admits all of its pods.
    jobset
        Whether a step on several nodes is a JobSet, which has to be installed in the cluster, in place of an
        Indexed Job with a Service.
    qos
        ``"Burstable"``: it may use more CPU than it asked for, where nobody else does. ``"Guaranteed"``: it
        may not, and is the last to be evicted.
    termination_grace
        Seconds between SIGTERM and SIGKILL where the cluster takes its pod down, for a last checkpoint.
        Default: the step's own grace and some more.
    efa
        Interfaces of AWS's Elastic Fabric Adapter.
    pod_patch
        What is changed of the pod at last, as ``kubectl patch --type strategic`` would: tables are merged key
        by key, lists of things with names by their names, None removes a key, anything else is replaced. The
        container is named ``step``: ``{"spec": {"containers": [{"name": "step", "stdin": True}]}}``.

    Raises
    ------
    SettingsError
        A field is unknown, or its value is invalid.
    """

    namespace: str | None = attrs.field(default=None, converter=Told(_word))
    service_account: str | None = attrs.field(default=None, converter=Told(_word))
    image_pull_secrets: tuple[str, ...] = attrs.field(default=(), converter=Told(_words))
    image_pull_policy: str | None = attrs.field(default=None, converter=_one_of(*_PULLS))
    secrets: tuple[str, ...] = attrs.field(default=(), converter=Told(_words))
    node_selector: Mapping[str, str] = attrs.field(factory=dict, converter=Told(_selector))
    tolerations: tuple[Mapping[str, Any], ...] = attrs.field(default=(), converter=Told(_tolerations))
    affinity: Mapping[str, Any] = attrs.field(factory=dict, converter=Told(_json))
    topology_spread_constraints: tuple[Mapping[str, Any], ...] = attrs.field(
        default=(), converter=Told(_spreads)
    )
    security_context: Mapping[str, Any] = attrs.field(factory=dict, converter=Told(_json))
    labels: Mapping[str, str] = attrs.field(factory=dict, converter=Told(_labels))
    annotations: Mapping[str, str] = attrs.field(factory=dict, converter=Told(_annotations))
    persistent_volume_claims: Mapping[str, str] = attrs.field(factory=dict, converter=Told(_claims))
    use_tmpfs: bool | None = attrs.field(default=None, converter=flag("KubernetesSettings"))
    tmpfs_size: int | None = attrs.field(default=None, converter=Told(_size))
    tmpfs_path: str | None = attrs.field(default=None, converter=Told(_path))
    tmpfs_tempdir: bool | None = attrs.field(default=None, converter=flag("KubernetesSettings"))
    priority_class: str | None = attrs.field(default=None, converter=Told(_word))
    runtime_class: str | None = attrs.field(default=None, converter=Told(_word))
    queue: str | None = attrs.field(default=None, converter=Told(_queue))
    jobset: bool | None = attrs.field(default=None, converter=flag("KubernetesSettings"))
    qos: str | None = attrs.field(default=None, converter=_one_of("Burstable", "Guaranteed"))
    termination_grace: int | None = attrs.field(default=None, converter=_whole(7 * 24 * 3600))
    efa: int | None = attrs.field(default=None, converter=_whole(64))
    pod_patch: Mapping[str, Any] = attrs.field(factory=dict, converter=Told(_patch))
    _elsewhere: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("cpu", "cpus"), "ResourceSettings(cpu_count=…)"),
        **dict.fromkeys(("gpu", "gpus"), "ResourceSettings(gpu_count=…)"),
        **{f: f"ResourceSettings({f}=…)" for f in ("memory", "disk", "shared_memory", "gpu_vendor")},
        "image": 'DockerSettings(parent_image="…")',
        "docker_image": 'DockerSettings(parent_image="…")',
        "volumes": "persistent_volume_claims, or mounts of the target",
        **dict.fromkeys(("pod_settings", "pod_spec"), "pod_patch"),
        **dict.fromkeys(("node_selectors",), "node_selector"),
        **dict.fromkeys(("service_account_name",), "service_account"),
        "kubernetes_namespace": "namespace",
        "priority_class_name": "priority_class",
        "runtime_class_name": "runtime_class",
        "compute_pool": "node_selector, or queue for one of Kueue's",
        "executable": "nothing: the Python of the image is found",
        "hostname_resolution_timeout": "nothing: nodes look for each other as long as the step may wait",
        "port": "main_process_port of @run_with_accelerate, if the default one is taken",
    }

    def __attrs_post_init__(self) -> None:
        said = [f for f in ("tmpfs_size", "tmpfs_path") if getattr(self, f)]
        if said and self.use_tmpfs is None:
            object.__setattr__(self, "use_tmpfs", True)  # who says how it is wants one
        if self.termination_grace == 0:
            raise _bad("termination_grace", 0, "at least 1 second, in which a step can save what it has")


def _as_kubernetes(value: Any, field: Any) -> Any:
    """As the field of the same name of ``KubernetesSettings``."""
    try:
        return getattr(KubernetesSettings(**{field.name: value}), field.name)
    except SettingsError as error:
        error.what = error.what.replace("KubernetesSettings", "KubeflowSettings")
        raise


def _as_table() -> Any:
    return attrs.field(factory=dict, converter=Told(_as_kubernetes))


def _as_default(value: Any) -> Any:
    return attrs.field(default=value, converter=Told(_as_kubernetes))


@refuse_unknown_fields
@attrs.frozen(kw_only=True)
class KubeflowSettings:
    """How a step runs in a pod of Kubeflow Pipelines: ``settings={"kubeflow": KubeflowSettings(…)}``.

    The options of a target of Kubeflow have the same names, and count where a step says nothing. Kubeflow has
    no means for what else :class:`KubernetesSettings` knows; an administrator's defaults for its pods have.

    Parameters
    ----------
    node_selector
        Labels that its node has.
    tolerations
        Taints that it does not mind, as in a manifest. That of a device that it asks for is among them.
    labels, annotations
        More of them, on its pod.
    image_pull_secrets
        Secrets with the login of a registry.
    image_pull_policy
        ``"Always"``, ``"IfNotPresent"`` or ``"Never"``.
    persistent_volume_claims
        Claims by name, and where each is mounted: ``{"team-data": "/data"}``.

    Raises
    ------
    SettingsError
        A field is unknown, or its value is invalid.
    """

    node_selector: Mapping[str, str] = _as_table()
    tolerations: tuple[Mapping[str, Any], ...] = _as_default(())
    labels: Mapping[str, str] = _as_table()
    annotations: Mapping[str, str] = _as_table()
    image_pull_secrets: tuple[str, ...] = _as_default(())
    image_pull_policy: str | None = _as_default(None)
    persistent_volume_claims: Mapping[str, str] = _as_table()
    _elsewhere: ClassVar[dict[str, str]] = {
        "node_selectors": "node_selector",
        "volumes": "persistent_volume_claims",
        **dict.fromkeys(("cpu", "cpus"), "ResourceSettings(cpu_count=…)"),
        **dict.fromkeys(("gpu", "gpus"), "ResourceSettings(gpu_count=…)"),
        **{f: f"ResourceSettings({f}=…)" for f in ("memory", "shared_memory", "gpu_vendor")},
        "image": 'DockerSettings(parent_image="…")',
        "secrets": '@step(secrets={"HF_TOKEN": "k8s:hf/token"})',
        "pod_settings": "the fields of the pod themselves: node_selector, tolerations, …",
    }
