"""A run as one HTML file that needs nothing else: no network, no other file, no server.

::

    view (upshift.report.views.run) ──► page ──► templates/   Jinja2, escaped as it is put in
                                    │  └─── assets/      style, scripts, uPlot
                                    └─ cards             what steps show, in frames that can reach nothing

Tables and texts are in the page as it opens. Charts are numbers in it, which uPlot draws where they come
into view; so are the rows of tasks, of which only those in view are elements.
"""
