"""Output of commands, their error messages and exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import click

from upshift.errors import RunCancelled, RunFailed, UpshiftError
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
