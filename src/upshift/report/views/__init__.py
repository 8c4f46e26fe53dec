"""Views: a run, a plan, or what runs now, as plain data that terminals, pages and JSON show.

::

    run
    steps, failures · metrics · graph        steps · curves · graph
    one attempt · rows side by side          attempts · comparing
    tasks together, when they ran            groups
    the four records · charts and tables     records · charts

Each line knows those below it only; plan and top stand by themselves.
"""
