"""The page on images with CUDA has the tables of the package, and names what there is."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from upshift.images.base import Reference
from upshift.images.gpu_checks import OFFICIAL
from upshift.images.parents.known import known
from upshift.runtime.accelerators import compatibility
from upshift.runtime.accelerators.compatibility import parse

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "images-cuda.md"


@pytest.fixture(scope="module")
def plugin() -> ModuleType:
    spec = importlib.util.spec_from_file_location("official_images", ROOT / "docs/plugins/official_images.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_every_place_on_the_page_becomes_a_table(plugin: ModuleType) -> None:
    page = plugin.on_page_markdown(PAGE.read_text())
    assert "<!-- images by" not in page
    for image in OFFICIAL:
        assert image.reference.partition(":")[2] in page
    assert plugin.on_page_markdown("# Another page") == "# Another page"


def test_each_image_of_the_drivers_table_runs_on_its_driver(plugin: ModuleType) -> None:
    found = rows(plugin.by_driver())
    drivers = [parse(row[0]) for row in found]
    assert drivers == sorted(drivers, reverse=True) and len(found) > 5
    by_name = {f"`{image.reference}`": image for image in OFFICIAL}
    for driver, cuda, runs, whole in found:
        assert cuda == compatibility.newest_cuda(driver)
        assert compatibility.driver_runs(by_name[runs].cuda, driver, None)
        assert whole == "–" or parse(by_name[whole].cuda) <= parse(cuda)


def test_each_image_of_the_table_of_gpus_has_kernels_for_them(plugin: ModuleType) -> None:
    by_name = {f"`{image.reference}`": image for image in OFFICIAL}
    found = {row[0]: by_name[row[3]] for row in rows(plugin.by_gpu())}
    assert {"9.0", "8.0", "7.5", "10.0"} <= set(found)
    for capability, image in found.items():
        first, _ = compatibility.SUPPORTED_BY_CUDA[capability]
        assert parse(image.cuda) >= parse(first)[:1], capability


def test_names_of_images_on_the_page_are_known() -> None:
    names = re.findall(r"`([^`\s…]+:[^`\s…]+)`", PAGE.read_text().partition("| publisher |")[2])
    assert len(names) == 5
    for name in names:
        assert known(Reference.parse(name)) is not None, name
