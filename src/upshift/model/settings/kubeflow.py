"""What a step is told for Kubeflow Pipelines alone: :class:`KubeflowSettings`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

from upshift.errors import SettingsError
from upshift.model.settings.fields import Told, refuse_unknown_fields
from upshift.model.settings.kubernetes import KubernetesSettings


def _as_kubernetes(value: Any, field: Any) -> Any:
    """As the field of the same name of ``KubernetesSettings``."""
    try:
        return getattr(KubernetesSettings(**{field.name: value}), field.name)
    except SettingsError as error:
        error.what = error.what.replace("KubernetesSettings", "KubeflowSettings")
        raise


def _table() -> Any:
    return attrs.field(factory=dict, converter=Told(_as_kubernetes))


def _default(value: Any) -> Any:
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

    node_selector: Mapping[str, str] = _table()
    tolerations: tuple[Mapping[str, Any], ...] = _default(())
    labels: Mapping[str, str] = _table()
    annotations: Mapping[str, str] = _table()
    image_pull_secrets: tuple[str, ...] = _default(())
    image_pull_policy: str | None = _default(None)
    persistent_volume_claims: Mapping[str, str] = _table()
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

    @classmethod
    def elsewhere(cls, name: str) -> str | None:
        """What says here what is said by this name elsewhere."""
        return cls._elsewhere.get(name)
