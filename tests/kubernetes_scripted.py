"""An API server as a script: it keeps objects, tells watches of them, and runs pods as processes here.

What a real one does and this does not: scheduling, quotas, rights, images. A test says what a pod is to wait
for (:attr:`Scripted.hold`), and what requests are to be answered with (:attr:`Scripted.faults`).
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

KINDS = {
    "jobs": "Job",
    "jobsets": "JobSet",
    "pods": "Pod",
    "secrets": "Secret",
    "services": "Service",
    "events": "Event",
    "nodes": "Node",
    "workloads": "Workload",
}
UNSCHEDULABLE: Mapping[str, Any] = {
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/1 nodes are available: 1 Insufficient cpu.",
        }
    ]
}
"""The status of a pod for which no node has room."""
Fault = Callable[[str, str], "tuple[int, str] | None"]
"""Given method and path: what to answer in place of the truth; None: the truth."""


def node(name: str = "here", **has: str) -> dict[str, Any]:
    """A node that has much."""
    allocatable = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "500Gi", "pods": "250", **has}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
    }


class Scripted:
    """The server, its objects and the processes of its pods."""

    def __init__(self, folder: Path, home: Path | None = None, *, runs: bool = True) -> None:
        folder.mkdir(exist_ok=True)
        self._home = home or folder / "home"
        self._changed = threading.Condition(threading.RLock())
        self._objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self._history: list[tuple[int, str, str, str, dict[str, Any]]] = []  # version, type, kind, namespace
        self._version = 100
        self._oldest = 0  # version up to which history is forgotten
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._folder = folder
        self._runs = runs  # whether pods have processes; otherwise they look as if they had
        self.watches = 0  # that are open
        self._running = 0  # pods that have a process now
        self._closed = False
        self._epoch = 0  # watches of earlier ones end
        self.faults: list[Fault] = []
        self.hold: Callable[[dict[str, Any]], Mapping[str, Any] | None] = lambda pod: None
        self.room: int | None = None  # pods that run at once; None: any number
        self.lose: Callable[[str, str], bool] = lambda method, path: False  # the first answer to these
        self.may: Callable[[Mapping[str, str]], bool] = lambda attributes: True  # who asks do this
        self.lets: Callable[[str, Mapping[str, str]], bool] = lambda user, asked: True  # of other accounts
        self.asked: list[tuple[str, str]] = []
        self.put("nodes", "", node())
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # an answer is more than one packet

            def do_GET(self) -> None:
                outer._answer(self)

            do_POST = do_DELETE = do_PATCH = do_GET  # noqa: N815

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "current-context": "here",
                    "clusters": [
                        {"name": "c", "cluster": {"server": f"http://127.0.0.1:{self._server.server_port}"}}
                    ],
                    "users": [{"name": "u", "user": {"token": "of the test"}}],
                    "contexts": [
                        {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}
                    ],
                }
            )
        )

    # -- what a test does --------------------------------------------------------------------------

    def put(
        self, kind: str, namespace: str, item: dict[str, Any], *, change: str = "ADDED"
    ) -> dict[str, Any]:
        """Make or change an object, and tell whoever watches."""
        with self._changed:
            self._version += 1
            meta = item["metadata"]
            meta |= {"resourceVersion": str(self._version), **({"namespace": namespace} if namespace else {})}
            meta.setdefault("uid", f"uid-{self._version}")
            meta.setdefault("creationTimestamp", f"2026-01-01T00:00:00.{self._version:06}Z")
            key = (kind, namespace, meta["name"])
            if change == "DELETED":
                self._objects.pop(key, None)
            else:
                self._objects[key] = item
            self._history.append((self._version, change, kind, namespace, json.loads(json.dumps(item))))
            self._changed.notify_all()
        return item

    def all(self, kind: str) -> list[dict[str, Any]]:
        """The objects of a kind."""
        with self._changed:
            return [item for key, item in self._objects.items() if key[0] == kind]

    @property
    def ran(self) -> int:
        """How many pods have had a process."""
        return len(self._processes)

    def change(self, kind: str, name: str, **status: Any) -> None:
        """Change the status of an object."""
        with self._changed:
            (item,) = (one for one in self.all(kind) if one["metadata"]["name"] == name)
            item.setdefault("status", {}).update(status)
            self.put(kind, item["metadata"].get("namespace", ""), item, change="MODIFIED")

    def workload(self, message: str) -> None:
        """Have Kueue here, which says this of whatever waits."""
        held = [{"type": "QuotaReserved", "status": "False", "message": message}]
        self.put("workloads", "ml", {"metadata": {"name": "w"}, "status": {"conditions": held}})

    def admit(self, job: str) -> None:
        """Let the pods of a suspended Job run, as Kueue does."""
        with self._changed:
            (item,) = (one for one in self.all("jobs") if one["metadata"]["name"] == job)
            item["spec"]["suspend"] = False
            self.put("jobs", item["metadata"]["namespace"], item, change="MODIFIED")
        threading.Thread(target=self._control, args=("jobs", item), daemon=True).start()

    def evict(self, job: str) -> None:
        """Suspend a Job again and take its pods down, as Kueue does with one that it evicts."""
        with self._changed:
            (item,) = (one for one in self.all("jobs") if one["metadata"]["name"] == job)
            item["spec"]["suspend"] = True
            self.put("jobs", item["metadata"]["namespace"], item, change="MODIFIED")
            for pod in self.all("pods"):
                self._delete("pods", pod["metadata"]["namespace"], pod)

    def remove(self, kind: str, name: str) -> None:
        """Delete an object, as somebody does."""
        with self._changed:
            (item,) = (one for one in self.all(kind) if one["metadata"]["name"] == name)
            self._delete(kind, item["metadata"]["namespace"], item)

    def forget(self) -> None:
        """Know nothing of what was, as a server does after a while: watches from before are Gone."""
        with self._changed:
            self._oldest = self._version
        self.drop()

    def drop(self) -> None:
        """Break all watches, as a restart does."""
        with self._changed:
            self._epoch += 1
            self._changed.notify_all()

    def kill(self, pod: str) -> None:
        """Kill the process of a pod."""
        self._processes[pod].kill()

    def close(self) -> None:
        """End everything."""
        with self._changed:
            self._closed = True
            self._epoch += 1
            self._changed.notify_all()
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._server.shutdown()
        self._server.server_close()

    # -- requests ----------------------------------------------------------------------------------

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        url = urlsplit(handler.path)
        length = int(handler.headers.get("Content-Length") or 0)
        content = json.loads(handler.rfile.read(length) or b"null")
        self.asked.append((handler.command, url.path))
        for fault in list(self.faults):
            found = fault(handler.command, handler.path)
            if found is not None:
                if found[0] == 0:
                    handler.close_connection = True
                    return
                _say(handler, found[0], {"kind": "Status", "message": found[1], "code": found[0]})
                return
        query = dict(parse_qsl(url.query))
        if query.get("watch"):
            self._watch(handler, url.path, query)
            return
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            with self._changed:
                status, answer = self._do(handler.command, url.path, query, content)
            if not query.get("dryRun") and self.lose(handler.command, url.path):
                self.lose = lambda method, path: False
                status, answer = 500, {"message": "the answer is lost"}
            _say(handler, status, answer)

    def _do(self, method: str, path: str, query: Mapping[str, str], content: Any) -> tuple[int, Any]:
        if path == "/version":
            return 200, {"gitVersion": "v1.36.0-scripted"}
        if path == "/apis/kueue.x-k8s.io" and self.all("workloads"):
            return 200, {"preferredVersion": {"groupVersion": "kueue.x-k8s.io/v1beta2"}}
        if path.endswith("selfsubjectaccessreviews"):
            return 201, {
                **content,
                "status": {"allowed": self.may(content["spec"]["resourceAttributes"])},
            }
        if path.endswith("/subjectaccessreviews"):
            about = content["spec"]
            return 201, {
                **content,
                "status": {"allowed": self.lets(about["user"], about["resourceAttributes"])},
            }
        kind, namespace, name = _place(path)
        if kind not in KINDS:
            return 404, {"message": "the server could not find the requested resource"}
        if path.endswith("/log"):
            log = self._folder / f"{name}.log"
            return (200, log.read_text()) if log.exists() else (404, {"message": "no log"})
        item = self._objects.get((kind, namespace, name)) if name else None
        if method == "POST":
            name = content["metadata"]["name"]
            if (kind, namespace, name) in self._objects:
                return 409, {"message": f'{kind} "{name}" already exists'}
            if query.get("dryRun"):
                return 201, content
            made = self.put(kind, namespace, content)
            if kind == "jobs" and not self._runs:
                self._look_busy(made)
            elif kind in ("jobs", "jobsets") and not made["spec"].get("suspend"):
                threading.Thread(target=self._control, args=(kind, made), daemon=True).start()
            return 201, made
        if method == "GET" and not name:
            chosen = [one for one in self._listed(kind, namespace) if _matches(one, query)]
            if kind == "workloads":
                chosen = self._listed(kind, namespace)
            return 200, {"items": chosen, "metadata": {"resourceVersion": str(self._version)}}
        if item is None:
            return 404, {"message": f'{kind} "{name}" not found'}
        if method == "PATCH":
            for part, change in content.items():
                item.setdefault(part, {}).update(change)
            return 200, self.put(kind, namespace, item, change="MODIFIED")
        if method == "DELETE":
            self._delete(kind, namespace, item)
            return 200, {"status": "Success"}
        return 200, item

    def _listed(self, kind: str, namespace: str) -> list[dict[str, Any]]:
        return [item for key, item in self._objects.items() if key[0] == kind and key[1] in (namespace, "")]

    def _watch(self, handler: BaseHTTPRequestHandler, path: str, query: Mapping[str, str]) -> None:
        kind, namespace, _ = _place(path)
        version, epoch = int(query["resourceVersion"]), self._epoch
        if version < self._oldest:
            _say(handler, 410, {"message": "too old resource version"})
            return
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        self.watches += 1
        with contextlib.suppress(OSError):
            while True:
                with self._changed:
                    while self._epoch == epoch and self._version <= version:
                        self._changed.wait()
                    if self._epoch != epoch:
                        break
                    new = [one for one in self._history if one[0] > version]
                    version = self._version
                for _, change, of, where, item in new:
                    if of == kind and where == namespace and _matches(item, query):
                        line = json.dumps({"type": change, "object": item}).encode() + b"\n"
                        handler.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            handler.close_connection = True
        self.watches -= 1

    # -- what controllers and kubelets do -----------------------------------------------------------

    def _control(self, kind: str, job: dict[str, Any]) -> None:
        """Have the pods of a Job run, or of the one Job of a JobSet, and say how it ended."""
        done = "Complete"
        whole = job
        if kind == "jobsets":
            (only,) = job["spec"]["replicatedJobs"]
            name = f"{job['metadata']['name']}-{only['name']}-0"
            job = {
                "metadata": {**job["metadata"], "name": name},
                "spec": only["template"]["spec"],
            }
            done = "Completed"
        spec, meta = job["spec"], whole["metadata"]
        count = spec.get("completions") or 1
        codes: dict[int, int] = {}
        threads = []
        for number in range(count):
            thread = threading.Thread(
                target=lambda number=number: codes.update({number: self._pod(job, number)}), daemon=True
            )
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join()
        with self._changed:
            if (kind, meta["namespace"], meta["name"]) not in self._objects or self._closed:
                return
            failed = any(codes.values())
            self.change(
                kind,
                meta["name"],
                conditions=[
                    {
                        "type": "Failed" if failed else done,
                        "status": "True",
                        "message": "as it was told",
                    }
                ],
            )

    def _look_busy(self, job: dict[str, Any]) -> None:
        """Have a pod for each of a Job's, with all that a real one says of itself but a process."""
        template, meta = job["spec"]["template"], job["metadata"]
        for number in range(job["spec"].get("completions") or 1):
            name = f"{meta['name']}-{number}-abcde"
            labels = {
                **template["metadata"]["labels"],
                "batch.kubernetes.io/job-completion-index": str(number),
            }
            conditions = [
                {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
                for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "PodScheduled")
            ]
            running = {"name": "step", "ready": True, "state": {"running": {"startedAt": "now"}}}
            status = {
                "phase": "Running",
                "startTime": "now",
                "conditions": conditions,
                "containerStatuses": [running],
            }
            pod = {
                "metadata": {"name": name, "labels": labels},
                "spec": {**template["spec"], "nodeName": "here"},
            }
            self.put("pods", meta["namespace"], {**pod, "status": status})

    def _pod(self, job: dict[str, Any], number: int) -> int:
        template, meta = job["spec"]["template"], job["metadata"]
        name = f"{meta['name']}-{number}-{os.urandom(2).hex()}"
        pod = self.put(
            "pods",
            meta["namespace"],
            {
                "metadata": {
                    "name": name,
                    "labels": {
                        **template["metadata"]["labels"],
                        "batch.kubernetes.io/job-completion-index": str(number),
                    },
                },
                "spec": {**template["spec"], "nodeName": "here"},
                "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]},
            },
        )
        with self._changed:
            while not self._closed and ("pods", meta["namespace"], name) in self._objects:
                waits = self.hold(pod)
                if waits is None and self.room is not None and self._running >= self.room:
                    waits = UNSCHEDULABLE
                if waits is None:
                    break
                if any(pod["status"].get(field) != value for field, value in waits.items()):
                    self.change("pods", name, **waits)
                self._changed.wait(0.05)
            if self._closed or ("pods", meta["namespace"], name) not in self._objects:
                return 1
            process = self._start(pod, number)
            self._processes[name] = process
            self._running += 1
            self.change(
                "pods",
                name,
                phase="Running",
                startTime="now",
                containerStatuses=[{"name": "step", "state": {"running": {}}}],
            )
        code = process.wait()
        with self._changed:
            self._running -= 1
            if ("pods", meta["namespace"], name) in self._objects and not self._closed:
                said = (self._folder / f"{name}.log").read_text()[-2000:] if code else ""
                ended = {"exitCode": code if code >= 0 else 128 - code, "message": said, "finishedAt": "now"}
                self.change(
                    "pods",
                    name,
                    phase="Failed" if code else "Succeeded",
                    containerStatuses=[{"name": "step", "state": {"terminated": ended}}],
                )
        return code

    def _start(self, pod: dict[str, Any], number: int) -> subprocess.Popen[bytes]:
        container, name = pod["spec"]["containers"][0], pod["metadata"]["name"]
        home = self._home  # of all pods: the runtime is unpacked, and compiled, once
        home.mkdir(exist_ok=True)
        environment = {key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}
        for one in container["envFrom"]:
            secret = self._objects[("secrets", pod["metadata"]["namespace"], one["secretRef"]["name"])]
            environment |= secret.get("stringData", {})
            environment |= {k: base64.b64decode(v).decode() for k, v in secret.get("data", {}).items()}
        environment |= {one["name"]: one["value"] for one in container["env"] if "value" in one}
        for variable in ("HOME", "UPSHIFT_NODE_HOME"):
            environment[variable] = str(home)
        if pod["spec"].get("automountServiceAccountToken"):
            environment["KUBECONFIG"] = str(self.kubeconfig)
        environment["JOB_COMPLETION_INDEX"] = str(number)
        environment["UPSHIFT_NODE_NAME"] = "here"
        if "UPSHIFT_MAIN_NODE" in environment:
            environment["UPSHIFT_MAIN_NODE"] = "127.0.0.1"
        command = [part.replace("$$(", "$(") for part in container["command"]]
        if command[0] == "python3":
            command[0] = sys.executable
        with open(self._folder / f"{name}.log", "wb") as log:
            return subprocess.Popen(
                command,
                env=environment,
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _delete(self, kind: str, namespace: str, item: dict[str, Any]) -> None:
        name = item["metadata"]["name"]
        self.put(kind, namespace, item, change="DELETED")
        if kind == "pods" and name in self._processes:
            with contextlib.suppress(ProcessLookupError):
                self._processes[name].send_signal(signal.SIGTERM)
        for owned in ("pods", "secrets", "services") if kind in ("jobs", "jobsets") else ():
            for one in list(self._listed(owned, namespace)):
                if one["metadata"].get("labels", {}).get("upshift/job") == name:
                    self._delete(owned, namespace, one)


def _place(path: str) -> tuple[str, str, str]:
    """Kind, namespace and name of a path."""
    parts = path.strip("/").split("/")
    parts = parts[3:] if parts[0] == "apis" else parts[2:]
    namespace = parts[1] if parts[:1] == ["namespaces"] and len(parts) > 2 else ""
    rest = parts[2:] if namespace else parts
    return (rest[0] if rest else ""), namespace, (rest[1] if len(rest) > 1 else "")


def _matches(item: Mapping[str, Any], query: Mapping[str, str]) -> bool:
    labels = item["metadata"].get("labels", {})
    wanted = dict(part.split("=") for part in query.get("labelSelector", "").split(",") if part)
    if any(labels.get(name) != value for name, value in wanted.items()):
        return False
    field = query.get("fieldSelector", "")
    return not field or item.get("involvedObject", {}).get("uid") == field.partition("=")[2]


def _say(handler: BaseHTTPRequestHandler, status: int, answer: Any) -> None:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(text.encode())))
    if status == 429:
        handler.send_header("Retry-After", "0.05")
    handler.end_headers()
    handler.wfile.write(text.encode())


@contextlib.contextmanager
def scripted(home: Path | None = None) -> Iterator[Scripted]:
    """A server, for as long as it is needed; ``home`` is a folder of its node that outlives it."""
    folder = Path(tempfile.mkdtemp(prefix="upshift-scripted-"))
    server = Scripted(folder, home)
    try:
        yield server
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)
