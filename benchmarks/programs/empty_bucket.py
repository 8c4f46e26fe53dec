"""An object store that keeps nothing: it takes what is uploaded, and sends zeros of a given size.

It costs little, so that the clients that use it can be told apart. Its port is the line that it prints.
"""

from __future__ import annotations

import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SIZE = int(sys.argv[1])
ZEROS = memoryview(bytes(1 << 20))
ETAG = '"d41d8cd98f00b204e9800998ecf8427e-9"'


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def setup(self) -> None:
        super().setup()
        self.room = memoryview(bytearray(1 << 20))

    def _take(self) -> None:
        left = int(self.headers.get("content-length", 0))
        while left and (number := self.rfile.readinto(self.room[:left])):
            left -= number

    def _say(self, status: int, size: int, **headers: str) -> None:
        self.send_response_only(status)
        self.send_header("ETag", ETAG)
        self.send_header("Content-Length", str(size))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def do_PUT(self) -> None:
        self._take()
        self._say(200, 0)

    def do_POST(self) -> None:
        self._take()
        kind = "InitiateMultipartUploadResult" if self.path.endswith(("uploads", "uploads=")) else "Completed"
        said = f"<{kind}><UploadId>1</UploadId><ETag>{ETAG}</ETag></{kind}>".encode()
        self._say(200, len(said))
        self.wfile.write(said)

    def do_HEAD(self) -> None:
        self._say(200, SIZE, Last_Modified="Mon, 23 Nov 2026 00:00:00 GMT")

    def do_GET(self) -> None:
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        start, end = (int(found[1]), int(found[2] or SIZE - 1) + 1) if found else (0, SIZE)
        if found:
            self._say(206, end - start, Content_Range=f"bytes {start}-{end - 1}/{SIZE}")
        else:
            self._say(200, SIZE)
        try:
            for at in range(start, end, len(ZEROS)):
                self.wfile.write(ZEROS[: end - at])
        except ConnectionError:  # it had enough
            self.close_connection = True


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
