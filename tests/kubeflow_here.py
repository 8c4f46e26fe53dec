"""A stand-in for the API server of Kubeflow Pipelines; its runs are done by ``kfp.local``, or not at all.

Paths, fields and errors are those of ``backend/api/v2beta1/swagger/kfp_api_single_file.swagger.json``,
kubeflow/pipelines 2.17.0 (7b70c7b, August 2026): snake_case, as its marshaler writes them
(``backend/src/apiserver/common/utils.go``), and errors as grpc-gateway makes them.
What a run's tasks wait for is in the workflow of Argo, which the older ``/apis/v1beta1/runs/ID`` has.

What a real one does and this does not: pods of Kubernetes, its database, users by more than one token.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import attrs

Fault = Callable[[str, str], "tuple[int, str] | None"]
"""Given method and path: what to answer in place of the truth; None: the truth."""
_RUN_FIELDS = {
    *("experiment_id", "display_name", "description", "pipeline_spec", "pipeline_version_reference"),
    *("runtime_config", "service_account"),
}
_CODES = {400: 3, 401: 16, 403: 7, 404: 5, 409: 6, 500: 13, 503: 14}
_TIME = "2026-11-25T01:02:03Z"
OVER = ("SUCCEEDED", "FAILED", "CANCELED")


class Refused(Exception):
    """What it answers with another status than 200."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def error(status: int, message: str) -> tuple[int, str]:
    """An answer as the server makes it of an error."""
    said = {"error": message, "code": _CODES[status], "message": message, "details": []}
    return status, json.dumps(said)


@attrs.frozen
class Local:
    """What really does a run: ``kfp.local`` in containers, or processes of this machine."""

    python: Path
    program: Path
    environment: Mapping[str, str]
    root: str

    def start(self, documents: list[Any]) -> subprocess.Popen[str]:
        file = Path(self.root, f"{uuid.uuid4()}.yaml")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n---\n".join(json.dumps(one, ensure_ascii=False) for one in documents))
        said = {"environment": dict(self.environment), "root": self.root}
        return subprocess.Popen(
            [self.python, self.program, file, json.dumps(said)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


class KubeflowHere:
    """The server and its runs.

    Attributes
    ----------
    runs, experiments
        As it answers them, by id.
    nodes
        Nodes of a run's workflow, by its id.
    faults
        Asked in turn for each request.
    lose
        How many answers to a POST of a run are lost: it is created all the same.
    asked
        Every request: method and path.
    """

    def __init__(self, local: Local | None = None) -> None:
        self._local = local
        self.runs: dict[str, dict[str, Any]] = {}
        self.experiments: dict[str, dict[str, Any]] = {}
        self.nodes: dict[str, dict[str, Any]] = {}
        self.printed: dict[str, str] = {}
        self.faults: list[Fault] = []
        self.lose = 0
        self.asked: list[tuple[str, str]] = []
        self.token: str | None = None
        self.namespaces: dict[str, str] | None = None  # of users, by their names; None: it is for one user
        self.version = 2
        self.begins: Callable[[dict[str, Any]], None] = lambda run: None  # what becomes of a new run
        self.changed = threading.Condition()
        self._processes: dict[str, subprocess.Popen[str]] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # an answer is more than one packet

            def do_GET(self) -> None:
                outer._handle(self)

            do_POST = do_DELETE = do_GET  # noqa: N815

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def until(self, true: Callable[[], object], seconds: float = 120) -> None:
        """Wait until something of this server is so."""
        with self.changed:
            assert self.changed.wait_for(true, seconds), [run["state"] for run in self.runs.values()]

    def set(self, run: str, state: str, *, message: str | None = None) -> None:
        """A run is in this state now."""
        with self.changed:
            said = {"update_time": _TIME, "state": state}
            if message is not None:
                said["error"] = {"code": 2, "message": message}  # type: ignore[assignment]
            self.runs[run] |= {"state": state, "state_history": [*self.runs[run]["state_history"], said]}
            self.changed.notify_all()

    def forget(self, run: str) -> None:
        """Somebody deletes a run."""
        with self.changed:
            del self.runs[run]

    # -- HTTP --------------------------------------------------------------------------------------

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        url = urlsplit(handler.path)
        size = int(handler.headers.get("Content-Length") or 0)
        content = json.loads(handler.rfile.read(size)) if size else None
        lost = False
        with self.changed:
            self.asked.append((handler.command, url.path))
            said = next(filter(None, (f(handler.command, url.path) for f in self.faults)), None)
            if said is None:
                try:
                    self._authenticate(handler.headers.get("Authorization"))
                    answer = self._answer(handler.command, url.path, dict(parse_qsl(url.query)), content)
                    said = 200, json.dumps(answer)
                    lost = handler.command == "POST" and url.path.endswith("/runs") and self.lose > 0
                    self.lose -= lost
                except Refused as refused:
                    said = error(refused.status, str(refused))
            self.changed.notify_all()
        if lost:
            handler.close_connection = True
            return
        status, text = said
        body = text.encode()
        handler.send_response(status)
        kind = "text/html" if text.startswith("<") else "application/json"
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def _authenticate(self, header: str | None) -> None:
        if self.token is not None and header != f"Bearer {self.token}":
            raise Refused(
                401, "Unauthenticated: Request header error: there is no user identity header.: token review"
            )

    def _answer(self, method: str, path: str, query: dict[str, str], content: Any) -> Any:
        version, _, rest = path.removeprefix("/apis/").partition("/")
        what, _, named = rest.partition("/")
        if version == "v1beta1":
            if rest == "healthz":
                return {"commit_sha": "none", "multi_user": self.namespaces is not None}
            return self._older(named)
        if version != "v2beta1" or self.version == 1:
            raise Refused(404, "Not Found")
        if rest == "healthz":
            return {"multi_user": self.namespaces is not None, "pipeline_store": "database"}
        if what == "experiments":
            return self._experiments(method, query, content)
        if what == "runs" and method == "POST" and not named:
            return self._create(content)
        if what == "runs" and not named:
            return self._list("runs", self.runs, query)
        run, _, verb = named.partition(":")
        if run not in self.runs:
            raise Refused(404, f"Failed to get a run: ResourceNotFoundError: Run {run} not found")
        if method == "GET":
            return self.runs[run]
        {"terminate": self._terminate, "retry": self._retry}[verb](run)
        return {}

    def _experiments(self, method: str, query: dict[str, str], content: Any) -> Any:
        if method == "GET":
            return self._list("experiments", self.experiments, query)
        self._authorize(content.get("namespace"))
        return self.experiment(content["display_name"], content.get("namespace"))

    def experiment(self, name: str, namespace: str | None = None) -> dict[str, Any]:
        """A new experiment."""
        made = {"experiment_id": str(uuid.uuid4()), "display_name": name, "storage_state": "AVAILABLE"}
        made |= {"namespace": namespace} if namespace else {}
        self.experiments[made["experiment_id"]] = made
        return made

    def _authorize(self, namespace: str | None) -> None:
        if self.namespaces is None and namespace:
            raise Refused(400, "InvalidInputError: In single-user mode, namespace must be empty")
        if self.namespaces is not None and namespace not in self.namespaces:
            raise Refused(
                403,
                f"PermissionDenied: User 'ada@example.org' is not authorized with reason:  (request: "
                f"&ResourceAttributes{{Namespace:{namespace},Verb:list,Group:pipelines.kubeflow.org,Resource:runs}})",
            )

    def _list(self, what: str, there: Mapping[str, Any], query: dict[str, str]) -> Any:
        self._authorize(query.get("namespace"))
        found = [one for one in there.values() if one.get("namespace") in (None, query.get("namespace"))]
        for predicate in json.loads(query.get("filter", "{}")).get("predicates", ()):
            assert predicate["operation"] == "EQUALS", predicate
            found = [one for one in found if one[predicate["key"]] == predicate["string_value"]]
        return {what: found, "total_size": len(found)} if found else {}

    def _create(self, content: dict[str, Any]) -> Any:
        if unknown := content.keys() - _RUN_FIELDS:
            raise Refused(400, f"proto: (line 1:2): unknown field {sorted(unknown)[0]!r}")
        spec = content["pipeline_spec"]
        documents = [spec["pipeline_spec"], spec["platform_spec"]] if "pipeline_spec" in spec else [spec]
        if documents[0].get("schemaVersion") != "2.1.0":
            raise Refused(400, "Failed to create a new run: InvalidInputError: unknown template format")
        run = str(uuid.uuid4())
        self.runs[run] = {
            **content,
            "run_id": run,
            "storage_state": "AVAILABLE",
            "created_at": _TIME,
            "state": "PENDING",
            "state_history": [{"update_time": _TIME, "state": "PENDING"}],
        }
        self._start(run, documents)
        made = self.runs[run]
        self.begins(made)
        return made

    def _older(self, named: str) -> Any:
        run = named.removeprefix("/")
        if run not in self.runs:
            raise Refused(404, f"Run {run} not found")
        manifest = {"status": {"phase": "Running", "nodes": self.nodes.get(run, {})}}
        return {"run": {"id": run}, "pipeline_runtime": {"workflow_manifest": json.dumps(manifest)}}

    # -- runs that are done ------------------------------------------------------------------------

    def _start(self, run: str, documents: list[Any]) -> None:
        if self._local is None:
            return
        text = json.dumps(documents).replace("{{$.pipeline_job_uuid}}", run)
        process = self._processes[run] = self._local.start(json.loads(text))
        self.runs[run]["state"] = "RUNNING"
        threading.Thread(target=self._watch, args=(run, process), daemon=True).start()

    def _watch(self, run: str, process: subprocess.Popen[str]) -> None:
        said, _ = process.communicate()
        self.printed[run] = self.printed.get(run, "") + said
        with self.changed:
            if self._processes.get(run) is process and run in self.runs:
                told = [line for line in said.splitlines() if "finished with status" in line]
                ended = "SUCCEEDED" if told and "SUCCESS" in told[-1] else "FAILED"
                ended = "CANCELED" if self.runs[run]["state"] == "CANCELING" else ended
                self.set(run, ended)

    def _terminate(self, run: str) -> None:
        if self.runs[run]["state"] in OVER:
            raise Refused(400, "Failed to terminate a run: InvalidInputError: Terminating run is not allowed")
        if self._local is None:
            self.set(run, "CANCELED")
            return
        self.set(run, "CANCELING")
        listed = ["docker", "ps", "--no-trunc", "--format", "{{.ID}} {{.Command}}"]
        threading.Thread(target=self._kill, args=(run, listed), daemon=True).start()

    def _kill(self, run: str, listed: list[str]) -> None:
        """As the controller of workflows: no pod is started any more, and those that run get SIGTERM."""
        process = self._processes[run]
        process.terminate()
        process.wait()
        # Pods that are processes have ended with it, and need no Docker.
        lines = subprocess.run(listed, capture_output=True, text=True, check=False).stdout.splitlines()
        own = [line.split()[0] for line in lines if run in line]
        if own:
            subprocess.run(["docker", "stop", "--time", "20", *own], capture_output=True, check=False)
            subprocess.run(["docker", "rm", "--force", *own], capture_output=True, check=False)

    def _retry(self, run: str) -> None:
        if self.runs[run]["state"] not in ("FAILED", "CANCELED"):
            raise Refused(500, f"Failed to retry a run: InternalServerError: Failed to retry run {run}")
        self.set(run, "RUNNING")
        if self._local is None:
            return
        spec = self.runs[run]["pipeline_spec"]
        documents = [spec["pipeline_spec"], spec["platform_spec"]] if "pipeline_spec" in spec else [spec]
        documents = json.loads(json.dumps(documents))
        del documents[0]["root"]["dag"]["tasks"]["end"]  # it has succeeded, and is not repeated
        self._start(run, documents)


@contextlib.contextmanager
def kubeflow_here(local: Local | None = None) -> Iterator[KubeflowHere]:
    """A server for the time of a test."""
    server = KubeflowHere(local)
    try:
        yield server
    finally:
        server.close()
