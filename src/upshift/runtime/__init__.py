"""What runs beside a step: the supervisor, and the step process that it starts.

::

    backend ──spec──▶ supervisor ──fork or exec──▶ step process
                        │  ▲  ▲                       │  │  │
                        │  │  └──── log (a pipe) ─────┘  │  │
                        │  └─────── seen, outcome ───────┘  │
                        ▼                                   ▼
                      result, usage, log ──▶ store ◀── outputs

The supervisor imports no user code. It enforces time and memory, samples usage, keeps the log, and
writes the result. Run by hand it is ``python -m upshift.runtime SPEC``; on this machine the fork
server is the supervisor of all tasks of a run.

What is where::

    serving/              supervisors as processes: the fork server of a run, or alone with one task
    several/              other nodes
    supervision/          one attempt: its processes, what they say, why they end, its result
    starters/             how its processes come to be: from a zygote, by a fork, or afresh
    inside/               what runs in the step's own process
    usage/  output/       what it uses and prints
    bounds/  devices/     what it may use, and which accelerators it gets
    usercode/             the user's modules, cells and tracebacks
    forms, messages, …    what both sides read

Imports go down this list, and no supervisor imports what is inside; but starters do, which fork.
"""
