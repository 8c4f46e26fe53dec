"""``upshift top``."""

from __future__ import annotations

import click

from upshift.cli.output import echo


@click.command()
@click.option("--once", is_flag=True, help="Print it once; elsewhere than on a terminal it always is.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, once.")
def top(once: bool, as_json: bool) -> None:
    """Show what runs now: CPU, memory and GPUs of every step.

    Of all runs that the catalog knows. q ends it.
    """
    import sys

    from upshift.model.configuration import load_configuration
    from upshift.report.running import Watch
    from upshift.report.terminal.layout import Page
    from upshift.report.terminal.top import lines
    from upshift.runs.catalog.rebuild import open_catalog

    watch = Watch(open_catalog(load_configuration()))
    if as_json:
        import json

        echo(json.dumps(watch.look().as_json(), indent=2))
    elif once or not sys.stdout.isatty():
        echo("\n".join(lines(watch.look(), Page.of_stdout())))
    else:
        from upshift.report.terminal.top import show

        show(lambda page: lines(watch.look(wait=False), page))
