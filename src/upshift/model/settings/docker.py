"""The container image of a step: :class:`DockerSettings`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from upshift.errors import SettingsError, user_location
from upshift.model.checks import Told, refuse_unknown_fields
from upshift.model.settings import docker_fields as fields

_BY_KEY = ("build_args", "environment", "python_package_installer_args", "runtime_environment")
_OF_THE_DOCKERFILE = ("dockerfile", "build_context_root", "build_args")
_WITHOUT_BUILDING = frozenset(
    {"accept", "parent_image", "platform", "reuse_container", "runtime_environment", "skip_build", "user"}
)


def _by_field(convert: Any) -> Any:
    return attrs.field(default=None, converter=Told(convert))


@refuse_unknown_fields
@attrs.frozen(kw_only=True)
class DockerSettings:
    """The container image of a step: dependencies only; user code travels by itself.

    Relative paths start from the project. Where a pipeline and a step both say something, each field
    of the step replaces the pipeline's; mappings are joined key by key. What contradicts the step is
    left out: its ``parent_image`` the pipeline's ``dockerfile`` and the reverse, its ``skip_build``
    whatever the pipeline adds.

    Parameters
    ----------
    parent_image
        The image to build on. Default: the official slim Python of the running minor version.
    requirements
        A list of requirements (PEP 508, wheels by path, options such as ``--extra-index-url``), or the
        path of a requirements file. ``upshift`` in any version stands for the running one.
    python_package_installer
        By whose rules packages are chosen: ``"uv"`` (the default) or ``"pip"``. uv installs them either way.
    python_package_installer_args
        Further options of the installer: ``{"index-url": "https://…"}``. ``None`` gives a bare flag,
        ``{"system": None}``; a list repeats the option.
    apt_packages
        Debian packages: ``["git", "libgl1=1.6.0-1"]``.
    environment
        Environment variables while the image is built, and in it. No secrets.
    runtime_environment
        Environment variables of the step, wherever it runs. No secrets. A change builds nothing.
    pyproject_path
        A ``pyproject.toml``, ``uv.lock``, ``pylock.toml`` or ``poetry.lock`` to install from, beside
        ``requirements``.
    replicate_local_python_environment
        Install the versions that are installed here. ``requirements`` go before them.
    dockerfile
        Path of a Dockerfile that makes the parent; excludes ``parent_image``.
    build_context_root
        The folder that this Dockerfile copies from; ``.dockerignore`` counts.
    build_args
        Arguments of this Dockerfile. No secrets.
    target_repository
        The name of the image, below the registry of the target or with a registry of its own.
    image_tag
        A tag for it, beside the one that Upshift finds it by.
    skip_build
        Use ``parent_image`` as it is.
    prevent_build_reuse
        Build even where an equal image exists.
    user
        The user that the container runs as: a name or a number, with ``:group`` or without.
    platform
        ``linux/amd64``, ``linux/arm64``, …. Default: that of the machines of the target.
    reuse_container
        Whether tasks of a mapped step may run in a container in which another one has completed. Default:
        where that makes no difference to them. ``False``: each task has a container of its own.
    accept
        Names of findings that must not refuse the image: ``["driver-too-old"]``.

    Raises
    ------
    SettingsError
        A field is unknown, its value is invalid, is a secret, or contradicts another one.
    """

    _elsewhere = {
        "base_image": "parent_image",
        "image": "parent_image",
        "packages": "requirements",
        "pip_packages": "requirements",
        "apt": "apt_packages",
        "env": "runtime_environment",
        "build_options": "build_args",
        "build_config": "build_args=… and platform=…",
        "parent_image_build_config": "build_context_root=…, build_args=… and platform=…",
        "dockerignore": "a .dockerignore file in build_context_root",
        "local_project_install_command": 'requirements=["-e ."]: what the project needs is installed; its '
        "code travels as a code package",
        "pyproject_export_command": 'pyproject_path="uv.lock", "pylock.toml" or "poetry.lock"',
        "disable_automatic_requirements_detection": "nothing of it: only what the settings name is installed",
        "install_deployment_requirements": "requirements=[…]; nothing of a deployment is in an image",
        "required_integrations": "requirements=[…] with the packages of these integrations",
        "required_hub_plugins": "requirements",
        "install_stack_requirements": "requirements=[…]; nothing of a stack is in an image",
        **dict.fromkeys(
            (
                "copy_files",
                "source_files",
                "allow_including_files_in_images",
                "allow_download_from_code_repository",
                "allow_download_from_artifact_store",
            ),
            "nothing of it: the project's files travel as a code package",
        ),
        "copy_global_config": "nothing of it: no configuration is in an image",
    }

    parent_image: str | None = _by_field(fields.image)
    requirements: str | Sequence[str] | None = _by_field(fields.requirements)
    python_package_installer: str | None = _by_field(fields.installer)
    python_package_installer_args: dict[str, str | tuple[str, ...] | None] | None = _by_field(
        fields.installer_args
    )
    apt_packages: Sequence[str] | None = _by_field(fields.apt_packages)
    environment: dict[str, str] | None = _by_field(fields.variables)
    runtime_environment: dict[str, str] | None = _by_field(fields.variables)
    pyproject_path: str | None = _by_field(fields.text)
    replicate_local_python_environment: bool | None = _by_field(fields.flag)
    dockerfile: str | None = _by_field(fields.text)
    build_context_root: str | None = _by_field(fields.text)
    build_args: dict[str, str] | None = _by_field(fields.variables)
    target_repository: str | None = _by_field(fields.repository)
    image_tag: str | None = _by_field(fields.tag)
    skip_build: bool | None = _by_field(fields.flag)
    prevent_build_reuse: bool | None = _by_field(fields.flag)
    user: str | None = _by_field(fields.user)
    platform: str | None = _by_field(fields.platform)
    reuse_container: bool | None = _by_field(fields.flag)
    accept: Sequence[str] | None = _by_field(fields.accept)
    _written: str | None = attrs.field(factory=user_location, init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.parent_image and self.dockerfile:
            raise SettingsError(
                "DockerSettings: parent_image and dockerfile exclude each other",
                where=user_location(),
                why="The FROM of a Dockerfile names the image that it builds on.",
                fix="Leave one of them out. An ARG before FROM takes the parent from build_args.",
            )
        ignored = [name for name, value in self.explicit().items() if value and name not in _WITHOUT_BUILDING]
        if self.skip_build and ignored:
            raise SettingsError(
                f"DockerSettings: skip_build=True leaves no use for {', '.join(ignored)}",
                where=user_location(),
                why="It uses parent_image as it is.",
                fix="Leave them out, or skip_build.",
            )

    @property
    def written(self) -> str | None:
        """The user's line that made these settings, as ``file:line``."""
        return self._written

    def explicit(self) -> dict[str, Any]:
        """The fields that were set, by name."""
        said = {field.name: getattr(self, field.name) for field in attrs.fields(type(self)) if field.init}
        return {name: value for name, value in said.items() if value is not None}

    def over(self, outer: DockerSettings) -> DockerSettings:
        """These settings, and ``outer``'s where these say nothing; mappings are merged key by key."""
        left, said = self.left_of(outer), self.explicit()
        joined = {name: left[name] | said[name] for name in left.keys() & said.keys()}
        return DockerSettings(**left | said | joined)

    def twice(self, other: DockerSettings) -> list[str]:
        """The fields that both set, differently."""
        own, others = self.explicit(), other.explicit()
        return [
            name
            for name in own.keys() & others.keys()
            if own[name] != others[name]
            and (
                name not in _BY_KEY
                or any(own[name][key] != others[name][key] for key in own[name].keys() & others[name].keys())
            )
        ]

    def left_of(self, outer: DockerSettings) -> dict[str, Any]:
        """What counts of ``outer``, by field, where these settings are set over it."""
        said, left = self.explicit(), outer.explicit()
        displaced: set[str] = set()
        if "parent_image" in said:
            displaced.update(_OF_THE_DOCKERFILE)
        if "dockerfile" in said:
            displaced.add("parent_image")
        if self.skip_build:
            displaced.update(left.keys() - _WITHOUT_BUILDING)
        elif any(value and name not in _WITHOUT_BUILDING for name, value in said.items()):
            displaced.add("skip_build")
        return {
            name: value
            for name, value in left.items()
            if name not in displaced and (name not in said or (name in _BY_KEY and value.keys() - said[name]))
        }

    @classmethod
    def from_value(cls, value: DockerSettings | Mapping[str, Any]) -> DockerSettings:
        """Settings, or a mapping of their fields."""
        return value if isinstance(value, DockerSettings) else cls(**value)
