"""Runs an exported pipeline by ``kfp.local``, in real containers: ``python run_kubeflow.py FILE JSON``.

In the Python that has ``kfp``. The JSON has ``arguments`` of the pipeline, the ``environment`` of its pods,
and the folder ``root`` for what they say to each other; without that it is only checked. The SDK loads the
file as it does before it submits one: what its own schema does not know is refused.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml
from docker.models.containers import Container, ContainerCollection
from google.protobuf import json_format
from kfp import components, local
from kfp.kubernetes import kubernetes_executor_config_pb2


def checked_platforms(text: str) -> None:
    """Refuse what Kubeflow's form of what only Kubernetes has does not know."""
    for document in list(yaml.safe_load_all(text))[1:]:
        executors = document["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
        for said in executors.values():
            json_format.ParseDict(said, kubernetes_executor_config_pb2.KubernetesExecutorConfig())


def keep_exit_codes() -> None:
    """Have containers removed once it is known how they ended.

    ``kfp.local`` lets Docker remove them, and takes one for completed that is gone before it has asked.
    """
    run, wait = ContainerCollection.run, Container.wait

    def kept(self: ContainerCollection, *args: Any, **options: Any) -> Any:
        return run(self, *args, **{**options, "auto_remove": False})

    def removed(self: Container, **options: Any) -> Any:
        ended = wait(self, **options)
        self.remove(v=True)
        return ended

    ContainerCollection.run, Container.wait = kept, removed


def main(file: str, said: str) -> None:
    text, given = Path(file).read_text(), json.loads(said)
    checked_platforms(text)
    pipeline = components.load_component_from_text(text)
    if "root" not in given:
        return
    keep_exit_codes()
    local.init(
        local.DockerRunner(network_mode="host", environment=given["environment"]),
        pipeline_root=given["root"],
        raise_on_error=False,
    )
    pipeline(**given.get("arguments", {}))


if __name__ == "__main__":
    main(*sys.argv[1:])
