"""The grammar of image names, as texts of regular expressions: one for settings and for what reads them.

Source: https://github.com/distribution/reference/blob/main/reference.go, read in November 2026.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from upshift.errors import SettingsError, nearest, user_location
from upshift.model.checks import MOST_TEXT, MOST_VARIABLE, MOST_VARIABLES, bad_value, shown, unfit
from upshift.model.settings.secrets import looks_secret, secret_in, unexpanded_in

# The grammar of image names: https://github.com/distribution/reference/blob/main/reference.go, November 2026.
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"

REGISTRY = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
REPOSITORY = rf"{_PART}(?:/{_PART})*"
TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
DIGEST = r"(?:sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})"
ID = r"(?:sha256:)?[0-9a-f]{64}"

NAME = rf"(?:(?=[^/]*[.:]|localhost/){REGISTRY}/)?{REPOSITORY}"
"""Of a repository, in a registry or in the usual one."""

IMAGE = rf"{NAME}(?::{TAG})?(?:@{DIGEST})?"

_OWNER = "DockerSettings"

# Texts, not compiled: most processes that import this see no value.
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_REQUIREMENT = (
    rf"{_NAME}\s*(?:\[[^\]]*\])?\s*(?:\(?\s*(?:===?|~=|!=|<=?|>=?)[^;]+|@\s*[^\s].*)?\s*(?:;.*|--.*)?"
)
_ONE_EQUALS_SIGN = rf"({_NAME}\s*(?:\[[^\]]*\])?)\s*=\s*([^=\s]+)"
_PATH_OR_ADDRESS = r"[.~/].*|.*://.*|.*/.*|.*\.(?:whl|zip|tar\.gz)"
_APT = r"[a-z0-9][a-z0-9+.-]+(?::[a-z0-9-]+)?(?:=[A-Za-z0-9.+:~-]+|/[a-z0-9-]+)?"
_OPTION = r"-{0,2}([A-Za-z][A-Za-z0-9_-]*)"
_IMAGE = rf"{IMAGE}|sha256:[0-9a-f]{{64}}"
_USER = r"[a-z_][a-z0-9_-]*\$?|[0-9]+"
LONGEST_NUMBER = 1024  # bits of a variable's value
_HIGHEST_ID = 2**32 - 2  # of a user or a group; the next number stands for none
_OF_RECIPES = r"upshift-[0-9a-f]{64}"
_ARCHITECTURES = {
    "x86_64": "amd64",
    "x64": "amd64",
    "aarch64": "arm64",
    "arm64/v8": "arm64",
    "armv7": "arm/v7",
    "i386": "386",
}
_PLATFORMS = tuple(
    f"linux/{name}" for name in ("amd64", "arm64", "386", "arm/v7", "ppc64le", "riscv64", "s390x")
)
THIS_PLATFORM = f"linux/{_ARCHITECTURES.get(os.uname().machine, 'amd64')}"
"""What programs of this machine are for."""
_BY_VARIABLE = "Write a variable in its place: https://me:${TOKEN}@host/simple."
_IN_REQUIREMENTS = 'Write the address in requirements: "--index-url https://me:${TOKEN}@host/simple".'
_LOGIN = "upshift doctor docker shows who is logged in where."

ACCEPTABLE = {
    "driver-too-old": "the CUDA of the image needs a newer driver",
    "image-refuses-driver": "the image says itself (NVIDIA_REQUIRE_…) that it does not start with the driver",
    "no-cuda": "a GPU of NVIDIA is asked for, and there is no CUDA",
    "no-kernels": "PyTorch or CUDA does not know the GPU",
    "no-launcher": "what a step of several processes is started with is not installed",
    "no-neuron": "a device of AWS Neuron is asked for, and there is no Neuron SDK",
    "no-rocm": "a GPU of AMD is asked for, and there is no ROCm",
    "other-platform": "the image is for another platform",
    "other-python": "a step that travels by value needs another version of Python",
    "replaces-framework": "requirements replace the PyTorch, TensorFlow or JAX of the image",
}
"""Names for ``DockerSettings(accept=…)``: what may be found to speak against an image, and be overruled."""

_PLACE = ("says where to install, or for what", "Leave it out: the image sets that.")
_WHAT = ("says what to install", "Leave it out: requirements= sets that.")
_FILE = ("names a file, which the image does not have", "Leave it out.")

_REFUSED = {
    ("target", "t", "prefix", "root", "user", "python", "p"): _PLACE,
    ("python-version", "python-platform", "platform", "abi", "implementation", "directory"): _PLACE,
    ("dry-run", "check", "help", "h", "version", "V"): ("would install nothing", "Leave it out."),
    ("requirement", "requirements", "r", "requirements-from-script", "group"): _WHAT,
    ("editable", "e", "extra", "all-extras", "upgrade-group"): _WHAT,
    ("constraint", "constraints", "c"): (_FILE[0], 'Write requirements=["-c FILE", …].'),
    ("override", "overrides", "exclude", "excludes"): _FILE,
    ("build-constraint", "build-constraints", "b"): _FILE,
}
"""Options of pip and uv that no image can honour: what to install, and where, is said by the settings.

Sources: ``pip install --help`` (25.3) and ``uv pip install --help`` (0.13).
"""


def text(value: Any, field: Any) -> str | None:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise _wrong(field.name, value, "a non-empty string")
    if value is not None:
        _refuse_controls(field.name, value)
    if value is not None and "://" in value:
        _refuse_secret(field.name, value)
    return value


def _refuse_controls(subject: str, text: str) -> None:
    """What is rendered into lines must be one: a line break in it would begin another line or instruction."""
    problem = unfit(text) or (f"has {len(text):,} characters" if len(text) > MOST_TEXT else None)
    if problem is not None:
        raise SettingsError(
            f"{_OWNER}: {subject} {problem}",
            where=user_location(),
            fix=f"A value is one line of at most {MOST_TEXT:,} characters; a list takes several.",
        )


def _wrong(field: str, value: object, expected: str, *, meant: object = None) -> SettingsError:
    """The error for a value that is invalid; it shows the value, unless that holds a secret."""
    _refuse_secret(field, shown(value, MOST_TEXT))
    return bad_value(_OWNER, field, value, expected, meant=meant)


def _refuse_secret(field: str, text: str) -> None:
    kind = secret_in(text)
    if kind is not None:
        fix = _LOGIN if field in ("parent_image", "target_repository") else _BY_VARIABLE
        raise _secret(field, f"holds {kind}", fix)


def _unexpanded(subject: str, why: str, fix: str) -> SettingsError:
    what = f"{_OWNER}: {subject} refers to a variable in an address, and nothing puts in its value"
    return SettingsError(what, where=user_location(), why=why, fix=fix)


def flag(value: Any, field: Any) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise _wrong(field.name, value, "True or False")
    return value


def _matching(pattern: str, expected: str, meant: Callable[[str], str | None]) -> Any:
    def convert(value: Any, field: Any) -> str | None:
        said = text(value, field)
        if said is not None and not re.fullmatch(pattern, said):
            raise _wrong(field.name, said, expected, meant=meant(said))
        return said

    return convert


def _image_meant(text: str) -> str | None:
    bare = re.sub(r"^(?:docker|https?|oci)://", "", text.strip())
    lower = re.sub(r"^[^:@]*", lambda name: name[0].lower(), bare)
    return lower if lower != text and re.fullmatch(_IMAGE, lower) else None


def _repository_meant(text: str) -> str | None:
    meant = _image_meant(text) or text
    name = re.sub(rf"(?::{TAG})?(?:@.*)?$", "", meant)
    return name if re.fullmatch(NAME, name) else None


def platform(value: Any, field: Any) -> str | None:
    said = text(value, field)
    if said is None or said in _PLATFORMS:
        return said
    architecture = said.lower().removeprefix("linux/")
    meant = f"linux/{_ARCHITECTURES.get(architecture, architecture)}"
    if meant not in _PLATFORMS:
        meant = nearest(said, _PLATFORMS) or ""
    raise _wrong(field.name, said, " or ".join(_PLATFORMS[:2]), meant=meant or None)


def user(value: Any, field: Any) -> str | None:
    value = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    said = text(value, field)
    if said is not None and not all(re.fullmatch(_USER, part) for part in said.split(":", 1)):
        raise _wrong(field.name, said, 'a user, or "user:group"; names or numbers')
    if said is not None and any(part.isdigit() and int(part) > _HIGHEST_ID for part in said.split(":")):
        raise _wrong(field.name, said, f"numbers up to {_HIGHEST_ID}")
    return said


def installer(value: Any, field: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or value not in ("uv", "pip")):
        meant = nearest(value, ("uv", "pip")) if isinstance(value, str) else None
        raise _wrong(field.name, value, '"uv" or "pip"', meant=meant)
    return value


def _listed(value: Any, field: Any, expected: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or not all(isinstance(i, str) and i.strip() for i in value):
        meant = value.replace(",", " ").split() if isinstance(value, str) else None
        raise _wrong(field.name, value, expected, meant=meant or None)
    items = tuple(item.strip() for item in value)
    for number, item in enumerate(items):
        _refuse_controls(f"{field.name}[{number}]", item)
    return items


def requirements(value: Any, field: Any) -> str | tuple[str, ...] | None:
    if isinstance(value, (str, os.PathLike)):
        path = text(value, field)
        assert path is not None
        if re.search(r"[=<>;@\n\[]|\s\S", path) and not re.fullmatch(_PATH_OR_ADDRESS, path):
            raise _wrong(field.name, path, "a list, or the path of a file", meant=[path])
        return path
    lines = _listed(value, field, "a list of requirements, or the path of a file")
    for number, line in enumerate(lines or ()):
        _check_requirement(line, f"{field.name}[{number}]")
    return lines


def _check_requirement(line: str, field: str) -> None:
    """What needs no parser: the rest is checked when the files are read."""
    _refuse_secret(field, line)
    if unexpanded_in(line):
        raise _unexpanded(field, "pip and uv read it as ${TOKEN}, with braces and in capitals.", _BY_VARIABLE)
    text = re.sub(r"(?:^|\s)#.*", "", line)
    if text.startswith("-") or re.fullmatch(_PATH_OR_ADDRESS, text) or re.fullmatch(_REQUIREMENT, text):
        return
    swapped = re.sub(r"=([<>!~])(?!=)", r"\1=", text)
    single = re.fullmatch(_ONE_EQUALS_SIGN, text)
    meant = f"{single[1]}=={single[2]}" if single else None
    if swapped != text and re.fullmatch(_REQUIREMENT, swapped):
        meant = swapped
    raise _wrong(field, line, 'a requirement: "torch", "torch==2.4.*", "torch>=2,<3"', meant=meant)


def apt_packages(value: Any, field: Any) -> tuple[str, ...] | None:
    packages = _listed(value, field, 'a list of Debian packages: ["git", "libgl1"]')
    for name in packages or ():
        if not re.fullmatch(_APT, name):
            meant = name.lower().replace("_", "-")
            raise _wrong(
                field.name,
                name,
                'the name of a Debian package, or "name=version"',
                meant=meant if meant != name and re.fullmatch(_APT, meant) else None,
            )
    return packages


def accept(value: Any, field: Any) -> tuple[str, ...] | None:
    names = _listed(value, field, 'a list of findings: ["driver-too-old"]')
    if names:
        for name in names:
            if name not in ACCEPTABLE:
                raise _wrong(
                    field.name, name, f"one of {', '.join(ACCEPTABLE)}", meant=nearest(name, ACCEPTABLE)
                )
    return names


def _mapping(value: Any, field: Any, example: str) -> Mapping[str, Any] | None:
    # What is in it is not shown: one of the values may be a secret.
    if value is not None and not isinstance(value, Mapping):
        raise SettingsError(
            f"{_OWNER}: {field.name} is a {type(value).__name__}, not a dict",
            where=user_location(),
            fix=f"Write {field.name}={example}.",
        )
    return value


def variables(value: Any, field: Any) -> dict[str, str] | None:
    variables = _mapping(value, field, '{"NAME": "value"}')
    if variables is None:
        return None
    checked = {name: _variable(name, variables[name], field.name) for name in variables}
    if sum(map(len, checked.values())) > MOST_VARIABLES:
        raise SettingsError(
            f"{_OWNER}: {field.name} has more than {MOST_VARIABLES:,} characters in all",
            where=user_location(),
            fix="Linux takes little more. Put what is that large into a file.",
        )
    return checked


def _variable(name: Any, value: Any, field: str) -> str:
    problem = None
    if not isinstance(name, str) or not re.fullmatch(_VARIABLE, name):
        raise SettingsError(
            f"{_OWNER}: {field}: {shown(name)} is not a valid variable name",
            where=user_location(),
            fix="Letters, digits and '_', as in OMP_NUM_THREADS.",
        )
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        problem = f"is a {type(value).__name__}, not a string"
    elif isinstance(value, str):
        problem = unfit(value, lines=True)
    elif isinstance(value, int) and value.bit_length() > LONGEST_NUMBER:
        problem = "has too many digits"
    if problem is None and len(name) + len(str(value).encode()) > MOST_VARIABLE:
        problem = f"is longer than {MOST_VARIABLE:,} bytes, and Linux takes little more"
    if problem is not None:
        raise SettingsError(
            f"{_OWNER}: {field}[{name!r}] {problem}",
            where=user_location(),
            fix=f'Write {field}={{"{name}": "…"}}, or leave it out.',
        )
    reason = looks_secret(name, str(value))
    if reason is not None:
        raise _secret(
            f"{field}[{name!r}]",
            f"looks like a secret: {reason}",
            f'{_BY_REFERENCE[field]}: @step(secrets={{"{name}": "env:{name}"}}). '
            "If it is not a secret, give it another name.",
        )
    return str(value)


_BY_REFERENCE = {
    "environment": "Name its source, and the step finds it in its environment",
    "runtime_environment": "Name its source",
    "build_args": "An image keeps its arguments. Name its source, and read it when the step runs",
}


def _secret(subject: str, problem: str, fix: str) -> SettingsError:
    return SettingsError(
        f"{_OWNER}: {subject} {problem}",
        where=user_location(),
        why="What is written there is in the code, in the image or in records that others can read.",
        fix=fix,
    )


def installer_args(value: Any, field: Any) -> dict[str, Any] | None:
    options = _mapping(value, field, '{"system": None, "index-url": "https://…"}')
    if options is None:
        return None
    found: dict[str, Any] = {}
    for name in options:
        option, value = _installer_option(name, options[name], field.name)
        if option in found:
            raise SettingsError(
                f"{_OWNER}: {field.name} has {option!r} twice, in two spellings",
                where=user_location(),
                fix="Write it once; a list as value repeats an option.",
            )
        found[option] = value
    return found


def _installer_option(name: Any, value: Any, field: str) -> tuple[str, Any]:
    match = re.fullmatch(_OPTION, name) if isinstance(name, str) else None
    if match is None:
        raise _wrong(field, name, 'an option without dashes as key: {"index-url": "https://…"}')
    option = match[1].replace("_", "-")
    impossible = _refused(option)
    if impossible is not None:
        problem, fix = impossible
        raise SettingsError(f"{_OWNER}: {field}: {name!r} {problem}", where=user_location(), fix=fix)
    values = value if isinstance(value, (list, tuple)) else (value,)
    texts = [
        str(item) for item in values if isinstance(item, (str, int, float)) and not isinstance(item, bool)
    ]
    if value is True:
        return option, None
    if value is not None and len(texts) != len(values):
        raise _wrong(field, name, "as value a string, a list of them, or None for a bare flag")
    for text in texts:
        kind, subject = secret_in(text), f"{field}[{name!r}]"
        _refuse_controls(subject, text)
        if kind is not None:
            raise _secret(subject, f"holds {kind}", _IN_REQUIREMENTS)
        if re.search(r"://[^\s/]*\$", text):
            raise _unexpanded(subject, "Installers do so in requirements alone.", _IN_REQUIREMENTS)
    return option, None if value is None else tuple(texts) if isinstance(value, (list, tuple)) else texts[0]


image = _matching(_IMAGE, 'an image: "python:3.12-slim", "registry.example.org/ml/base:1"', _image_meant)
repository = _matching(
    NAME, 'a name without tag, in small letters: "registry.example.org/ml/train"', _repository_meant
)
tag = _matching(
    rf"(?!{_OF_RECIPES}$){TAG}",
    "letters, digits, '_', '.' and '-', at most 128; not upshift-DIGEST, by which Upshift finds images",
    lambda text: None,
)


def _refused(option: str) -> tuple[str, str] | None:
    """Why an option, without its dashes, cannot be honoured, and what to do; None: it can be."""
    return next((said for names, said in _REFUSED.items() if option in names), None)
