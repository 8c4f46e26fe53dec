"""Which node a supervisor is on, by what its backend has put into the environment."""

from __future__ import annotations

import pytest

from upshift.errors import ConfigError
from upshift.runtime.launch import seats
from upshift.runtime.launch.seats import Seat, seat, take, usual_port

SECOND = {
    "UPSHIFT_NODE": "1",
    "UPSHIFT_NODES": "2",
    "UPSHIFT_MAIN_NODE": "10.0.0.1:23456",
    "UPSHIFT_NODES_TOKEN": "secret",
}


def test_what_a_seat_is_told_is_what_it_takes() -> None:
    given = Seat(
        node=1,
        nodes=3,
        token="t",
        main="fe80::1",
        port=4000,
        name="b",
        address="127.0.0.2",
        wait=5.0,
        silence=7.0,
    )
    assert seat(given.variables()) == given


def test_a_supervisor_without_any_of_it_is_alone() -> None:
    assert take({"PATH": "/bin"}) is None
    assert seat({"UPSHIFT_NODES": "1"}) is None


def test_the_variables_of_a_cluster_are_followed() -> None:
    found = seat(
        {
            **SECOND,
            "UPSHIFT_NODE": "$AWS_BATCH_JOB_NODE_INDEX",
            "UPSHIFT_MAIN_NODE": "$AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS",
            "AWS_BATCH_JOB_NODE_INDEX": "1",
            "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.1.2.3",
        }
    )
    assert found is not None
    assert (found.node, found.main, found.port) == (1, "10.1.2.3", usual_port("secret"))


def test_the_first_node_need_not_be_told_where_it_is() -> None:
    found = seat(
        {"UPSHIFT_NODE": "0", "UPSHIFT_NODES": "2", "UPSHIFT_MAIN_NODE": "$UNSET", "UPSHIFT_NODES_TOKEN": "t"}
    )
    assert found is not None and found.main is None


def test_nothing_of_it_is_left_to_what_runs_below_and_the_token_is_not_shown() -> None:
    environment = {**SECOND, "PATH": "/bin"}
    found = take(environment)
    assert environment == {"PATH": "/bin"}
    assert found is not None and found.token == "secret" and "secret" not in repr(found)


def test_all_nodes_know_the_same_port_and_another_attempt_has_another_one() -> None:
    ports = {usual_port(f"token {number}") for number in range(50)}
    assert len(ports) > 40 and all(20_000 <= port < 30_000 for port in ports)
    assert usual_port("token 1") == usual_port("token 1")


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"UPSHIFT_NODE": ""}, "UPSHIFT_NODE is not set"),
        ({"UPSHIFT_NODE": "$SLURM_NODEID"}, "UPSHIFT_NODE is $SLURM_NODEID, which is not set"),
        ({"UPSHIFT_NODE": "2"}, "UPSHIFT_NODE is '2'"),
        ({"UPSHIFT_NODES": "two"}, "UPSHIFT_NODES is 'two'"),
        ({"UPSHIFT_NODES": ""}, "UPSHIFT_NODES is not set"),
        ({"UPSHIFT_NODES_TOKEN": ""}, "UPSHIFT_NODES_TOKEN is not set"),
        ({"UPSHIFT_MAIN_NODE": ""}, "UPSHIFT_MAIN_NODE is not set"),
        ({"UPSHIFT_MAIN_NODE": "host:99999"}, "UPSHIFT_MAIN_NODE is 'host:99999'"),
        ({"UPSHIFT_NODES_WAIT": "soon"}, "UPSHIFT_NODES_WAIT is 'soon'"),
    ],
)
def test_what_makes_no_sense_is_named_and_what_would(changed: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        take({**SECOND, **changed})
    assert text in str(caught.value) and "fix:" in str(caught.value)


def test_every_variable_is_taken_away() -> None:
    assert set(SECOND) < set(seats.VARIABLES)


def test_a_node_counts_as_lost_after_15_seconds_of_silence_unless_somebody_says_otherwise() -> None:
    found, told = seat(SECOND), seat({**SECOND, "UPSHIFT_NODES_SILENCE": "60"})
    assert found is not None and told is not None
    assert (found.silence, told.silence) == (15.0, 60.0)
