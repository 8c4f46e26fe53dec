"""A run as one HTML file that needs nothing else: no network, no other file, no server.

::

    history ──► groups ──► sections (overview, failures, graph, timeline, steps, …) ──► document
                  │            │
                  │            └─ elements: text becomes HTML in one place only
                  └─ evidence: series, metrics, cards and logs, read for the attempts that are shown in full

What is seen at once is in the page; what a reader opens is kept as text in it and becomes elements then.
"""
