"""Images between a container engine and a registry: :func:`pull` and :func:`push`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from upshift.errors import ImageError
from upshift.images.base import Progress, Tell
from upshift.images.containers.engine import ContainerEngine
from upshift.images.containers.failures import PODMAN
from upshift.images.registries.network import may_lack_tls
from upshift.images.workshop import workshop

_PUSHED = re.compile(r"digest: (sha256:[0-9a-f]{64})")
_NOT_LET_IN = re.compile(r"unauthorized|authentication required|no basic auth|denied|access forbidden", re.I)


def tls_of(engine: ContainerEngine, registry: str) -> list[str]:
    """Options for a registry that may lack TLS: Podman has to be told what Docker's daemon knows."""
    return ["--tls-verify=false"] if engine.name == PODMAN and may_lack_tls(registry) else []


def platform_of(engine: ContainerEngine, platform: str) -> list[str]:
    """Options for a platform, where it is another one than the engine's."""
    return [] if platform == engine.platform else ["--platform", platform]


def pull(engine: ContainerEngine, name: str, registry: str, platform: str, tell: Tell) -> None:
    """Pull an image.

    Raises
    ------
    ImageError
        The registry does not give it, or the engine cannot take it.
    """
    options = [*tls_of(engine, registry), *platform_of(engine, platform)]
    _follow(engine, ["pull", *options, name], Progress(stage="pull", text=name), tell, registry)


def push(engine: ContainerEngine, name: str, registry: str, tell: Tell) -> str:
    """Push an image, and give the digest of its manifest, which the registry gets last.

    Raises
    ------
    ImageError
        The registry does not take it.
    """
    with workshop() as folder:
        written = folder / "digest"
        more = ["--digestfile", str(written)] if engine.name == PODMAN else []
        progress = Progress(stage="push", text=name)
        said = _follow(engine, ["push", *more, *tls_of(engine, registry), name], progress, tell, registry)
        if more:
            return written.read_text(encoding="utf-8").strip()
    found = _PUSHED.search("\n".join(said))
    if found is None:
        raise ImageError(f"{engine.title} does not say what it pushed", why="\n".join(said[-5:]))
    return found[1]


def _follow(
    engine: ContainerEngine, args: Sequence[str], first: Progress, tell: Tell, registry: str
) -> tuple[str, ...]:
    """A transfer; gives what the engine said."""
    told = [first]
    tell(first)

    def on_line(line: str) -> None:
        if line.strip():
            told[0] = Progress(stage=first.stage, text=line.strip())
            tell(told[0])

    status, last = engine.stream(args, on_line, idle=lambda: tell(told[0]))
    if status == 0:
        return last
    engine.check()
    said = "\n".join(last)
    error = engine.failure(args, said)
    if error.fix is not None:
        raise error
    what = f"{registry} does not {'give' if first.stage == 'pull' else 'take'} {first.text}"
    if _NOT_LET_IN.search(said):
        raise ImageError(
            f"{what}: it wants other credentials",
            why=error.why,
            fix=f"Log in: {engine.name} login {registry}",
        )
    raise ImageError(what, why=error.why)
