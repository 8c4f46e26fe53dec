"""One on each node of a task: it starts the step's processes, watches them, and records the result.

A task, from its start to its result, in the order in which to read::

    forkserver            supervises all tasks of a run on this machine, for an engine
    single_task           supervises one task: for a backend, under a scheduler, or by hand
    supervisor            the attempts of one such process
    attempt               one attempt, from its start to its result
    node_runtime          what it has on this machine: bounds, processes within them, and what these use
    zygote, starters      how a step process comes to be: from a zygote, by a fork, or as a new interpreter
    members               its processes, and their pipes
    ends                  how the first that fails ends the others, and what becomes of the attempt by that
    records               what it was granted, what it saw and what it used, as the result has it

Beside it are its logs, its metrics and cards (``recorder``), samples of what it uses, and its devices
(``device_queue``). Of a task on several nodes the supervisor of node 0 decides everything, and the others do
as it says. Which part one has is told by its seat (:mod:`upshift.runtime.launch.seats`)::

    on node 0                                                  on each further node
    rendezvous  waits for the others ◀── node_connection ──▶  rendezvous         finds node 0
    nodes       has their processes as members                 remote_supervisor  starts processes, forwards
"""
