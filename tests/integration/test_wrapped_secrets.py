"""Secrets in base64 of several lines: on no way out is there one that can be decoded."""

from __future__ import annotations

import base64
import re

import pytest

from project import Project

TOKEN = "".join(chr(48 + at * 7 % 75) for at in range(98))
CODE = """
import base64, os, re, subprocess, sys
import upshift
from urllib.parse import quote
from upshift import current, run_with_torchrun

def lines(before: str) -> str:
    return base64.encodebytes((before + os.environ["TOK"] + " end").encode()).decode()

def show() -> None:
    for before in ("", "u", "user:", "x" * 70):
        encode = f'printf "%s" "{before}$TOK" | base64; printf "%s" "$TOK" | base64 -w 20'
        subprocess.run(encode, shell=True, check=True)
        for character in lines(before):
            os.write(1, character.encode())
        print(repr(lines(before)), file=sys.stderr)
    quoted = quote(os.environ["TOK"], safe="")
    print(quoted, re.sub("%..", lambda escape: escape.group().lower(), quoted))
    print("shown")

@step(secrets={"TOK": "env:MY_TOK"})
def alone() -> None:
    show()
    upshift.log(text=lines("user:"))
    current.card.append(upshift.HTML("<pre>" + lines("a") + "</pre>"), title=lines("bc"))

@run_with_torchrun(nproc_per_node=2)
@step(secrets={"TOK": "env:MY_TOK"}, settings={"resources": ResourceSettings(cpu_count=0.1)})
def ranks(after: None) -> None:
    show()

@step(secrets={"TOK": "env:MY_TOK"})
def fails(after: None) -> None:
    raise RuntimeError("refused: " + lines("user:"))

@pipeline
def example():
    fails(ranks(alone()))
"""


def decoded(data: bytes) -> list[bytes]:
    """The data, and whatever there is in base64 in it, over line ends of any kind."""
    unquoted = re.sub(rb"%([0-9A-Fa-f]{2})", lambda escape: bytes.fromhex(escape[1].decode()), data)
    found = [data, unquoted]
    for text in (data, re.sub(rb"\[[a-z]+(?:\[\d\])?( \d)?\] ", b"", data)):
        for run in re.findall(rb"[A-Za-z0-9+/]{40,}", re.sub(rb"[\r\n]|\\+[rn]", b"", text)):
            found += [base64.b64decode(run[at:] + b"A" * (-len(run[at:]) % 4)) for at in range(4)]
    return found


def shows(data: bytes) -> bool:
    """Whether a good part of the token is there."""
    parts = [TOKEN[at : at + 12].encode() for at in range(0, len(TOKEN) - 11, 6)]
    return any(part in text for text in decoded(data) for part in parts)


def test_the_truth_is_found_where_nothing_is_masked() -> None:
    for before in ("", "u", "user:"):
        assert shows(b"Basic:\n" + base64.encodebytes((before + TOKEN).encode()))
        assert shows(re.sub(rb"(?m)^", b"[rank 1] ", base64.encodebytes((before + TOKEN).encode())))


@pytest.mark.parametrize(
    "prologue",
    ["", "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"],
    ids=["forked", "fresh"],
)
def test_no_way_out_has_a_secret_in_base64_of_several_lines(project: Project, prologue: str) -> None:
    env = {"MY_TOK": TOKEN}
    ran = project.run(prologue + CODE, env=env, expect=1)
    page = project.folder / "page.html"
    project.upshift("report", "latest", "--output", str(page))
    logs = [project.upshift("logs", "latest", *more) for more in ((), ("ranks", "--rank", "1"))]
    shown = [project.upshift("show", "latest", *more) for more in ((), ("--json",), ("--tasks",))]
    again = project.upshift("replay", "latest", "fails", env=env, expect=1)
    assert all("***" in log.out and "shown" in log.out for log in [ran, *logs])
    for outcome in (ran, *logs, *shown, again):
        assert not shows(outcome.text.encode())
    files = [path for path in [page, *project.home.rglob("*")] if path.is_file()]
    assert [path for path in files if shows(path.read_bytes())] == []
