# SPDX-License-Identifier: Apache-2.0
"""Ports of events as a model server tells them; the hosts in its answer are never dialled."""

import json

import pytest

from epp.app.operators import inputs_health
from epp.framework import Endpoint
from epp.pool.kv_events.subscriber import Ports, rank_of, read_ports
from tests.support.hostile_servers import answering, whole
from tests.support.kv_fleet import HASHES, PROMPT, Fleet, running
from tests.support.kv_publisher import stored

VLLM_0_32 = {
    "0": {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "tcp://*:5557",
        "replay_endpoint": "tcp://*:6557",
        "buffer_steps": 10000,
        "topic": "kv@127.0.0.1:8101@m",
    }
}


@pytest.mark.parametrize(
    ("answer", "rank", "expected"),
    [
        (VLLM_0_32, 0, Ports(5557, 6557)),
        (VLLM_0_32, 3, Ports(5557, 6557)),  # the only one
        ({"0": {"endpoint": "tcp://*:1"}, "1": {"endpoint": "tcp://[::]:2"}}, 1, Ports(2)),
        ([{"data_parallel_rank": 0, "endpoint": "tcp://10.9.9.9:5557", "replay_endpoint": None}], 0, Ports(5557)),
    ],
)
def test_ports_of_a_rank(answer, rank, expected):
    endpoint = Endpoint(f"pod-rank-{rank}", "10.0.0.1", 8000)
    found = read_ports(json.dumps(answer).encode(), rank_of(endpoint))
    assert found == expected
    assert found.addresses_at(endpoint).events == f"tcp://10.0.0.1:{expected.events}"


NO_PORTS = [{}, [], "x", {"0": 1}, {"1": {}, "2": {}}]


@pytest.mark.parametrize("answer", [*NO_PORTS, {"0": {"endpoint": "inproc://x"}}, {"0": {"endpoint": "tcp://*:99999"}}])
def test_answer_without_ports_is_refused(answer):
    with pytest.raises(ValueError, match=r".+"):
        read_ports(json.dumps(answer).encode(), 0)


async def test_label_has_the_port_of_the_first_rank_and_a_change_takes_effect(publisher):
    one, label = publisher(), "llm-d.ai/kv-events-port"
    world = Fleet(5557, [one], 1)

    def subscriptions(**labels: str) -> list[str]:
        world.store.replace([Endpoint("p-rank-2", "127.0.0.1", 8002, labels=labels)])
        return world.producer.dump_state(world.store.snapshot())["subscriptions"]

    assert subscriptions(**{label: "6000"}) == ["tcp://127.0.0.1:6002"]
    async with running(world):
        assert subscriptions(**{label: str(one.port - 2)}) == [one.address]
        await one.subscribed()
        await world.tell(0, stored(HASHES, PROMPT))
        assert world.scores() == [1.0]
    assert subscriptions() == ["tcp://127.0.0.1:5559"]


@pytest.mark.parametrize("port", ["", "0", "65535", "999999", "10.9.9.9:5557", "²"])
def test_label_without_a_port_is_ignored_and_said(port):
    world = Fleet(5557, [], 1)
    world.store.replace([Endpoint("p-rank-1", "127.0.0.1", 8001, labels={"llm-d.ai/kv-events-port": port})])
    assert world.producer.dump_state(world.store.snapshot())["subscriptions"] == ["tcp://127.0.0.1:5558"]
    (ignored,) = inputs_health([world.producer])["ignored_values"]
    reason = f"llm-d.ai/kv-events-port is {port!r}; write a port from 1 to 65534"
    assert (ignored["object"], ignored["reason"]) == ("default/p-rank-1", reason)


@pytest.mark.parametrize("status", ["200 OK", "404 Not Found"])
async def test_endpoint_is_asked_and_without_an_answer_the_configured_port_is_used(publisher, status):
    one = publisher()
    told = json.dumps({"0": {"endpoint": f"tcp://192.0.2.1:{one.port}"}}).encode()
    port = 5557 if status == "200 OK" else one.port
    world = Fleet(port, [one], 1, kvEventsConfig={"podDiscoveryConfig": {"askEndpoints": True, "socketPort": port}})
    async with answering(whole(told, status=status)) as server, running(world):
        world.store.replace([Endpoint("p0", "127.0.0.1", server.port)])
        await one.subscribed()
        await world.tell(0, stored(HASHES, PROMPT))
        assert world.scores() == [1.0]
