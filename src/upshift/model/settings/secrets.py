"""The secrets of a step, and what looks like a secret where none belongs.

A step names where its secrets come from: ``env:NAME``, ``file:PATH``, or what its node asks for them. That
reference travels and is recorded; the value is read when an attempt starts, and stays in memory.

In an image's variable, an address or a file's name, a secret is known by its looks. A name counts by its last
words, and only with a value that could be one (``PAD_TOKEN`` is none); a value counts by the forms that
services give to theirs.
"""

from __future__ import annotations

import fnmatch
import functools
import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from upshift.errors import RequestRefused, SettingsError, suggestion, user_location
from upshift.model.checks import MOST_TEXT, shown, unfit

SHORTEST = 4
"""Characters. A shorter value would be masked all over a log, in words that have nothing to do with it."""
LARGEST = 1 << 16
"""Bytes of JSON that the secrets of one step take together, at most: they travel in one packet."""
_SOURCES = {"env": "env:NAME", "file": "file:PATH", "aws": "aws:ARN", "k8s": "k8s:NAME/KEY"}
AT_NODE = ("aws", "k8s")
"""Forms whose values only the node of a step learns: its backend has them in the step's variable there."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCHEME = re.compile(r"[a-z][a-z0-9-]{0,11}")
_AWS = re.compile(r"arn:aws[a-z-]*:(secretsmanager|ssm):\S+|/?[\w.-]+(/[\w.-]+)*")
"""API_Secret of AWS Batch: a secret's ARN (:KEY:STAGE:VERSION may follow), or a parameter's ARN or name."""
_K8S = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[\w.-]+")
_WRITE = 'Write where the value comes from: "env:NAME" or "file:PATH".'
_files: set[str] = set()
"""Every ``file:PATH`` that this process has heard of, of whatever pipeline."""


@attrs.frozen(kw_only=True)
class NeededSecret:
    """A secret of a step.

    Parameters
    ----------
    name
        The environment variable that the step finds it in.
    source
        Where its value comes from.
    origin
        Who said so, as ``file:line (@decorator)``.
    problem
        Why the step cannot have it; None: it can.
    """

    name: str
    source: str
    origin: str | None
    problem: RequestRefused | None = None


def checked_secrets(owner: str, secrets: Any) -> dict[str, str] | None:
    """Sources by variable, if they have the right form. No message shows what may be a value.

    Parameters
    ----------
    owner
        Who was told: ``"@step"``.
    secrets
        What it was told.

    Raises
    ------
    SettingsError
        A name or a source is invalid, or this version does not have such sources.
    """
    if secrets is None:
        return None
    if not isinstance(secrets, Mapping):
        raise SettingsError(
            f"{owner}: secrets is a {type(secrets).__name__}, not a dict",
            where=user_location(),
            fix='Write secrets={"HF_TOKEN": "env:HF_TOKEN"}.',
        )
    sources = {_checked_name(owner, name): _checked_source(owner, name, secrets[name]) for name in secrets}
    _files.update(source for source in sources.values() if scheme_of(source) == "file")
    return sources


def secret_files(project: str) -> tuple[Path, ...]:
    """The files that hold secrets of any step or pipeline known here: they are in no code package.

    Parameters
    ----------
    project
        Folder that relative paths start from.
    """
    return tuple(path_of(source, project) for source in sorted(_files))


def lines_of(value: str) -> list[str]:
    """Its lines, without blanks around them: what can stand in a log."""
    return [line.strip() for line in value.replace("\r", "\n").split("\n")]


def scheme_of(source: str) -> str:
    """The scheme of a source: ``env`` of ``env:NAME``."""
    return source.partition(":")[0]


def at_node(sources: Mapping[str, str], *, there: bool = True) -> dict[str, str]:
    """The sources whose values only the node learns; those that are read here, if not ``there``."""
    return {name: source for name, source in sources.items() if (scheme_of(source) in AT_NODE) is there}


def path_of(source: str, project: str) -> Path:
    """The file of ``file:PATH``."""
    return Path(project, os.path.expanduser(source.partition(":")[2]))


def read_secrets(
    sources: Mapping[str, str], *, project: str, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The values of a step's secrets, by variable.

    Parameters
    ----------
    sources
        Sources by variable.
    project
        Folder that relative paths start from.
    environ
        Where ``env:`` looks.

    Raises
    ------
    RequestRefused
        One of them is not there, or is no value that can be handed over and masked.
    """
    values = {name: read_secret(name, sources[name], project=project, environ=environ) for name in sources}
    size = sum(len(json.dumps(value)) for value in values.values())
    if size > LARGEST:
        raise RequestRefused(
            f"secrets {', '.join(values)}: more than {LARGEST:,} bytes together",
            fix="Pass large data as a file, and only its key as a secret.",
        )
    return values


def read_secret(name: str, source: str, *, project: str, environ: Mapping[str, str] = os.environ) -> str:
    """The value of one secret; the parameters and errors are those of :func:`read_secrets`.

    What only the node of a step learns is in the variable itself, there.
    """
    if scheme_of(source) == "file":
        value = _from_file(name, source, path_of(source, project))
    elif scheme_of(source) in AT_NODE:
        value = _from_environment(name, source, environ, name)
    else:
        value = _from_environment(name, source, environ, source.partition(":")[2])
    if not value.strip():
        raise _refused(name, source, "is empty", "Give it a value.")
    if "\0" in value:
        raise _refused(name, source, "holds a NUL byte", "No environment variable can hold one; encode it.")
    if max(map(len, lines_of(value))) < SHORTEST:
        raise _refused(
            name,
            source,
            f"has fewer than {SHORTEST} characters in each line",
            "Use a longer one: a value this short cannot be masked in logs.",
        )
    return value


def _from_environment(name: str, source: str, environ: Mapping[str, str], variable: str) -> str:
    value = environ.get(variable)
    if value is None:
        from difflib import get_close_matches  # for a mistake only

        close = get_close_matches(variable, environ, n=1, cutoff=0.8)
        guess = f" {close[0]} is set: did you mean env:{close[0]}?" if close else ""
        raise _refused(
            name, source, f"the variable {variable} is not set", f"export {variable}=… before the run.{guess}"
        )
    return value


def _from_file(name: str, source: str, path: Path) -> str:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise _refused(name, source, f"{path} is not a regular file", "Name a file that holds the value.")
        with open(path, "rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise _refused(
            name,
            source,
            f"{path}: {error.strerror}",
            "Make it a file that you can read, or correct the path.",
        ) from None
    if content.endswith(b"\n"):
        content = content[: -2 if content.endswith(b"\r\n") else -1]
    return os.fsdecode(content)


def _refused(name: str, source: str, why: str, fix: str) -> RequestRefused:
    return RequestRefused(f"secret {name} ({source}): {why}", fix=fix)


def _checked_name(owner: str, name: object) -> str:
    problem = None
    if not isinstance(name, str) or not _VARIABLE.fullmatch(name) or len(name) > MOST_TEXT:
        problem = "is not a valid name of an environment variable"
    elif name.startswith("UPSHIFT_"):
        problem = "is a variable of Upshift's own"
    if problem is not None:
        raise SettingsError(
            f"{owner}: secrets: {shown(name)} {problem}",
            where=user_location(),
            fix="Letters, digits and '_', as in HF_TOKEN; the step finds its value in that variable.",
        )
    assert isinstance(name, str)
    return name


def _checked_source(owner: str, name: str, source: object) -> str:
    scheme, colon, place = source.partition(":") if isinstance(source, str) else ("", "", "")
    what = f"{owner}: secrets[{name!r}]"
    if colon and scheme not in _SOURCES and _SCHEME.fullmatch(scheme):
        raise SettingsError(
            f"{what}: there are no sources of the form {scheme}:…",
            where=user_location(),
            fix=suggestion(scheme, _SOURCES),
        )
    if scheme not in _SOURCES or not place.strip() or unfit(place) or len(place) > MOST_TEXT:
        guess = f" Did you mean 'env:{source}'?" if isinstance(source, str) and source in os.environ else ""
        raise SettingsError(
            f"{what} does not name the source of the value",
            where=user_location(),
            fix=f"{_WRITE} The value itself does not belong in the code.{guess}",
        )
    if scheme == "env" and not _VARIABLE.fullmatch(place):
        raise SettingsError(
            f"{what}: {place!r} is not a valid name of an environment variable",
            where=user_location(),
            fix=_WRITE,
        )
    if scheme == "aws" and not _AWS.fullmatch(place):
        raise SettingsError(
            f"{what}: {place!r} names no secret of AWS",
            where=user_location(),
            fix='Write the ARN of a secret in Secrets Manager, "aws:arn:aws:secretsmanager:REGION:ACCOUNT:'
            'secret:NAME", or a parameter of Systems Manager by ARN or name, "aws:/ml/token".',
        )
    if scheme == "k8s" and not _K8S.fullmatch(place):
        raise SettingsError(
            f"{what}: {place!r} names no key of a Secret",
            where=user_location(),
            fix='Write its name and the key: "k8s:hugging-face/token".',
        )
    assert isinstance(source, str)
    return source


# Texts, not compiled: most processes that import this never look for a secret.
_NAMED = (
    r"(?i:.*(?:password|passwd|passphrase|secret|token|api_?key|credentials?))"
    r"|(?i:(?:.*_)?(?:pass|pwd))"
    r"|(?i:(?:.*_)?(?:access|account|auth|encryption|license|master|private|secret|signing|storage)_?key)"
)
_SPECIAL_TOKEN = r"(?i:(?:.*_)?(?:bos|cls|eos|mask|pad|sep|special|stop|unk)_?token)"
_OF_A_PASSWORD = r"(?i:.*(?:pass|passwd|password|passphrase|pwd|secret))"
_HARMLESS = r"(?i:|true|false|yes|no|on|off|none|null|auto|default|[01]|<.*>|\[.*\])"
_NUMBER = r"-?[0-9.]{1,6}"
# A key in base64 may begin with a slash, but hardly go on like a path.
_PLACE = r"(?:~|\.{1,2}|/(?:[a-z][a-z0-9_.-]+|Users|Volumes))/\S*"
_PLACE += r"|[\w./-]+\.(?:cfg|conf|crt|ini|json|key|pem|toml|txt|ya?ml)"

_FORMS = (
    ("a private key", r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    ("a Hugging Face token", r"\bhf_[A-Za-z0-9]{16,}"),
    ("a GitHub token", r"\b(?:gh[opsur]_[A-Za-z0-9]{20,}|github_pat_\w{20,})"),
    ("a GitLab token", r"\bglpat-[\w-]{16,}"),
    ("an AWS access key", r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    ("a Google API key", r"\bAIza[\w-]{35}"),
    ("a Slack token", r"\bxox[abeoprs]-[\w-]{10,}"),
    ("an API key", r"\bsk-[\w-]{20,}"),
    ("a package index token", r"\bpypi-[\w-]{50,}"),
    ("a password", r"(?i)\b(?:password|passwd|pwd|accountkey|sharedaccesskey)=(?!\$)[^;&\s]{4,}"),
    ("a web token", r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\."),
)
_IN_ADDRESS = r"(?i)(?<![a-z0-9+.-])[a-z][a-z0-9+.-]*://[^\s/@:]*:(?P<password>[^\s/@]+)@"
_LOGIN = r"(?i)(?<![a-z0-9+.-])[a-z][a-z0-9+.-]*://(?P<login>[^\s/@]*)@"
_REFERENCE = r"\$\{?\w+\}?"


_SECRET_FILES = (
    *(
        ".env",
        ".env.*",
        "*.env",
        ".envrc",
        "*.pem",
        "*.key",
        "*.p12",
        "*.pfx",
        "*.jks",
        "*.keystore",
        "*.kdbx",
    ),
    *("*.ppk", "*.gpg", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*_rsa", "*_ed25519"),
    *("credentials", "credentials.*", "*credentials.json", "client_secret*", "service_account*.json"),
    *("service-account*.json", "secret.*", "secrets", "secrets.*", ".secrets", "*.secret", "kubeconfig"),
    *(".netrc", "_netrc", ".pypirc", ".npmrc", ".pgpass", ".my.cnf", ".htpasswd", ".git-credentials"),
    *(".dockercfg", ".vault-token", ".databrickscfg", ".s3cfg", ".boto", "application_default_credentials*"),
    *(".ssh", ".aws", ".azure", ".gnupg", ".kube", ".huggingface", "kaggle.json", "rclone.conf"),
    *(
        "*.tfstate",
        "*.tfstate.*",
        "*.tfvars",
        "*.tfvars.*",
        ".terraformrc",
        "terraform.rc",
        "pip.conf",
        "pip.ini",
    ),
    *(
        "*password.txt",
        "*passwords.txt",
        "*passwd.txt",
        "*vault_pass*",
        "htpasswd",
        "my.cnf",
        ".authinfo*",
        "authinfo",
    ),
    *(".token", "token.txt", "*_token.txt", "*_token", "*[-_]credentials", "*[-_]key.json"),
    *("*.docker/config.json", "*huggingface/stored_tokens", "*gh/hosts.yml", "*gcloud/*.db"),
)
"""Names of files and folders that look like secrets, or the ends of their paths, whatever their case."""

_SECRET_UNLESS_FOLDERS = ("password", "passwords", "secret", "token", "api_key*", "apikey*")
"""Names that look like secrets of files only: a package of Python modules may be called so."""

_HARMLESS_FILES = (
    "*.example",
    "*.sample",
    "*.template",
    "*.dist",
    "*.pub",
    "*.py",
    "*.pyi",
    "*.ipynb",
    "*.md",
    "*.rst",
)
"""Names that do not, though one of :data:`_SECRET_FILES` fits."""


def looks_secret(name: str, value: str) -> str | None:
    """Why a variable must be taken for a secret; None: it need not.

    Parameters
    ----------
    name, value
        Of the variable.

    Returns
    -------
    str or None
        In words that do not show the value: ``"its name says so"``.
    """
    reason = secret_in(value)
    if reason is not None:
        return f"its value holds {reason}"
    named = re.fullmatch(_NAMED, name) and not re.fullmatch(_SPECIAL_TOKEN, name)
    if not named or re.fullmatch(_HARMLESS, value) or re.fullmatch(_PLACE, value):
        return None
    if re.fullmatch(_NUMBER, value) and not re.fullmatch(_OF_A_PASSWORD, name):
        return None
    return "its name says so"


def secret_in(text: str) -> str | None:
    """What kind of secret a text holds by its form, such as ``"a GitHub token"``; None: none that is known.

    A password in an address counts, unless it is a reference to a variable: ``https://me:${TOKEN}@host/``.
    """
    for kind, form in _FORMS:
        if re.search(form, text):
            return kind
    if any(not re.fullmatch(_REFERENCE, found["password"]) for found in re.finditer(_IN_ADDRESS, text)):
        return "the password of an address"
    return None


def unexpanded_in(text: str) -> bool:
    """Whether a login in an address refers to a variable in another way than ``${TOKEN}``."""
    logins = (found["login"] for found in re.finditer(_LOGIN, text))
    return any("$" in re.sub(r"\$\{[A-Z0-9_]+\}", "", login) for login in logins)


def is_secret_file(path: str) -> bool:
    """Whether a file, or a folder (with ``/`` at its end), looks like a secret by what it is called."""
    folded = path.lower()
    name = folded.rstrip("/").rpartition("/")[2]
    if _named(_HARMLESS_FILES).match(name):
        return False
    if not path.endswith("/") and _named(_SECRET_UNLESS_FOLDERS).match(name):
        return True
    return any(_named(_SECRET_FILES).match(text) for text in (name, folded))


@functools.cache
def _named(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(fnmatch.translate, patterns)))
