"""Every argument of ``torchrun``, by its Python name.

Written by ``UPDATE_TABLES=1 make test ARGS=tests/unit/runtime/launch/test_argument_tables.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from upshift.runtime.launch.arguments.argument import FLAG, FLOAT, INT, LIST, TEXT, Argument

VERSION: Final = "2.13.0"
READ: Final = "2026-11-21"
"""The day on which the parser of this version was read."""

ARGUMENTS: Final[Mapping[str, Argument]] = {
    "nnodes": Argument(TEXT, "1:1"),
    "nproc_per_node": Argument(TEXT, "1"),
    "rdzv_backend": Argument(TEXT, "static"),
    "rdzv_endpoint": Argument(TEXT, ""),
    "rdzv_id": Argument(TEXT, "none"),
    "rdzv_conf": Argument(TEXT, ""),
    "standalone": Argument(FLAG, False),
    "max_restarts": Argument(INT, 0),
    "monitor_interval": Argument(FLOAT, 0.1),
    "start_method": Argument(TEXT, "spawn", ("spawn", "fork", "forkserver")),
    "event_log_handler": Argument(TEXT, "null"),
    "role": Argument(TEXT, "default"),
    "module": Argument(FLAG, False),
    "no_python": Argument(FLAG, False),
    "run_path": Argument(FLAG, False),
    "log_dir": Argument(TEXT),
    "redirects": Argument(TEXT, "0"),
    "tee": Argument(TEXT, "0"),
    "local_ranks_filter": Argument(TEXT, ""),
    "duplicate_stdout_filters": Argument(LIST, []),
    "duplicate_stderr_filters": Argument(LIST, []),
    "node_rank": Argument(INT, 0),
    "master_addr": Argument(TEXT, "127.0.0.1"),
    "master_port": Argument(INT),
    "local_addr": Argument(TEXT),
    "logs_specs": Argument(TEXT),
    "numa_binding": Argument(TEXT, None, ("node", "socket", "exclusive", "core-complex")),
    "signals_to_handle": Argument(TEXT, "SIGTERM,SIGINT,SIGHUP,SIGQUIT"),
    "shutdown_timeout": Argument(INT),
    "virtual_local_rank": Argument(FLAG, False),
}
