"""What went wrong with a registry, as errors for people: what, why, and how to go on."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from upshift.errors import ImageError
from upshift.images.reference import DOCKER_HUB, Reference, shortened
from upshift.images.registries.credentials import VARIABLE
from upshift.images.registries.no_answer import NoAnswer, host_of
from upshift.images.registries.session import LoginNeeded, said
from upshift.images.registries.transport import Answer

_ECR = re.compile(r"[0-9]+\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?")
_ARTIFACTS = re.compile(r"([a-z0-9-]+\.)*gcr\.io|[a-z0-9-]+-docker\.pkg\.dev")
_AZURE = re.compile(r"([a-z0-9]+)\.azurecr\.(io|cn|us)")


class Unavailable(ImageError):
    """A registry gives no answer, or is in trouble: in a while it may say what it said before."""


class LoginRefused(ImageError):
    """A registry wants another login, or one at all."""


@contextlib.contextmanager
def told(what: str, reference: Reference) -> Iterator[None]:
    """Turn what happens inside into an :class:`~upshift.errors.ImageError`."""
    try:
        yield
    except NoAnswer as error:
        raise Unavailable(what, why=error.why, fix=error.fix) from None
    except LoginNeeded as error:
        raise _refused(what, reference, error) from None


def unexpected(what: str, reference: Reference, answer: Answer) -> ImageError:
    """The error for an answer that is neither what was asked for nor a refusal."""
    status, detail = answer.status, said(answer.body)
    why = f"{host_of(answer.url)} answers {status}"
    if status == 429:
        why = f"{reference.registry} lets nobody ask so often"
        fix = f"Try again later, or log in: {login_command(reference.registry)}"
    elif status == 413:
        fix = "Ask who runs the registry: something in front of it limits the size of a request."
    elif status >= 500:
        fix = "Try again later; its log says more."
    elif answer.headers.get("Content-Type", "").startswith("text/html"):
        why += " with a web page: it may be no image registry"
        fix = "Check the name of the registry."
    else:
        fix = "Ask who runs the registry; its log says more."
    why += f" ({detail})" if detail else ""
    why += f", {answer.tries} times" if answer.tries > 1 else ""
    kind = Unavailable if status >= 500 or status == 429 else ImageError
    return kind(what, why=why, fix=fix)


def missing(reference: Reference, version: str, there: Sequence[str]) -> ImageError:
    """The error for an image that is not there, with what may have been meant."""
    what = f"there is no image {reference.brief}"
    if not there:
        why = f"{reference.registry} has no repository {reference.repository}, or does not show it"
        return ImageError(what, why=why, fix="Check the name; to read a private one, log in.")
    why = f"{reference.name} is there, and has {shortened(version)} not among its {len(there):,} tags"
    close = get_close_matches(version, there, n=5, cutoff=0.4)
    fix = f"Nearest: {', '.join(close)}." if close else f"There is, for example, {there[-1]}."
    return ImageError(what, why=why, fix=fix)


def keeps_everything(what: str, reference: Reference) -> ImageError:
    """The error for a registry that lets nothing be removed."""
    return ImageError(
        what,
        why=f"{reference.registry} is set up to remove nothing",
        fix="Whoever runs it can allow it; for Docker's own: REGISTRY_STORAGE_DELETE_ENABLED=true.",
    )


def login_command(registry: str) -> str:
    """How a person logs in to a registry, on a command line."""
    if registry == DOCKER_HUB:
        return "docker login"
    if ecr := _ECR.fullmatch(registry):
        password = f"aws ecr get-login-password --region {ecr[1]}"
        return f"{password} | docker login --username AWS --password-stdin {registry}"
    if _ARTIFACTS.fullmatch(registry):
        return f"gcloud auth configure-docker {registry}"
    if azure := _AZURE.fullmatch(registry):
        return f"az acr login --name {azure[1]}"
    return f"docker login {registry} (or podman login {registry})"


def _refused(what: str, reference: Reference, error: LoginNeeded) -> LoginRefused:
    registry, login = reference.registry, error.found.login
    if login is None:
        looked = ", ".join(error.found.looked)
        why = f"{registry} wants a login, and there is none for it in {looked}"
        if not looked:
            why = f"{registry} wants a login, and none is configured on this machine"
        if registry == DOCKER_HUB:
            why += "; it says the same of images that do not exist"
        fix = f"Log in: {login_command(registry)}"
    else:
        name = f"{login.username!r} from " if login.username else ""
        anew = f"log in anew: {login_command(registry)}"
        if login.source == VARIABLE:
            anew = f"put another one into {VARIABLE}"  # which goes before what a command would write
        if error.forbidden:
            why = f"{registry} does not allow it to the login {name}{login.source}"
            fix = f"Check the name, ask for the permission, or {anew}"
        else:
            why = f"{registry} does not take the login {name}{login.source}"
            fix = anew[0].upper() + anew[1:]
    why += f" ({error.detail})" if error.detail else ""
    return LoginRefused(what, why="; ".join((why, *error.found.problems)), fix=fix)
