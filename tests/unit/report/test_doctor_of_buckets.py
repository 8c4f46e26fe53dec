"""``upshift doctor`` tries a store in a bucket of each cloud."""

from __future__ import annotations

from upshift.model.configuration import Configuration, Target
from upshift.report.doctor.checkup import _store
from upshift.runtime.storage.objects import open_objects


def test_a_bucket_is_tried_and_left_as_it_was(place: str) -> None:
    target = Target(name="local", backend="local", store=f"{place}/team")
    check = _store(target, Configuration())
    assert (check.status, check.text) == ("ok", f"{place}/team: can be read and written")
    assert list(open_objects(place).list("")) == []


def test_a_bucket_that_is_not_there_is_a_problem_with_a_remedy(place: str) -> None:
    check = _store(Target(name="local", backend="local", store=f"{place}-other/team"), Configuration())
    assert check.status == "problem" and "-other" in check.text
    assert check.remedy is not None and "Create it" in check.remedy
