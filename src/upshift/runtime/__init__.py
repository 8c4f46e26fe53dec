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

What is where, from what is above to what is below::

    supervisor/      one on each node of a task: an attempt, its processes, why they end, its result
    step/            what runs in the step's own process
    usercode, tracebacks, shadowing
                     the user's modules, their exceptions, and files that hide other modules
    launch/          many processes for one step
    accelerators/    one file per vendor
    messages, masking, confine
                     what a step process says, and its bounds
    storage/         blobs, serializers, task records, checkpoints
    children, loop, marks, proc
                     other processes: started, met at sockets, waited for, known as ours, measured

Imports go down this list, and no supervisor imports what a step process does; but starters do, which fork.
"""
