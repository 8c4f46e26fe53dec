"""What runs beside a step: the supervisor, and the step process that it starts.

::

    backend ──spec──▶ supervisor ──fork or exec──▶ step process
                        │  ▲  ▲                       │  │  │
                        │  │  └──── log (a pipe) ─────┘  │  │
                        │  └─────── seen, outcome ───────┘  │
                        ▼                                   ▼
                      result, usage, log ──▶ store ◀── outputs

The supervisor imports no user code. It enforces time and memory, samples usage, keeps the log, and
writes the result. Run by hand it is ``python -m upshift.worker SPEC``; on this machine the fork
server is the supervisor of all tasks of a run.
"""
