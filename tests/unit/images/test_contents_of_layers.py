"""What a look into layers finds, on archives made for it."""

from __future__ import annotations

import gzip
import io
import sys
import tarfile
from collections.abc import Iterator, Mapping

import pytest

from upshift.errors import ImageError
from upshift.images.base import Contents
from upshift.images.parents import inspecting, traces
from upshift.images.parents.inspecting import read_layer
from upshift.images.parents.traces import Traces, distribution

CONDA_PATH = "/opt/conda/bin:/usr/local/bin:/usr/bin"
TORCH_VERSION = "__version__ = '2.1.0'\ndebug = False\ncuda: Optional[str] = '12.1'\ngit_version = 'abc'\n"


def packed(files: Mapping[str, str] | None = None, links: Mapping[str, str] | None = None) -> bytes:
    """An archive; a link's target after its path."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for path, text in (files or {}).items():
            member = tarfile.TarInfo(path)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
        for path, target in (links or {}).items():
            member = tarfile.TarInfo(path)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return plain.getvalue()


def pieces(data: bytes, size: int = 777) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def seen(*layers: bytes, path: str = "/usr/local/bin:/usr/bin:/bin", **environment: str) -> Contents:
    found = [read_layer(pieces(layer), "sha256:1") for layer in layers]
    return traces.contents(traces.stacked(found), {"PATH": path, **environment}, "its layers")


def test_a_conda_image_of_pytorch() -> None:
    home = "opt/conda/lib/python3.10"
    found = seen(
        packed(
            {
                "opt/conda/bin/python3.10": "ELF",
                f"{home}/os.py": "",
                f"{home}/site-packages/torch-2.1.0-py3.10.egg-info/PKG-INFO": "",
                f"{home}/site-packages/torch/version.py": TORCH_VERSION,
                f"{home}/site-packages/PyYAML-6.0.1.dist-info/METADATA": "",
                "opt/conda/include/python3.10/patchlevel.h": '#define PY_VERSION      "3.10.13"\n',
            },
            {"opt/conda/bin/python": "python3.10", "opt/conda/bin/python3": "python3.10"},
        ),
        path=CONDA_PATH,
    )
    assert found.python == "3.10.13"
    assert found.interpreter == "/opt/conda/bin/python3"
    assert found.site_packages == f"/{home}/site-packages"
    assert found.packages == {"torch": "2.1.0+cu121", "pyyaml": "6.0.1"}
    assert found.cuda == "12.1"


def test_packages_for_ubuntus_python_go_to_usr_local() -> None:
    status = (
        "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.39-0ubuntu8.4\n\n"
        "Package: python3.12\nStatus: install ok installed\nVersion: 3.12.3-1ubuntu0.5\n\n"
        "Package: zlib1g\nVersion: 1:1.3\n"
    )
    found = seen(
        packed(
            {
                "usr/bin/python3.12": "ELF",
                "usr/lib/python3.12/os.py": "",
                "usr/lib/python3/dist-packages/wheel-0.42.0.egg-info": "",
                "usr/local/lib/python3.12/dist-packages/torch-2.14.0+cu130.dist-info/RECORD": "",
                "var/lib/dpkg/status": status,
            },
            {"usr/bin/python3": "python3.12", "bin": "usr/bin"},
        )
    )
    assert found.python == "3.12.3"
    assert found.site_packages == "/usr/local/lib/python3.12/dist-packages"
    assert found.packages == {"wheel": "0.42.0", "torch": "2.14.0+cu130"}
    assert (found.cuda, found.glibc) == ("13.0", "2.39")


def test_a_virtual_environment_on_the_path_is_what_runs() -> None:
    found = seen(
        packed(
            {
                "usr/bin/python3.11": "ELF",
                "usr/lib/python3.11/os.py": "",
                "opt/venv/pyvenv.cfg": "home = /usr/bin\nversion = 3.11.9\n",
                "opt/venv/lib/python3.11/site-packages/numpy-2.1.0.dist-info/METADATA": "",
                "usr/lib/python3/dist-packages/six-1.16.0.egg-info": "",
            },
            {"opt/venv/bin/python3": "python", "opt/venv/bin/python": "/usr/bin/python3.11"},
        ),
        path="/opt/venv/bin:/usr/bin",
    )
    assert found.interpreter == "/opt/venv/bin/python3"
    assert found.python == "3.11.9"
    assert found.site_packages == "/opt/venv/lib/python3.11/site-packages"
    assert found.packages == {"numpy": "2.1.0"}


def test_links_to_folders_are_followed() -> None:
    found = seen(
        packed(
            {"usr/bin/python3.9": "ELF", "usr/lib/python3.9/os.py": ""},
            {
                "bin": "usr/bin",
                "usr/bin/python3": "/etc/alternatives/python3",
                "etc/alternatives/python3": "/bin/python3.9",
            },
        ),
        path="/bin",
    )
    assert (found.interpreter, found.python) == ("/bin/python3", "3.9")


def test_links_that_lead_in_a_circle_are_no_interpreter() -> None:
    found = seen(packed(links={"usr/bin/python3": "python", "usr/bin/python": "python3"}))
    assert found.python == "" and found.interpreter is None


def test_an_image_without_python_says_so() -> None:
    found = seen(packed({"bin/sh": "ELF", "etc/os-release": 'ID=ubuntu\nVERSION_ID="22.04"\n'}))
    assert (found.python, found.packages, found.complete, found.glibc) == ("", {}, True, "2.35")


def test_musl_is_told_from_glibc() -> None:
    assert seen(packed({"lib/ld-musl-x86_64.so.1": "ELF"})).glibc == ""
    assert seen(packed({"etc/os-release": "ID=rocky\nVERSION_ID=9.4\n"})).glibc == "2.34"
    assert seen(packed({"etc/os-release": "ID=strange\n"})).glibc is None


@pytest.mark.parametrize(
    ("files", "cuda"),
    [
        ({"usr/local/cuda-12.4/version.json": '{"cuda": {"name": "CUDA", "version": "12.4.1"}}'}, "12.4"),
        ({"usr/local/cuda-11.8/lib64/libcudart.so.11.8.89": ""}, "11.8"),
        ({"usr/local/cuda/version.txt": "CUDA Version 10.2.89"}, "10.2"),
        ({"usr/lib/x86_64-linux-gnu/libcudart.so.12.0.107": ""}, "12.0"),
        ({"usr/lib/x86_64-linux-gnu/libc.so.6": ""}, ""),
    ],
)
def test_cuda_is_found_by_its_files(files: dict[str, str], cuda: str) -> None:
    assert seen(packed(files)).cuda == cuda


def test_rocm_is_found_by_its_files() -> None:
    assert seen(packed({"opt/rocm-6.2.4/lib/libamdhip64.so": ""})).stacks["amd"] == "6.2.4"
    assert seen(packed({"opt/rocm/.info/version": "7.2.0-43\n"})).stacks["amd"] == "7.2.0"
    assert seen(packed({"bin/sh": ""})).stacks == {"amd": "", "neuron": ""}


SITE = "usr/local/lib/python3.11/site-packages"
PYTHON = packed(
    {
        "usr/local/bin/python3": "ELF",
        "usr/local/lib/python3.11/os.py": "",
        f"{SITE}/six-1.15.dist-info/METADATA": "",
    }
)


def test_a_whiteout_takes_a_package_away_and_a_layer_brings_another() -> None:
    newer = packed({f"{SITE}/.wh.six-1.15.dist-info": "", f"{SITE}/six-1.16.dist-info/METADATA": ""})
    assert seen(PYTHON, newer).packages == {"six": "1.16"}


def test_an_opaque_folder_hides_what_lower_layers_have_there() -> None:
    emptied = packed({f"{SITE}/.wh..wh..opq": "", f"{SITE}/attrs-24.1.dist-info/METADATA": ""})
    assert seen(PYTHON, emptied).packages == {"attrs": "24.1"}


def test_a_removed_folder_takes_the_interpreter_along() -> None:
    assert seen(PYTHON, packed({"usr/.wh.local": ""})).python == ""


def test_a_link_in_the_place_of_a_file_counts() -> None:
    moved = packed(
        {"opt/python/bin/python3.12": "ELF", "opt/python/lib/python3.12/os.py": ""},
        {"usr/local/bin/python3": "/opt/python/bin/python3.12"},
    )
    assert seen(PYTHON, moved).python == "3.12"


@pytest.mark.parametrize("name", ["../../etc/passwd", "/abs/lib/x", "a/../../b", "./usr/local/bin/python3"])
def test_paths_that_lead_out_of_the_archive_are_names_and_nothing_else(name: str) -> None:
    found = read_layer(pieces(packed({name: "x", "usr/local/cuda-12.4/x": ""})), "sha256:1")
    assert not any(".." in mark or mark.startswith("/") for mark in found.marks)
    assert "usr/local/cuda-12.4" in found.marks


@pytest.mark.parametrize("size", [1, 512, 100_000])
def test_how_a_layer_is_cut_and_compressed_does_not_matter(size: int) -> None:
    expected = read_layer(pieces(PYTHON), "sha256:1")
    assert expected.marks
    half = len(PYTHON) // 2
    members = gzip.compress(PYTHON[:half]) + gzip.compress(PYTHON[half:])  # as parallel programs write it
    for data in (PYTHON, gzip.compress(PYTHON), members):
        assert read_layer(pieces(data, size), "sha256:1") == expected


def test_an_empty_layer_shows_nothing() -> None:
    assert read_layer(iter([gzip.compress(b"\0" * 1024)]), "sha256:1") == Traces()


@pytest.mark.parametrize(
    "data", [gzip.compress(PYTHON)[:-200], gzip.compress(PYTHON)[:40] + b"\xff" * 80, b"no archive" * 200]
)
def test_a_damaged_layer_is_an_error_that_names_it(data: bytes) -> None:
    with pytest.raises(ImageError, match="layer sha256:1 is damaged"):
        read_layer(pieces(data), "sha256:1")


def test_a_layer_in_zstd_is_read_as_one_in_gzip() -> None:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    for stored in (zstd.compress(PYTHON), zstd.compress(PYTHON[:512]) + zstd.compress(PYTHON[512:])):
        chunks = [stored[at : at + 100] for at in range(0, len(stored), 100)]
        assert read_layer(chunks, "sha256:1") == read_layer([PYTHON], "sha256:1")
    with pytest.raises(ImageError, match="layer sha256:1 is damaged"):
        read_layer([stored[:20] + b"\xff" * 80], "sha256:1")


def test_what_was_seen_is_kept_and_a_damaged_record_counts_as_none() -> None:
    shown = read_layer(pieces(PYTHON), "sha256:1")
    inspecting.keep("sha256:abc", shown)
    assert inspecting.kept("sha256:abc") == shown
    assert inspecting.kept("sha256:other") is None
    inspecting._file("sha256:abc").write_text('{"marks": 3}')
    assert inspecting.kept("sha256:abc") is None


def test_a_digest_that_looks_like_a_path_stays_in_the_folder() -> None:
    assert inspecting._file("sha256:../../../x").parent == inspecting._file("sha256:x").parent


@pytest.mark.parametrize(
    ("folder", "name", "version"),
    [
        ("torch-2.1.0+cu121.dist-info", "torch", "2.1.0+cu121"),
        ("ruamel.yaml-0.18.6.dist-info", "ruamel-yaml", "0.18.6"),
        ("PyYAML-6.0-py3.11.egg-info", "pyyaml", "6.0"),
        ("numpy-1.26.4-py3.10-linux-x86_64.egg-info", "numpy", "1.26.4"),
        ("zope.interface-5.0-nspkg.pth", "zope-interface", "5.0-nspkg"),
        ("broken.dist-info", "broken", ""),
    ],
)
def test_names_of_distributions(folder: str, name: str, version: str) -> None:
    assert distribution(folder) == (name, version)
