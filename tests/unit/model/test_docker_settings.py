"""What DockerSettings takes and refuses where it is written, and how a step's and a pipeline's become one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from upshift import DockerSettings, pipeline, step
from upshift.errors import SettingsError
from upshift.model.spec.codec import decode, encode

DIGEST = "sha256:" + "0" * 64


def message(**fields: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        DockerSettings(**fields)
    assert "test_docker_settings.py:" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"parent_image": "pytorch/pytorch:1.12.1-cuda11.3-cudnn8-runtime", "requirements": ["zenml==0.39.1"]},
        {"parent_image": f"localhost:5000/ml/base:1@{DIGEST}", "skip_build": True, "user": "ml:1000"},
        {"parent_image": DIGEST},
        {"parent_image": f"[::1]:5000/x@sha512:{'0' * 128}", "target_repository": "[::1]:5000/x"},
        {"python_package_installer_args": {"system": None, "index-url": "https://pypi.example.org/simple"}},
        {"environment": {"QUOTED": "a \"b\" 'c'\n$HOME ${X} \\"}, "runtime_environment": {"N": "1"}},
        {"dockerfile": "docker/Dockerfile", "build_context_root": "docker", "build_args": {"BASE": "a"}},
        {"requirements": "requirements/train.txt", "replicate_local_python_environment": False},
        {
            "target_repository": "registry.example.org:5000/ml/train",
            "image_tag": "v1.2_x",
            "platform": "linux/arm64",
        },
        {"apt_packages": ["git", "libgl1=1.6.0-1", "libc6:i386"], "prevent_build_reuse": True},
    ],
)
def test_what_makes_sense_is_kept_and_travels(fields: dict[str, Any]) -> None:
    settings = DockerSettings(**fields)
    said = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    assert settings.explicit() == said
    assert decode(DockerSettings, encode(settings)) == settings


def test_other_forms_of_a_value() -> None:
    settings = DockerSettings(
        dockerfile=Path("docker/Dockerfile"),
        requirements=Path("requirements.txt"),
        user=1000,
        environment={"THREADS": 4},
        python_package_installer_args={"--no_cache": True, "find-links": ["a", "b"]},
    )
    assert settings.explicit() == {
        "dockerfile": "docker/Dockerfile",
        "requirements": "requirements.txt",
        "user": "1000",
        "environment": {"THREADS": "4"},
        "python_package_installer_args": {"no-cache": None, "find-links": ("a", "b")},
    }


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"parent_image": "Pytorch/Pytorch:2.1"}, ["parent_image", "Did you mean 'pytorch/pytorch:2.1'?"]),
        ({"parent_image": "docker://python:3.12"}, ["Did you mean 'python:3.12'?"]),
        ({"parent_image": "a@sha256:" + "0" * 32}, ["an image"]),
        ({"parent_image": "two words"}, ["'two words'"]),
        ({"parent_image": 3}, ["parent_image=3"]),
        ({"parent_image": " "}, ["a non-empty string"]),
        ({"requirements": ["torch=2.1"]}, ["'torch=2.1'", "Did you mean 'torch==2.1'?"]),
        (
            {"requirements": ["six", "attrs=>23"]},
            ["requirements[1]='attrs=>23'", "Did you mean 'attrs>=23'?"],
        ),
        ({"requirements": ["a[b] =~ 2.1"]}, ["Did you mean 'a[b] ~= 2.1'?"]),
        ({"requirements": ["numpy pandas"]}, ["'numpy pandas'"]),
        ({"requirements": "torch>=2.1"}, ["Did you mean ['torch>=2.1']?"]),
        ({"requirements": [3]}, ["requirements=[3]"]),
        ({"python_package_installer": "piip"}, ["Did you mean 'pip'?"]),
        ({"python_package_installer_args": ["--system"]}, ["is a list, not a dict", '{"system": None']),
        ({"python_package_installer_args": {"target": "/opt"}}, ["'target' says where to install"]),
        ({"python_package_installer_args": {"t": "/opt"}}, ["'t' says where to install"]),
        ({"python_package_installer_args": {"prefix": "/x"}}, ["'prefix' says where to install"]),
        ({"python_package_installer_args": {"python-platform": "x"}}, ["or for what"]),
        ({"python_package_installer_args": {"r": "a.txt"}}, ["'r' says what to install", "requirements="]),
        ({"python_package_installer_args": {"c": "a.txt"}}, ["names a file", '"-c FILE"']),
        ({"python_package_installer_args": {"constraint": "a.txt"}}, ["names a file", '"-c FILE"']),
        ({"python_package_installer_args": {"index_url": "a", "index-url": "b"}}, ["'index-url' twice"]),
        (
            {"python_package_installer_args": {"index-url": "https://me:${TOKEN}@h"}},
            ["nothing puts in its value", "in requirements"],
        ),
        ({"requirements": ["-i https://me:$TOKEN@h"]}, ["nothing puts in its value", "${TOKEN}"]),
        ({"requirements": ["-i https://me:${token}@h"]}, ["nothing puts in its value"]),
        ({"requirements": ["a @ https://$TOKEN@h/a.whl"]}, ["nothing puts in its value"]),
        ({"python_package_installer_args": {"two words": None}}, ["'two words'"]),
        ({"python_package_installer_args": {"pre": {}}}, ["'pre'", "None for a bare flag"]),
        ({"apt_packages": "git curl"}, ["Did you mean ['git', 'curl']?"]),
        ({"apt_packages": ["libGL1"]}, ["Did you mean 'libgl1'?"]),
        ({"apt_packages": ["git; true"]}, ["'git; true'"]),
        ({"apt_packages": ["-y"]}, ["'-y'"]),
        ({"environment": ["A=1"]}, ["environment is a list, not a dict"]),
        ({"environment": {"A-B": "1"}}, ["'A-B' is not a valid variable name"]),
        ({"environment": {"A": True}}, ["environment['A'] is a bool, not a string"]),
        ({"runtime_environment": {"A": "\0"}}, ["runtime_environment['A'] holds a NUL"]),
        ({"build_args": {"A": None}}, ["build_args['A'] is a NoneType"]),
        ({"target_repository": "registry.example.org/ml:1"}, ["Did you mean 'registry.example.org/ml'?"]),
        (
            {"requirements": ["six\n--index-url https://other.example.org"]},
            ["requirements[0]", "a line break"],
        ),
        ({"requirements": ["six\u2028idna"]}, ["requirements[0] holds a line break"]),
        ({"requirements": "a.txt\nb.txt/c"}, ["requirements holds a line break"]),
        (
            {"python_package_installer_args": {"index-url": "https://h\nRUN true"}},
            ["python_package_installer_args['index-url'] holds a line break"],
        ),
        ({"python_package_installer_args": {"find-links": ["a", "b\r"]}}, ["['find-links'] holds a line"]),
        ({"python_package_installer_args": {"help": None}}, ["'help' would install nothing"]),
        ({"python_package_installer_args": {"V": None}}, ["'V' would install nothing"]),
        ({"dockerfile": "docker/\x1bfile"}, ["dockerfile holds a control character ('\\x1b')"]),
        ({"user": "99999999999999"}, ["user='99999999999999'", "numbers up to 4294967294"]),
        ({"image_tag": "two words"}, ["image_tag"]),
        ({"image_tag": "upshift-" + "0" * 64}, ["by which Upshift finds images"]),
        ({"skip_build": "yes"}, ["skip_build='yes'", "True or False"]),
        ({"user": "a b"}, ["user='a b'"]),
        ({"platform": "amd64"}, ["Did you mean 'linux/amd64'?"]),
        ({"platform": "linux/aarch64"}, ["Did you mean 'linux/arm64'?"]),
        ({"parent_img": "x"}, ["parent_img", "Did you mean 'parent_image'?"]),
        ({"image": "x"}, ["Use parent_image."]),
        ({"copy_files": True}, ["code package"]),
        ({"build_config": {}}, ["Use build_args=… and platform=…."]),
        ({"parent_image_build_config": {}}, ["build_context_root"]),
        ({"dockerignore": "x"}, ["a .dockerignore file"]),
        ({"local_project_install_command": "pip install ."}, ['requirements=["-e ."]']),
        ({"disable_automatic_requirements_detection": True}, ["only what the settings name"]),
        ({"allow_download_from_code_repository": True}, ["code package"]),
        ({"parent_image": "x", "dockerfile": "Dockerfile"}, ["exclude each other", "FROM"]),
        (
            {"parent_image": "x", "skip_build": True, "requirements": ["a"], "image_tag": "b"},
            ["no use for requirements, image_tag", "as it is"],
        ),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], named: list[str]) -> None:
    text = message(**fields)
    for word in named:
        assert word in text


@pytest.mark.parametrize(
    ("field", "name", "value"),
    [
        ("environment", "HF_TOKEN", "correct-horse-battery"),
        ("runtime_environment", "DB_PASSWORD", "correct-horse-battery"),
        ("build_args", "AWS_SECRET_ACCESS_KEY", "correct-horse-battery"),
        ("runtime_environment", "PGPASSWORD", "correct-horse-battery"),
        ("environment", "OPENAI_API_KEY", "correct-horse-battery"),
        ("environment", "HARMLESS", "hf_abcdefghijklmnopqrstuvwxyz"),
        ("environment", "HARMLESS", "https://me:correct-horse@pypi.example.org/simple"),
        ("environment", "HARMLESS", "-----BEGIN OPENSSH PRIVATE KEY-----\nabc"),
        ("build_args", "HARMLESS", "AKIAABCDEFGHIJKLMNOP"),
        ("build_args", "AWS_SECRET_ACCESS_KEY", "/wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLE"),
        ("environment", "DB_PASSWORD", "123456"),
        ("environment", "HARMLESS", "HTTPS://me:correct-horse@pypi.example.org/simple"),
        ("environment", "DB_PASS", "correct-horse-battery"),
        ("environment", "DSN", "host=db user=ada password=correct-horse"),
        ("environment", "STORAGE", "AccountName=ml;AccountKey=Y29ycmVjdCBob3JzZQ==;Suffix=x"),
    ],
)
def test_a_secret_is_refused_with_the_way_by_reference(field: str, name: str, value: str) -> None:
    text = message(**{field: {name: value}})
    assert f"{field}['{name}'] looks like a secret" in text
    assert f'@step(secrets={{"{name}": "env:{name}"}})' in text
    assert value not in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false"),
        ("MAX_TOKENS", "4096"),
        ("PAD_TOKEN", "<pad> it"),
        ("EOS_TOKEN", "some words"),
        ("SECRETS_FILE", "/run/secrets/file"),
        ("TOKEN", ""),
        ("HF_TOKEN", "/run/secrets/hf"),
        ("HF_TOKEN", "~/.hf"),
        ("NO_PASSWORD", "1"),
        ("MAX_TOKEN", "4096"),
        ("SORT_KEY", "name of it"),
        ("PIP_INDEX_URL", "https://me:${TOKEN}@pypi.example.org/simple"),
        ("HOME", "https://host:8080/a@b"),
        ("PWD_CHECK", "correct-horse"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "private/key.json"),
        ("BYPASS", "some words"),
        ("DSN", "host=db user=ada password=${DB_PASSWORD}"),
    ],
)
def test_what_only_resembles_a_secret_is_none(name: str, value: str) -> None:
    assert DockerSettings(environment={name: value}).environment == {name: value}


@pytest.mark.parametrize(
    "fields",
    [
        {"requirements": ["--index-url https://me:correct-horse@pypi.example.org/simple"]},
        {"requirements": ["--index-url HTTPS://me:correct-horse@pypi.example.org/simple"]},
        {"requirements": "torch --extra-index-url https://me:correct-horse@pypi.example.org/simple"},
        {"requirements": "https://me:correct-horse@pypi.example.org/requirements.txt"},
        {"requirements": ["--index-url https://me:correct-horse@pypi.example.org/simple", None]},
        {"pyproject_path": "https://me:correct-horse@pypi.example.org/pylock.toml"},
        {"requirements": ["a @ git+https://ghp_abcdefghijklmnopqrstuv@github.com/a/a"]},
        {"python_package_installer_args": {"index-url": "https://me:correct-horse@pypi.example.org/simple"}},
    ],
)
def test_an_address_with_a_password_is_refused_unless_it_names_a_variable(fields: dict[str, Any]) -> None:
    text = message(**fields)
    assert "${TOKEN}" in text
    assert "correct-horse" not in text and "ghp_" not in text
    line = "--index-url https://me:${TOKEN}@pypi.example.org/simple"
    assert DockerSettings(requirements=[line]).requirements == (line,)


def over(inner: dict[str, Any], outer: dict[str, Any]) -> dict[str, Any]:
    return DockerSettings(**inner).over(DockerSettings(**outer)).explicit()


def test_each_field_of_the_step_replaces_the_pipelines() -> None:
    assert over(
        {"requirements": ["a"], "apt_packages": []},
        {"requirements": ["b", "c"], "apt_packages": ["git"], "parent_image": "x", "user": "ml"},
    ) == {"requirements": ("a",), "apt_packages": (), "parent_image": "x", "user": "ml"}


@pytest.mark.parametrize("field", ["environment", "runtime_environment", "python_package_installer_args"])
def test_mappings_are_joined_key_by_key(field: str) -> None:
    merged = over({field: {"A": "step", "B": "step"}}, {field: {"B": "pipeline", "C": "pipeline"}})
    assert merged == {field: {"A": "step", "B": "step", "C": "pipeline"}}


def test_what_contradicts_the_step_is_left_out() -> None:
    built = {"dockerfile": "Dockerfile", "build_context_root": ".", "build_args": {"A": "1"}, "user": "ml"}
    assert over({"parent_image": "x"}, built) == {"parent_image": "x", "user": "ml"}
    assert over({"dockerfile": "D"}, {"parent_image": "x", "requirements": ["a"]}) == {
        "dockerfile": "D",
        "requirements": ("a",),
    }
    adding = {"parent_image": "x", "requirements": ["a"], "runtime_environment": {"A": "1"}, "image_tag": "t"}
    assert over({"skip_build": True}, adding) == {
        "skip_build": True,
        "parent_image": "x",
        "runtime_environment": {"A": "1"},
    }
    as_it_is = {"parent_image": "x", "skip_build": True}
    assert over({"requirements": ["a"]}, as_it_is) == {"parent_image": "x", "requirements": ("a",)}
    assert over({"requirements": []}, as_it_is) == as_it_is | {"requirements": ()}
    nothing = DockerSettings(environment={}).over(DockerSettings(**as_it_is))
    assert nothing.over(DockerSettings(environment={"A": "1"})).explicit() == as_it_is | {"environment": {}}


FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "parent_image": st.sampled_from(["a", "b"]),
    "requirements": st.sampled_from([[], ["a"], ["b"]]),
    "environment": st.sampled_from([{}, {"A": "1"}, {"A": "2", "B": "2"}]),
    "runtime_environment": st.sampled_from([{}, {"A": "1"}, {"B": "2"}]),
    "dockerfile": st.sampled_from(["Dockerfile", "docker/Dockerfile"]),
    "build_context_root": st.just("."),
    "build_args": st.sampled_from([{}, {"A": "1"}, {"A": "2", "B": "2"}]),
    "skip_build": st.booleans(),
    "user": st.sampled_from(["ml", "0"]),
    "image_tag": st.sampled_from(["v1", "v2"]),
}


@st.composite
def all_settings(draw: st.DrawFn) -> DockerSettings:
    names = draw(st.sets(st.sampled_from(sorted(FIELDS)), max_size=5))
    said = {name: draw(FIELDS[name]) for name in sorted(names)}
    try:
        return DockerSettings(**said)
    except SettingsError:
        assume(False)
        raise


@given(all_settings(), all_settings(), all_settings())
def test_settings_that_make_sense_do_so_together(
    one: DockerSettings, other: DockerSettings, third: DockerSettings
) -> None:
    merged = one.over(other).over(third)  # would be refused if it contradicted itself
    for name, value in one.explicit().items():
        kept = getattr(merged, name)
        assert kept == value or (isinstance(value, dict) and value.items() <= kept.items())
    assert one.over(DockerSettings()) == one
    assert DockerSettings().over(one) == one
    assert one.over(one) == one


def test_where_each_value_comes_from_is_known() -> None:
    @step(settings={"docker": DockerSettings(requirements=["a"], environment={"A": "1"})})
    def train() -> None: ...

    @pipeline(
        settings={"docker": DockerSettings(parent_image="x", requirements=["b"], environment={"B": "2"})}
    )
    def training() -> None:
        train()

    merged = train.options.settings.over(training.options.steps)
    assert merged.docker == DockerSettings(
        parent_image="x", requirements=["a"], environment={"A": "1", "B": "2"}
    )
    origins = {name: origin.partition(" ")[2] for name, origin in merged.origins.items()}
    assert origins.pop("docker.environment").startswith("(@step) and ")
    assert origins == {"docker.parent_image": "(@pipeline)", "docker.requirements": "(@step)"}
    assert "(@pipeline)" in merged.origins["docker.environment"]
