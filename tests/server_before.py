"""A server that stands before another one: it counts the requests, and does harm to some."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import attrs


@attrs.frozen(kw_only=True)
class Harm:
    """What happens to one request; the default is nothing."""

    status: int = 0  # this answer, and the request goes no further
    headers: dict[str, str] = attrs.field(factory=dict)
    body: bytes = b""
    before: Callable[[], object] = lambda: None  # done before the request goes on
    lost: bool = False  # it is done, and nothing is answered
    cut: int = -1  # bytes of the body that come
    flipped: bool = False  # a byte of the body is another one
    silent: bool = False  # nothing is answered for as long as the test takes
    closed: bool = False  # the connection is closed after the answer, without a word


@attrs.define
class Server:
    """Stands before the object store."""

    address: str
    behind: str
    harms: list[Harm] = attrs.field(factory=list)  # of the next requests
    always: Harm | None = None  # of those after them
    seen: list[tuple[str, str, dict[str, str]]] = attrs.field(factory=list)
    over: threading.Event = attrs.field(factory=threading.Event)
    lock: threading.Lock = attrs.field(factory=threading.Lock)

    def ranges(self) -> list[str | None]:
        return [headers.get("range") for method, _, headers in self.seen if method == "GET"]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer is more than one packet
    server: _Listener

    def log_message(self, *_: object) -> None:
        pass

    def _pass_on(self) -> None:
        rig = self.server.rig
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        with rig.lock:
            rig.seen.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
            harm = rig.harms.pop(0) if rig.harms else rig.always or Harm()
        self.close_connection = harm.lost or harm.silent or harm.closed or harm.cut >= 0
        if harm.silent:
            rig.over.wait()
            return
        harm.before()
        if harm.status:
            self._answer(harm.status, harm.headers, harm.body, harm)
            return
        connection = http.client.HTTPConnection(urlsplit(rig.behind).netloc)
        with contextlib.closing(connection):
            headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            connection.request(self.command, self.path, body or None, headers)
            response = connection.getresponse()
            content = response.read()
            if not harm.lost:
                self._answer(response.status, dict(response.getheaders()), content, harm)

    def _answer(self, status: int, headers: dict[str, str], content: bytes, harm: Harm) -> None:
        self.send_response_only(status)
        if self.command != "HEAD":
            headers = {k: v for k, v in headers.items() if k.lower() != "content-length"}
            headers["content-length"] = str(len(content))
        for name, value in headers.items():
            if name.lower() not in ("transfer-encoding", "connection"):
                self.send_header(name, value)
        self.end_headers()
        if harm.flipped:
            content = bytes([content[0] ^ 1]) + content[1:]
        if self.command != "HEAD":
            self.wfile.write(content if harm.cut < 0 else content[: harm.cut])

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name.startswith("do_"):
            return self._pass_on
        raise AttributeError(name)


class _Listener(ThreadingHTTPServer):
    rig: Server


@contextlib.contextmanager
def before(behind: str) -> Iterator[Server]:
    """A server that does harm, before an object store."""
    listener = _Listener(("127.0.0.1", 0), _Handler)
    rig = listener.rig = Server(f"http://127.0.0.1:{listener.server_port}", behind)
    thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
    thread.start()
    yield rig
    rig.over.set()
    listener.shutdown()
    thread.join()
    listener.server_close()
