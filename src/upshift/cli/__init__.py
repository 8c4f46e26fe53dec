"""The command line: the ``upshift`` program, what its commands print, and its exit codes.

Each command is a module, imported when it is called: it parses its arguments, calls another package, and
prints the result.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, NoReturn

import click

from upshift._version import __version__
from upshift.errors import RunCancelled, RunFailed, UpshiftError, UsageError, nearest
from upshift.model.checks import shown

BUG = 70
"""Exit code of a bug in Upshift: EX_SOFTWARE of sysexits.h."""
INTERRUPTED = 130
"""128 + SIGINT, as shells count."""
BROKEN_PIPE = 141
"""128 + SIGPIPE: a listing whose reader left early."""
_LABELS = ((RunCancelled, "Cancelled:"), (RunFailed, "Failed:"), (UpshiftError, "Error:"))


def echo(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Print a text, without the control characters that names and messages of users may hold."""
    said = str(text)
    stream = sys.stderr if err else sys.stdout
    if stream.isatty():
        from upshift.report.terminal import cleaned  # which --help has no use for

        said = cleaned(said)
    click.echo(said, err=err, nl=nl)


def echo_json(shown: object) -> None:
    """Print something as JSON."""
    import json  # which most commands have no use for

    echo(json.dumps(shown, indent=2))


def exit_code_of(call: Callable[[], Any]) -> int:
    """Run a command, report its error on stderr, and return the exit code."""
    try:
        code = call()
        _flush()
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:  # a usage error, which click words itself
        error.show(file=sys.stderr)
        if isinstance(error, click.BadOptionUsage) and error.ctx is None:  # it then says nothing of --help
            _say(f"  fix:   Write the value after {error.option_name}; --help lists the options.")
        return error.exit_code
    except UpshiftError as error:
        _say(_message(error))
        return error.exit_code
    except BrokenPipeError:
        _abandon_stdout()
        return BROKEN_PIPE
    except (KeyboardInterrupt, click.Abort):
        _say("Interrupted.")
        return INTERRUPTED
    except (OSError, MemoryError) as error:
        _abandon_stdout()  # which may be what cannot be written
        _say(_message(_refused_by_the_system(error)))
        return UpshiftError.exit_code
    except Exception as error:
        from upshift.runtime.shadowing import load_error

        known = load_error(error)
        if known is not None:
            _say(_message(known))
            return known.exit_code
        _say(
            traceback.format_exc()
            + _red("This is a bug in Upshift.")
            + " Please report it with the lines above."
        )
        return BUG
    return code if isinstance(code, int) else 0


def _refused_by_the_system(error: OSError | MemoryError) -> UpshiftError:
    """The message for an error of the system: a full disk, no permission, no memory."""
    if isinstance(error, MemoryError):
        return UpshiftError("out of memory", fix="Free memory, or ask for less at once.")
    files = " and ".join(shown(name) for name in (error.filename, error.filename2) if name is not None)
    return UpshiftError(
        f"the operating system refuses{f' {files}' if files else ''}: {error.strerror or error}",
        fix="See to the disk, the permissions or the limits (ulimit -a) that it names.",
    )


def _message(error: UpshiftError) -> str:
    label = next(label for kind, label in _LABELS if isinstance(error, kind))
    first, _, rest = str(error).partition("\n")
    return f"{_red(label)} {first}" + (f"\n{rest}" if rest else "")


def _red(text: str) -> str:
    plain = os.environ.get("NO_COLOR") or not sys.stderr.isatty()
    return text if plain else click.style(text, fg="red", bold=True)


def _say(text: str) -> None:
    echo(text, err=True)


def _flush() -> None:
    """Flush stdout while a reader that is gone can still be noticed; the result of a run does not change."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _abandon_stdout()


def _abandon_stdout() -> None:
    """Keep the interpreter from complaining when it flushes stdout at its exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # stdout is not a file, or is closed: nothing is left to flush
        return


class LazyCommand(NamedTuple):
    """The location of a command, ``module:attribute``, and its line in the group's help."""

    path: str
    summary: str


class LazyGroup(click.Group):
    """Commands by name; each is imported when it is called."""

    def __init__(
        self,
        name: str | None = None,
        commands: MutableMapping[str, click.Command] | None = None,
        *,
        lazy: Mapping[str, LazyCommand],
        **settings: Any,
    ) -> None:
        super().__init__(name, commands, **settings)
        self.lazy = dict(lazy)  # the commands, in the order in which the help shows them

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.lazy:
            return None
        module, _, attribute = self.lazy[name].path.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in self.lazy.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.lazy:
            close = nearest(args[0], self.lazy)
            hint = f"Did you mean {close!r}? " if close else ""
            ctx.fail(f"No such command {shown(args[0])}. {hint}Commands: {', '.join(self.lazy)}.")
        return super().resolve_command(ctx, args)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        def call() -> Any:
            _refuse_undecodable(sys.argv[1:] if args is None else args)
            return super(LazyGroup, self).main(args, prog_name, complete_var, standalone_mode=False, **extra)

        if not standalone_mode:
            return call()
        sys.exit(exit_code_of(call))


def _refuse_undecodable(arguments: Sequence[str]) -> None:
    """Refuse arguments that are not UTF-8, which no record could hold."""
    for number, argument in enumerate(arguments, start=1):
        if any("\ud800" <= character <= "\udfff" for character in argument):
            raise UsageError(
                f"argument {number} is not UTF-8: {shown(os.fsencode(argument))}",
                why="Upshift records names and paths as UTF-8 text.",
                fix="Type it in UTF-8; a file with another name has to be renamed.",
            )


_COMMANDS = {
    "run": LazyCommand("upshift.cli.run:run", "Run a pipeline."),
    "plan": LazyCommand("upshift.cli.run:plan", "Show what a run would do; nothing runs."),
    "resume": LazyCommand("upshift.cli.run:resume", "Finish a run; completed steps are not run again."),
    "cancel": LazyCommand("upshift.cli.run:cancel", "Stop a run; completed steps are kept."),
    "runs": LazyCommand("upshift.cli.runs:runs", "List runs, newest first."),
    "show": LazyCommand(
        "upshift.cli.runs:show", "Show a run: steps, times, hardware from asked to used, failures."
    ),
    "compare": LazyCommand(
        "upshift.cli.runs:compare", "Compare runs: parameters that differ, times, metrics."
    ),
    "report": LazyCommand(
        "upshift.cli.runs:report",
        "Write a report of a run: one HTML file that works offline.",
    ),
    "top": LazyCommand("upshift.cli.runs:top", "Show running steps, with their CPU, memory and GPUs."),
    "logs": LazyCommand("upshift.cli.logs:logs", "Print the output of the steps of a run."),
    "artifacts": LazyCommand(
        "upshift.cli.artifacts:artifacts",
        "List values by name and version, and tag them.",
    ),
    "gc": LazyCommand("upshift.cli.store:gc", "Free space: remove unused content, and runs that you select."),
    "store": LazyCommand(
        "upshift.cli.store:store", "Copy runs between folders and buckets; check a store for damage."
    ),
    "image": LazyCommand(
        "upshift.cli.image:image", "Show, build, update, list and remove the images that steps run in."
    ),
    "targets": LazyCommand("upshift.cli.targets:targets", "List the targets, with their state."),
    "doctor": LazyCommand(
        "upshift.cli.targets:doctor", "Check a target for problems that would stop a step, with remedies."
    ),
    "export": LazyCommand(
        "upshift.cli.other_tools:export",
        "Write a pipeline in the form of another tool: Kubeflow, SkyPilot.",
    ),
    "migrate": LazyCommand(
        "upshift.cli.other_tools:migrate", "Change the imports of Metaflow or ZenML to Upshift's."
    ),
    "replay": LazyCommand("upshift.cli.replay:replay", "Run one task of a run again, under a debugger."),
}


@click.group(
    cls=LazyGroup,
    lazy=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="RUN is the id of a run, a prefix of it that no other run has, or 'latest'.",
)
@click.version_option(__version__, prog_name="upshift", message="%(prog)s %(version)s")
def upshift() -> None:
    """Shift any step of a Python pipeline up to the hardware that it needs, and prove that it got it."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """The ``upshift`` program.

    It exits with 0 on success, 1 if the run failed, 2 if it was refused before it ran, 70 for a
    bug in Upshift, and 130 if it was interrupted.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr is: a glyph must not end a listing
    upshift.main(args=arguments, prog_name="upshift")
    raise SystemExit(0)  # click never comes back in its standalone mode
