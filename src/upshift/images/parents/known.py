"""Images whose contents are known by their names: dated tables, by publisher.

Only under its publisher's own name is an image taken for what it is called: a mirror may hold anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from upshift.images.base import Contents, Reference
from upshift.runtime.accelerators.compatibility import parse

GLIBC: Mapping[str, str] = {
    "debian buster": "2.28",
    "debian bullseye": "2.31",
    "debian bookworm": "2.36",
    "debian trixie": "2.41",
    "debian 10": "2.28",
    "debian 11": "2.31",
    "debian 12": "2.36",
    "debian 13": "2.41",
    "ubuntu 18.04": "2.27",
    "ubuntu 20.04": "2.31",
    "ubuntu 22.04": "2.35",
    "ubuntu 24.04": "2.39",
    "amzn 2": "2.26",
    "amzn 2023": "2.34",
    "rhel 8": "2.28",
    "rhel 9": "2.34",
}
"""The C library of distributions, by name and version or code name.

Source: mayeut/pep600_compliance ``README.rst``, 'Distro compatibility'. Read on 2026-11-21.
"""

PYTORCH_PYTHON: Mapping[str, str] = {
    **dict.fromkeys(("2.14", "2.13", "2.12", "2.11", "2.10"), "3.12"),
    **dict.fromkeys(("2.9", "2.8", "2.7", "2.6", "2.5", "2.4"), "3.11"),
    **dict.fromkeys(("2.3", "2.2", "2.1", "2.0", "1.13.1"), "3.10"),
    "1.12": "3.7",
}
"""The Python of ``pytorch/pytorch``, by release of PyTorch. A newer release is not judged by it.

Sources: pytorch/pytorch issue 73714 (1.12), RaoFoundation/bittensor pull request 1089 (1.13.1: 3.10.8),
rlan/notebooks issue 144 (2.5.1: 3.11.10), pull requests 169873 and 170338 (2.10: Ubuntu's 3.12.3 instead of
conda's), notes on the 2.14.0 image (3.12.3); between those the ``PYTHON_VERSION`` of pytorch/pytorch's
``docker.Makefile`` and ``Dockerfile`` as they were.
"""

TABLE = "the table of known images"

LAUNCHERS = frozenset({"accelerate", "deepspeed", "transformers", "datasets", "lightning"})
"""What images with a bare framework do not have."""


@attrs.frozen(kw_only=True)
class KnownImage:
    """An image whose name says what it is."""

    contents: Contents
    source: str  # where that was read, and when
    private: str | None = None  # what it is, where its registry wants a login


def _image(source: str, *, private: str | None = None, **contents: Any) -> KnownImage:
    contents = {"stacks": {"amd": "", "neuron": ""}, "source": TABLE, **contents}
    return KnownImage(contents=Contents(**contents), source=f"{source}; read on 2026-11-21", private=private)


def known(reference: Reference) -> KnownImage | None:
    """What is known of an image by its name; None: nothing."""
    for pattern, read in _FAMILIES:
        if pattern.fullmatch(reference.name):
            return read(reference)
    return None


def _python(reference: Reference) -> KnownImage | None:
    tag = reference.tag or ""
    found = re.match(r"(3\.\d+(?:\.\d+)?)(?:-|$)", tag)
    if "windows" in tag or "nanoserver" in tag:
        return None
    python = found[1] if found else None
    codename = re.search(r"buster|bullseye|bookworm|trixie", tag)
    glibc = "" if "alpine" in tag else GLIBC[f"debian {codename[0]}"] if codename else None
    return _image(
        "docker-library/python Dockerfile-linux.template and versions.json",
        python=python,
        interpreter="/usr/local/bin/python3",
        site_packages=f"/usr/local/lib/python{minor(python)}/site-packages" if python else None,
        cuda="",
        packages={},
        glibc=glibc,
    )


def _pytorch(reference: Reference) -> KnownImage | None:
    found = re.fullmatch(
        r"(\d+\.\d+\.\d+)(?:-cuda(\d+\.\d+)-cudnn\d+-(?:runtime|devel))?", reference.tag or ""
    )
    if not found:
        return None
    torch, cuda = found[1], found[2]
    python = PYTORCH_PYTHON.get(torch) or PYTORCH_PYTHON.get(minor(torch))
    conda = parse(torch) < (2, 10)  # from then on it is Ubuntu's own Python
    if python is None:
        return None
    return _image(
        "pytorch/pytorch Dockerfile, as it was for 1.12 to 2.14",
        python=python,
        interpreter="/opt/conda/bin/python3" if conda else "/usr/bin/python3",
        site_packages=f"/opt/conda/lib/python{python}/site-packages"
        if conda
        else f"/usr/local/lib/python{python}/dist-packages",
        cuda=cuda,
        packages={"torch": torch + (f"+cu{cuda.replace('.', '')}" if cuda else "")},
        complete=False,
        lacks=LAUNCHERS,
        glibc=_pytorch_glibc(torch),
    )


def _pytorch_glibc(torch: str) -> str:
    """Sources: pytorch/pytorch pull requests 101301 (Ubuntu 20.04), 113032 (22.04), 170338 (24.04)."""
    release = parse(torch)[:2]
    for first, ubuntu in (((2, 10), "24.04"), ((2, 2), "22.04"), ((2, 1), "20.04")):
        if release >= first:
            return GLIBC[f"ubuntu {ubuntu}"]
    return GLIBC["ubuntu 18.04"]


def _nvidia_cuda(reference: Reference) -> KnownImage | None:
    tag = reference.tag or ""
    found = re.match(r"(\d+\.\d+(?:\.\d+)?)-(?:cudnn\d*-)?(base|runtime|devel)-ubuntu(\d\d\.\d\d)", tag)
    if not found:
        return None
    bare = found[2] != "devel"  # of whose packages not all were read
    return _image(
        "NVIDIA's Dockerfile for CUDA 12.4.1 on Ubuntu 22.04, base",
        python="" if bare else None,
        cuda=minor(found[1]),
        packages={} if bare else None,
        glibc=GLIBC.get(f"ubuntu {found[3]}"),
    )


def _tensorflow(reference: Reference) -> KnownImage | None:
    tag = reference.tag or ""
    release = re.match(r"(\d+\.\d+\.\d+)", tag)
    if not release and not tag.startswith("latest"):
        return None
    gpu = "gpu" in tag
    version = release[1] if release else None
    new = version is None or parse(version) >= (2, 14)
    if not new and parse(version) < (2, 12):
        return None
    python = "3.11" if new else "3.8"
    return _image(
        "tensorflow/build tensorflow_runtime_dockerfiles, of 2023-02 to 2026-02",
        python=python,
        interpreter="/usr/bin/python3",
        site_packages=f"/usr/local/lib/python{python}/dist-packages",
        cuda=None if gpu else "",  # its environment says it
        packages={"tensorflow": version} if version else None,
        complete=False,
        lacks=LAUNCHERS | {"torch"},
        glibc=GLIBC["ubuntu 22.04" if new else "ubuntu 20.04"],
    )


def _rocm(reference: Reference) -> KnownImage | None:
    text = _words(reference)
    rocm = re.search(r"rocm(\d+\.\d+(?:\.\d+)?)", text)
    torch = re.search(r"pytorch(?:_release)?[-_](\d+\.\d+(?:\.\d+)?)", text)
    if not rocm:
        return None
    return _by_words(
        text,
        "tags of Docker Hub's rocm/pytorch, such as rocm7.2.4_ubuntu24.04_py3.12_pytorch_release_2.10.0",
        cuda="",
        stacks={"amd": rocm[1], "neuron": ""},
        packages={"torch": torch[1]} if torch else None,
    )


def _aws(reference: Reference) -> KnownImage | None:
    repository, tag = reference.repository.rpartition("/")[2], reference.tag or ""
    framework = re.match(r"(\d+\.\d+\.\d+)", tag)
    venv = repository == "pytorch" and tag.startswith(("2.11", "2.12", "2.13"))  # on Amazon Linux
    python = _python_in(tag) or ("3.12" if venv else None)
    neuron = re.search(r"sdk(\d+\.\d+(?:\.\d+)?)", tag)
    cuda = _cuda_in(tag)
    if cuda is None and neuron:
        cuda = ""
    torch = framework[1] if framework and "pytorch" in repository else None
    packages = {"torch": torch + (f"+cu{cuda.replace('.', '')}" if cuda else "")} if torch else None
    return _by_words(
        tag,
        "aws/deep-learning-containers docs/src/data and docker/",
        private=None if reference.registry.startswith("public.") else "an AWS Deep Learning Container",
        python=python,
        interpreter="/opt/venv/bin/python3" if venv else None,
        site_packages=f"/opt/venv/lib/python{python}/site-packages" if venv else None,
        cuda=cuda,
        stacks={"amd": "", "neuron": neuron[1] if neuron else ""},
        packages=packages,
    )


def _google(reference: Reference) -> KnownImage | None:
    return _by_words(
        _words(reference),
        "names such as huggingface-pytorch-training-cu121.2-3.transformers.4-42.ubuntu2204.py310 in "
        "Hugging Face, 'Available DLCs on Google Cloud'",
        private="a Deep Learning Container of Google Cloud",
    )


def _azure(reference: Reference) -> KnownImage | None:
    return _by_words(
        _words(reference),
        "Microsoft, 'Prebuilt Docker images for inference', with names such as "
        "minimal-ubuntu22.04-py39-cuda11.8-gpu-inference",
    )


def _words(reference: Reference) -> str:
    return f"{reference.repository.rpartition('/')[2]}:{reference.tag or ''}"


def _by_words(text: str, source: str, *, private: str | None = None, **more: Any) -> KnownImage:
    """An image whose tag or last name lists what is in it."""
    said = {"python": _python_in(text), "cuda": _cuda_in(text), "glibc": _glibc_in(text)}
    return _image(source, private=private, complete=False, **{**said, **more})


def _cuda_in(text: str) -> str | None:
    """The CUDA of ``cuda11.8`` or ``cu118``; empty for ``-cpu``."""
    found = re.search(r"cuda(\d+\.\d+)", text)
    if found:
        return found[1]
    short = re.search(r"(?:^|[-_.:])cu(\d{2})(\d)(?!\d)", text)
    return f"{short[1]}.{short[2]}" if short else "" if "-cpu" in text else None


def _python_in(text: str) -> str | None:
    """The Python of ``py310`` or ``py3.10``; ``py3`` says none."""
    found = re.search(r"(?:^|[-_.:])py(?:thon)?3\.?(\d{1,2})(?!\d)", text)
    return f"3.{found[1]}" if found else None


def _glibc_in(text: str) -> str | None:
    found = re.search(r"ubuntu(\d\d)\.?(\d\d)", text)
    if found:
        return GLIBC.get(f"ubuntu {found[1]}.{found[2]}")
    return GLIBC["amzn 2023"] if "amzn2023" in text else None


_FAMILIES: tuple[tuple[re.Pattern[str], Callable[[Reference], KnownImage | None]], ...] = tuple(
    (re.compile(pattern), read)
    for pattern, read in (
        (r"docker\.io/library/python", _python),
        (r"docker\.io/pytorch/pytorch", _pytorch),
        (r"(?:docker\.io|nvcr\.io)/nvidia/cuda", _nvidia_cuda),
        (r"docker\.io/tensorflow/tensorflow", _tensorflow),
        (r"docker\.io/rocm/.+", _rocm),
        (
            r"(?:\d{12}\.dkr\.ecr\.[a-z0-9-]+\.amazonaws\.com(?:\.cn)?|public\.ecr\.aws/(?:deep-learning-containers|neuron))"
            r"/(?:(?:pytorch|tensorflow|huggingface|autogluon|mxnet|stabilityai|djl|vllm|sglang)[a-z0-9-]*|base)",
            _aws,
        ),
        (
            r"(?:[a-z]+-docker\.pkg\.dev|(?:[a-z]+\.)?gcr\.io)"
            r"/(?:deeplearning-platform-release|vertex-ai/(?:training|prediction))/.+",
            _google,
        ),
        (r"mcr\.microsoft\.com/azureml/.+", _azure),
    )
)
"""Registry and repository, and who reads the rest."""


# -- versions, which names and packages say --------------------------------------------------------


def minor(version: str) -> str:
    """The minor version: ``2.1`` of ``2.1.0+cu121``."""
    return ".".join(map(str, parse(version)[:2]))


def cuda_of(version: str) -> str | None:
    """The CUDA in a local version: ``12.1`` of ``2.1.0+cu121``; empty for ``+cpu`` and ``+rocm…``; None: none
    is said.
    """
    _, plus, local = version.partition("+")
    if not plus:
        return None
    if local.startswith("cu") and local[2:].isdigit() and len(local) > 3:
        return f"{local[2:-1]}.{local[-1]}"
    return "" if local == "cpu" or local.startswith(("rocm", "xpu")) else None


def rocm_of(version: str) -> str | None:
    """The ROCm in a local version: ``6.4`` of ``2.9.0+rocm6.4``; None: it does not say one."""
    _, _, local = version.partition("+")
    return local[4:] if local.startswith("rocm") and local[4:5].isdigit() else None


def cuda_of_runtime(packages: Mapping[str, str]) -> str | None:
    """The CUDA of NVIDIA's own package among these; None: it is not there."""
    named = (n for n in sorted(packages) if re.fullmatch(r"nvidia-cuda-runtime(?:-cu\d+)?", n))
    return next((minor(packages[name]) for name in named), None)


def cuda_in(packages: Mapping[str, str]) -> str | None:
    """The CUDA that packages bring; empty: their PyTorch is built without; None: they do not say."""
    said = cuda_of(packages.get("torch", ""))
    if said:
        return said
    if runtime := cuda_of_runtime(packages):
        return runtime
    for name in sorted(packages):
        if found := re.fullmatch(r"cupy-cuda(\d+)x?", name):
            return found[1]
    # Wheels of PyTorch before 1.13 have CUDA in them and say it nowhere.
    return "" if said == "" or parse(packages.get("torch")) >= (1, 13) else None
