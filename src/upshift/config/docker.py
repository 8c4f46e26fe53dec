"""The container image of a step: :class:`DockerSettings`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from upshift.config.settings import bad_value, refuse_unknown_fields


def _text(value: Any, field: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise bad_value("DockerSettings", field.name, value, "a non-empty string")
    return value


def _flag(value: Any, field: Any) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise bad_value("DockerSettings", field.name, value, "True or False")
    return value


def _texts(value: Any, field: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    items = (value,) if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(i, str) and i.strip() for i in items):
        raise bad_value("DockerSettings", field.name, value, "a list of strings, or the path of a file")
    return tuple(items)


def _mapping(value: Any, field: Any) -> dict[str, str | None] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or not all(isinstance(k, str) for k in value):
        raise bad_value("DockerSettings", field.name, value, "a dict with strings as keys")
    return {k: None if v is None else str(v) for k, v in value.items()}


def _installer(value: Any, field: Any) -> str | None:
    if value not in (None, "uv", "pip"):
        raise bad_value("DockerSettings", field.name, value, '"uv" or "pip"')
    return value  # type: ignore[no-any-return]


def _by_field(convert: Any) -> Any:
    return attrs.field(default=None, converter=attrs.Converter(convert, takes_field=True))


@refuse_unknown_fields
@attrs.frozen(kw_only=True)
class DockerSettings:
    """The container image of a step: dependencies only; user code travels by itself.

    Parameters
    ----------
    parent_image
        The image to build on. Default: the official slim Python of the running minor version.
    requirements
        Requirements, or the path of a requirements file.
    python_package_installer
        ``"uv"`` or ``"pip"``.
    python_package_installer_args
        Further arguments of the installer; a value of ``None`` gives a bare flag.
    apt_packages
        Debian packages.
    environment
        Environment variables while building.
    runtime_environment
        Environment variables of the step.
    pyproject_path
        A ``pyproject.toml`` or lock file to install from.
    replicate_local_python_environment
        Install what is installed here.
    dockerfile
        Build from this Dockerfile.
    build_context_root
        The folder that this Dockerfile copies from.
    build_args
        Arguments of this Dockerfile.
    target_repository
        The name of the image.
    image_tag
        Its tag.
    skip_build
        Use ``parent_image`` as it is.
    prevent_build_reuse
        Build even where an equal image exists.
    user
        The user that the container runs as.
    platform
        Platform, for example ``linux/amd64``.

    Raises
    ------
    SettingsError
        A field is unknown, or its value makes no sense.
    """

    parent_image: str | None = _by_field(_text)
    requirements: tuple[str, ...] | None = _by_field(_texts)
    python_package_installer: str | None = _by_field(_installer)
    python_package_installer_args: dict[str, str | None] | None = _by_field(_mapping)
    apt_packages: tuple[str, ...] | None = _by_field(_texts)
    environment: dict[str, str | None] | None = _by_field(_mapping)
    runtime_environment: dict[str, str | None] | None = _by_field(_mapping)
    pyproject_path: str | None = _by_field(_text)
    replicate_local_python_environment: bool | None = _by_field(_flag)
    dockerfile: str | None = _by_field(_text)
    build_context_root: str | None = _by_field(_text)
    build_args: dict[str, str | None] | None = _by_field(_mapping)
    target_repository: str | None = _by_field(_text)
    image_tag: str | None = _by_field(_text)
    skip_build: bool | None = _by_field(_flag)
    prevent_build_reuse: bool | None = _by_field(_flag)
    user: str | None = _by_field(_text)
    platform: str | None = _by_field(_text)

    def explicit(self) -> dict[str, Any]:
        """The fields that were set, by name."""
        return {k: v for k, v in attrs.asdict(self).items() if v is not None}

    def over(self, outer: DockerSettings) -> DockerSettings:
        """These settings where they are set, ``outer``'s elsewhere."""
        return DockerSettings(**(outer.explicit() | self.explicit()))

    @classmethod
    def from_value(cls, value: DockerSettings | Mapping[str, Any]) -> DockerSettings:
        """Settings, or a mapping of their fields."""
        return value if isinstance(value, DockerSettings) else cls(**value)
