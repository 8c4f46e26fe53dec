"""Metaflow's decorators of steps that functions have in another form, or not at all.

Each becomes settings, as what ``@step`` itself is told; what only flows can obey is kept beside them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from upshift.authoring.decorators import gpu_profile, resources, retry, timeout
from upshift.authoring.options import StepOptions, checked_keywords, identifier
from upshift.authoring.steps import adding, options_to_come
from upshift.errors import SettingsError, UsageError, suggestion, user_location
from upshift.model.checks import bad_value, checked_flag, line, names_elsewhere, shown
from upshift.model.settings.batch import BatchSettings
from upshift.model.settings.docker import DockerSettings
from upshift.model.settings.kubernetes import KubeflowSettings, KubernetesSettings
from upshift.model.settings.retry import Catch
from upshift.model.settings.secrets import checked_secrets
from upshift.model.settings.slurm import SlurmSettings
from upshift.model.settings.step import StepSettings
from upshift.model.spec.codec import encode

if TYPE_CHECKING:
    from upshift.authoring.pipelines import Pipeline

F = TypeVar("F", bound=Callable[..., Any])

_KNOWN_ELSEWHERE = {
    "opencv": "opencv-python",
    "py-xgboost": "xgboost",
    "pytables": "tables",
    "pytorch": "torch",
}
"""What conda calls packages that PyPI has by another name."""
_NOT_PYTHON = ("cuda", "cudnn", "gcc", "r-", "libgcc", "mkl")
"""What names of conda's packages begin with that are no Python packages."""


@checked_keywords("@environment")
def environment(*, vars: Mapping[str, str | int | float]) -> Callable[[F], F]:
    """Set environment variables for a step.

    Parameters
    ----------
    vars
        The variables. No secrets: they are recorded, unlike those of :func:`secrets`.

    Raises
    ------
    SettingsError
        A name or value makes no sense, or looks like a secret.
    """
    if not isinstance(vars, Mapping):
        raise bad_value("@environment", "vars", vars, 'a dict: {"NAME": "value"}')
    try:
        docker = DockerSettings(runtime_environment={name: _plain(value) for name, value in vars.items()})
    except SettingsError as error:
        what = error.what.replace("DockerSettings: runtime_environment", "@environment: vars")
        raise SettingsError(what, where=error.where, why=error.why, fix=error.fix) from None
    return adding(StepOptions(settings=StepSettings.said("@environment", {"docker": docker})))


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


@checked_keywords("@secrets")
def secrets(*, sources: Sequence[str] | Mapping[str, str], role: str | None = None) -> Callable[[F], F]:
    """Give a step secrets as environment variables, which are recorded nowhere, and masked in what it prints.

    Parameters
    ----------
    sources
        ``["env:HF_TOKEN"]``: a variable where the run is started, by the same name in the step; or, as
        ``@step`` takes them, ``{"HF_TOKEN": "file:token.txt"}``.
    role
        Of Metaflow's decorator; refused.

    Raises
    ------
    SettingsError
        There are no such sources.
    """
    if role is not None:
        raise _left_out("@secrets", "role", "No secrets manager is asked.")
    if isinstance(sources, (str, bytes)) or not isinstance(sources, (Mapping, Sequence)):
        raise bad_value("@secrets", "sources", sources, 'a list such as ["env:HF_TOKEN"]')
    by_variable: dict[str, Any] = dict(sources) if isinstance(sources, Mapping) else {}
    for source in () if isinstance(sources, Mapping) else sources:
        if not isinstance(source, str) or not source.startswith("env:"):
            raise SettingsError(
                f"@secrets: the source {shown(source)} cannot be read",
                where=user_location(),
                why="This version asks no secrets manager.",
                fix='Put it into a variable where the run is started: sources=["env:NAME"], or into a file: '
                'sources={"NAME": "file:PATH"}.',
            )
        by_variable[source.removeprefix("env:")] = source
    checked_secrets("@secrets", by_variable)
    return adding(StepOptions(settings=StepSettings.said("@secrets", secrets=by_variable)))


@checked_keywords("@catch")
def catch(*, var: str | None = None, print_exception: bool = True) -> Callable[[F], F]:
    """Let a flow go on after a step that failed, once it is not tried again any more.

    Parameters
    ----------
    var
        Name of the artifact that holds the :class:`~upshift.CaughtException`; None where nothing failed.
    print_exception
        Whether the exception is printed.

    Raises
    ------
    SettingsError
        ``var`` is no name.
    """
    if var is not None and (not isinstance(var, str) or not var.isidentifier()):
        raise bad_value("@catch", "var", var, "the name of an artifact, as a text")
    checked_flag("@catch", "print_exception", print_exception)
    return adding(StepOptions(settings=StepSettings(catch=Catch(var=var, shown=print_exception))))


@attrs.frozen(kw_only=True)
class CardOfStep:
    """A card that a step was promised to have.

    Parameters
    ----------
    kind
        ``"default"``, ``"blank"``, or ``"html"``: an artifact that is HTML.
    id
        What ``current.card["ID"]`` finds it by.
    attribute
        Name of the artifact that is shown.
    """

    kind: str = "default"
    id: str | None = None
    attribute: str = "html"


@checked_keywords("@card")
def card(
    function: Any = None,
    /,
    *,
    type: str = "default",
    id: str | None = None,
    options: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    customize: bool = False,
    refresh_interval: float | None = None,
    save_errors: bool = True,
) -> Any:
    """Show what a step has to show in the report: what it appends to ``upshift.current.card``.

    Steps have that without the decorator, too; it is for cards by name, and for ``type="html"``.

    Parameters
    ----------
    type
        ``"default"`` and ``"blank"`` are the same here; ``"html"``: the artifact ``html`` of the step, or the
        one that ``options={"attribute": …}`` names.
    id
        The name of the card: ``current.card["ID"]``.
    timeout, customize, refresh_interval, save_errors
        Of Metaflow's decorator. Nothing is rendered apart from the step, so that they change nothing here.

    Raises
    ------
    SettingsError
        There is no such type of card, or an option makes no sense.
    """
    if type not in ("default", "blank", "html"):
        raise SettingsError(
            f"@card: type={shown(type)} is not a known card type",
            where=user_location(),
            fix='Types: "default", "blank", "html". Whatever makes HTML can be shown: '
            "current.card.append(HTML(text)).",
        )
    if options is not None and (not isinstance(options, Mapping) or options.keys() - {"attribute"}):
        raise bad_value("@card", "options", options, '{"attribute": "NAME"}, for type="html"')
    made = CardOfStep(
        kind=type,
        id=identifier("@card", id),
        attribute=line("@card", "options['attribute']", (options or {}).get("attribute", "html")),
    )
    decorate: Callable[[Any], Any] = adding(StepOptions(flow={"card": (made,)}))
    return decorate if function is None else decorate(function)


@checked_keywords("@pypi")
def pypi(
    function: Any = None,
    /,
    *,
    packages: Mapping[str, str] | None = None,
    python: str | None = None,
    disabled: bool = False,
) -> Any:
    """Have these packages in the image of a step; ``DockerSettings(requirements=…)`` in Metaflow's words.

    A run on this machine uses what is installed here, and says so.

    Parameters
    ----------
    packages
        Versions by package: ``{"numpy": "1.26.4", "pandas": ">=2"}``; an empty text is any version.
    python
        Version of Python: the image begins with the official slim one of it.
    disabled
        Whether the step does without the packages that ``@pypi_base`` gives all steps.

    Raises
    ------
    SettingsError
        A package or version makes no sense.
    """
    decorate: Any = adding(with_packages("@pypi", packages, python, disabled))
    return decorate if function is None else decorate(function)


@checked_keywords("@conda")
def conda(
    function: Any = None,
    /,
    *,
    packages: Mapping[str, str] | None = None,
    libraries: Mapping[str, str] | None = None,
    python: str | None = None,
    disabled: bool = False,
) -> Any:
    """As :func:`pypi`: images have Python packages from PyPI, also those that conda knows by another name.

    Parameters
    ----------
    packages, libraries, python, disabled
        As for :func:`pypi`; ``libraries`` is an older name of ``packages``.

    Raises
    ------
    SettingsError
        A package is none of Python's.
    """
    decorate: Any = adding(
        with_packages("@conda", from_conda("@conda", packages, libraries), python, disabled)
    )
    return decorate if function is None else decorate(function)


def from_conda(owner: str, packages: Any, libraries: Any) -> Mapping[str, str] | None:
    """The packages as PyPI names them; None if there are none."""
    given = [one for one in (packages, libraries) if one is not None]
    if len(given) > 1 or not all(isinstance(one, Mapping) for one in given):
        raise bad_value(owner, "packages", packages, 'a dict of versions by package: {"numpy": "1.26.4"}')
    found: dict[str, str] = {}
    for name, version in given[0].items() if given else ():
        plain = str(name).partition("::")[2] or str(name)  # what precedes is a channel
        if plain.startswith(_NOT_PYTHON):
            raise SettingsError(
                f"{owner}: {shown(name)} is not a Python package, and images are made from PyPI",
                where=user_location(),
                fix="Have it in the parent: @step(settings={'docker': DockerSettings(parent_image=…)}), or "
                "DockerSettings(apt_packages=[…]).",
            )
        found[_KNOWN_ELSEWHERE.get(plain, plain)] = version
    return found if given else None


def with_packages(owner: str, packages: Any, python: Any, disabled: bool) -> StepOptions:
    """The image that has them, or that the step does without those of all steps."""
    if packages is not None and not isinstance(packages, Mapping):
        raise bad_value(owner, "packages", packages, 'a dict of versions by package: {"numpy": "1.26.4"}')
    if checked_flag(owner, "disabled", disabled):
        return StepOptions(flow={"alone": True})
    requirements = [_requirement(owner, name, version) for name, version in (packages or {}).items()]
    parent = None
    if python is not None:
        version = line(owner, "python", python)
        if not all(part.isdecimal() for part in version.split(".")) or version.count(".") not in (1, 2):
            raise bad_value(owner, "python", python, 'a version such as "3.11" or "3.11.9"')
        parent = f"python:{version}-slim"
    try:
        docker = DockerSettings(requirements=requirements or None, parent_image=parent)
    except SettingsError as error:
        what = error.what.replace("DockerSettings: requirements", f"{owner}: packages")
        raise SettingsError(what, where=error.where, why=error.why, fix=error.fix) from None
    return StepOptions(settings=StepSettings.said(owner, {"docker": docker}))


def _requirement(owner: str, name: object, version: object) -> str:
    if not isinstance(name, str) or not isinstance(version, (str, int, float)):
        raise bad_value(owner, f"packages[{shown(name)}]", version, 'a version such as "1.26.4"')
    said = str(version).strip()
    if not said or said[0] in "<>=!~":
        return f"{name}{said}"
    return f"{name} {said}" if said[0] == "@" else f"{name}=={said}"


def _requested(
    owner: str,
    given: Mapping[str, Any],
    fields: Sequence[str],
    elsewhere: Callable[[str], str | None] = lambda name: None,
) -> StepSettings:
    """What a decorator of a backend asks for; any other option is one of the backend's fields."""
    unknown = next((name for name in given if name not in (*_ASKED, *fields)), None)
    if unknown is not None:
        said = elsewhere(unknown)
        raise SettingsError(
            f"{owner} has no option {unknown!r}",
            where=user_location(),
            fix=f"Use {said}." if said else f"Options: {', '.join((*_ASKED, *fields))}.",
        )
    asked = {name: value for name, value in given.items() if name in _ASKED and value is not None}
    (requested,) = options_to_come(resources(**asked)(_nothing))
    return requested.settings


def _nothing() -> None:
    """What the decorators of others are put on, for what they say."""


_ASKED = ("cpu", "gpu", "memory", "disk", "shared_memory", "gpu_vendor", "trainium", "inferentia")


def batch(function: Any = None, /, *, on: str = "aws-batch", **given: Any) -> Any:
    """Run a step as a job of AWS Batch.

    Parameters
    ----------
    on
        The target. ``"aws-batch"`` needs no configuration where the step names its queue and role, and the
        run's store is a bucket.
    given
        What the step asks for (``cpu``, ``gpu``, ``memory``, ``disk``, ``shared_memory``, ``gpu_vendor``,
        ``trainium``, ``inferentia``), as in :func:`resources`; ``image``, the image that its own begins with;
        and the fields of :class:`BatchSettings`: ``queue``, ``iam_role``, ``efa``, ….

    Raises
    ------
    SettingsError
        An option is unknown, or its value is invalid.
    """
    given = {"tags" if name == "aws_batch_tags" else name: value for name, value in given.items()}
    return _moved("@batch", "aws-batch", BatchSettings, function, on, given, image=True)


def kubernetes(function: Any = None, /, *, on: str = "kubernetes", **given: Any) -> Any:
    """Run a step in a pod of Kubernetes.

    Parameters
    ----------
    on
        The target. ``"kubernetes"`` is the cluster of the kubeconfig's current context.
    given
        What the step asks for (``cpu``, ``gpu``, ``memory``, ``disk``, ``shared_memory``, ``gpu_vendor``), as
        in :func:`resources`; ``image``, the image that its own begins with; and the fields of
        :class:`KubernetesSettings`: ``namespace``, ``node_selector``, ``persistent_volume_claims``, ….

    Raises
    ------
    SettingsError
        An option is unknown, or its value is invalid.
    """
    return _moved("@kubernetes", "kubernetes", KubernetesSettings, function, on, given, image=True)


def _kubeflow(function: Any = None, /, *, on: str = "kubeflow", **given: Any) -> Any:
    """As :func:`kubernetes`, for the only target of Kubeflow's, which takes all steps or none."""
    return _moved("@kubeflow", "kubeflow", KubeflowSettings, function, on, given, image=True)


def slurm(function: Any = None, /, *, on: str = "slurm", **given: Any) -> Any:
    """Run a step as a job of Slurm.

    Parameters
    ----------
    on
        The target. ``"slurm"`` needs no configuration where ``sbatch`` is.
    given
        What the step asks for (``cpu``, ``gpu``, ``memory``, ``disk``, ``gpu_vendor``), as in
        :func:`resources`; and the fields of :class:`SlurmSettings`: ``partition``, ``account``, ``qos``,
        ``time``, ``constraint``, ``gres``, ``exclusive``, ``reservation``, ``extra``.

    Raises
    ------
    SettingsError
        An option is unknown, or its value is invalid.
    """
    return _moved("@slurm", "slurm", SlurmSettings, function, on, given)


def _moved(
    owner: str,
    key: str,
    cls: Any,
    function: Any,
    on: str,
    given: Mapping[str, Any],
    *,
    image: bool = False,
) -> Any:
    """What moves a step to a backend with settings of its own, and says what it asks for there."""
    given = {name: value for name, value in given.items() if value is not None}
    fields = [field.name for field in attrs.fields(cls) if field.init]
    requested = _requested(owner, given, [*(["image"] if image else []), *fields], names_elsewhere(cls).get)
    own = {name: value for name, value in given.items() if name in fields}
    records: dict[str, Any] = {"backends": {key: encode(cls(**own))} if own else {}}
    if "image" in given:
        records["docker"] = DockerSettings(parent_image=given["image"])
    decorate: Any = adding(StepOptions(settings=requested.beside(StepSettings.said(owner, records, on=on))))
    return decorate if function is None else decorate(function)


def with_decorators(pipeline: Pipeline[Any, Any], texts: Sequence[str]) -> Pipeline[Any, Any]:
    """A copy whose steps have these decorators, where they do not say the same themselves.

    Parameters
    ----------
    texts
        As the command line has them: ``"retry:times=3"``.

    Raises
    ------
    UsageError
        There is no such decorator, or an option makes no sense.
    """
    if not texts:
        return pipeline
    steps = pipeline.options.steps
    for given in texts:
        name, _, options = given.partition(":")
        decorator = _WITH.get(name)
        if decorator is None:
            raise UsageError(f"--with {given}: no decorator is called {name!r}", fix=suggestion(name, _WITH))
        said = dict(_option(given, part) for part in re.split(r",(?=[A-Za-z_]\w*=)", options) if part)
        try:
            decorated = decorator(**said)(_nothing)
        except SettingsError as error:
            raise UsageError(f"--with {given}: {error.what}", fix=error.fix) from None
        for one in options_to_come(decorated):
            said_by = dict.fromkeys(one.settings.origins, f"--with {given}")
            steps = attrs.evolve(one.settings, origins=said_by).over(steps)
    return pipeline.changed(attrs.evolve(pipeline.options, steps=steps))


def _option(given: str, part: str) -> tuple[str, Any]:
    name, equals, value = part.partition("=")
    if not equals:
        raise UsageError(
            f"--with {given}: {part!r} has no value", fix="Write NAME:OPTION=VALUE,OPTION=VALUE."
        )
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


_WITH: Mapping[str, Callable[..., Any]] = {
    "batch": batch,
    "card": card,
    "catch": catch,
    "conda": conda,
    "environment": environment,
    "gpu_profile": gpu_profile,
    "kubeflow": _kubeflow,
    "kubernetes": kubernetes,
    "pypi": pypi,
    "resources": resources,
    "retry": retry,
    "secrets": secrets,
    "slurm": slurm,
    "timeout": timeout,
}
"""What steps can be given from outside."""


def _left_out(owner: str, field: str, why: str) -> SettingsError:
    return SettingsError(
        f"{owner}: {field} is not supported", where=user_location(), why=why, fix="Leave it out."
    )
