"""A task on several nodes: the supervisor of node 0 decides everything, those of further nodes do as it says.

::

    on node 0                                         on each further node
    gathering  waits for the others ◀── connection ──▶ joining  finds node 0
    nodes      has their processes as members          outpost  starts processes, forwards what they say
    records    one record of what all of them know

What a supervisor does of the task :mod:`upshift.runtime.supervisor.serving.alone` decides, by the seat that
:mod:`upshift.runtime.launch.seats` reads; how they talk, :mod:`upshift.runtime.launch.wire` says. Further
supervisors on this very machine are started by :mod:`upshift.runtime.supervisor.serving.rehearsal`.
"""
