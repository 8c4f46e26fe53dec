"""The Python environment of a step that runs in no image: :class:`PythonEnvironment`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import attrs

from upshift.errors import SettingsError, user_location
from upshift.model.checks import Told, bad_value, line, refuse_unknown_fields

_OWNER = "PythonEnvironment"


def _path(value: Any, field: Any) -> str | None:
    return None if value is None else line(_OWNER, field.name, str(value) if _is_path(value) else value)


def _is_path(value: Any) -> bool:
    return hasattr(value, "__fspath__")


def _requirements(value: Any, field: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise bad_value(_OWNER, field.name, value, 'a list of requirements: ["torch==2.13.0", "numpy"]')
    return tuple(line(_OWNER, f"requirements[{number}]", one) for number, one in enumerate(value))


def _field(check: Any) -> Any:
    return attrs.field(default=None, converter=Told(check))


@refuse_unknown_fields
@attrs.frozen(kw_only=True)
class PythonEnvironment:
    """The packages and the interpreter of a step, without an image: ``settings={"environment": …}``.

    For clusters whose nodes see this machine's folders. The environment is made once, in
    ``UPSHIFT_HOME/environments``, and found again by its content. Relative paths start from the project.
    Exactly one field is said.

    Parameters
    ----------
    lock
        A ``uv.lock``, ``pylock.toml`` or ``poetry.lock``; or a ``pyproject.toml``, which is resolved.
    requirements
        Requirements (PEP 508, wheels by path, options such as ``--extra-index-url``).
    conda
        An ``environment.yml``, for micromamba, mamba or conda, whichever is installed.
    python
        The path of an interpreter that is there already: Python 3.10 or newer.

    Raises
    ------
    SettingsError
        A field is unknown, its value is invalid, or not exactly one is said.
    """

    lock: str | None = _field(_path)
    requirements: tuple[str, ...] | None = _field(_requirements)
    conda: str | None = _field(_path)
    python: str | None = _field(_path)
    _elsewhere: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("packages", "pip", "pip_packages"), "requirements"),
        **dict.fromkeys(("uv", "pyproject", "pyproject_path", "poetry"), "lock"),
        **dict.fromkeys(("interpreter", "venv"), "python"),
        **dict.fromkeys(("conda_env", "environment"), "conda"),
    }

    def __attrs_post_init__(self) -> None:
        said = [field.name for field in attrs.fields(type(self)) if getattr(self, field.name) is not None]
        if len(said) != 1:
            what = f"says {' and '.join(said)}" if said else "says nothing"
            raise SettingsError(
                f"{_OWNER} {what}",
                where=user_location(),
                fix='Set one of lock="uv.lock", requirements=[…], conda="env.yml", python="/path/to/python".',
            )

    def __str__(self) -> str:
        if self.requirements is not None:
            return f"an environment with {', '.join(self.requirements)}"
        return f"the environment of {self.lock or self.conda}" if not self.python else str(self.python)
