"""A task on several nodes: the supervisor of node 0 decides everything, the others do as it says.

::

    on node 0                                              on each further node
    rendezvous  waits for the others ◀── connection ──▶  rendezvous         finds node 0
    nodes       has their processes as members           remote_supervisor  starts processes, forwards

Which part a supervisor has is told by its seat (:mod:`upshift.runtime.launch.seats`); how they talk is in
:mod:`.connection`. :mod:`upshift.runtime.supervisor.serving.local_nodes` starts further ones on this machine.
"""
