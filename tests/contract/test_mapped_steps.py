"""The contract of many tasks at once, as a mapped step has them."""

from __future__ import annotations

import pytest
from contract_kit import BACKENDS, BUCKETS, ELEMENTS, FEWER_ELEMENTS, Watched

from upshift.backends.base import Ended, Started
from upshift.runtime.storage import artifacts


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ground", [*BACKENDS, *BUCKETS], indirect=True)
def test_each_element_of_a_long_mapped_step_has_its_result_and_is_told_of_once(watched: Watched) -> None:
    ground = watched.ground
    count = FEWER_ELEMENTS.get(ground.name, ELEMENTS)
    jobs = [ground.job("twice", inputs={"n": number}) for number in range(count)]
    handles = watched.run_all(jobs)
    assert len(set(handles)) == count
    assert [event for event in watched.events if isinstance(event, Ended) and event.reason] == []
    results = [ground.store.read_result(job.spec.task, 1) for job in jobs]
    assert {result and result.status for result in results} == {"completed"}
    values = [artifacts.load(result.outputs["output"], ground.store) for result in results if result]
    assert values == [2 * number for number in range(count)]
    for handle in handles:
        kinds = [type(event) for event in watched.of(handle)]
        assert kinds.count(Ended) == 1 and kinds[-1] is Ended and kinds.count(Started) <= 1
