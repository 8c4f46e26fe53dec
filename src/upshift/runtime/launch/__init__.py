"""Many processes for one step: what their launcher is told, which process each is, and what stops them all.

::

    @run_with_accelerate ──▶ Launch ──offer──▶ Launch.per_node ──spec──▶ supervisor ──▶ rank 0, rank 1, …
       arguments checked     asked             what the hardware allows             each with its environment

The supervisor itself is the launcher (:mod:`upshift.runtime`); here is what it has to know for that, and
nothing here starts a process.
"""
