# SPDX-License-Identifier: Apache-2.0
"""Engines that connect to the picker: which of them are believed, and about which endpoint."""

import socket
from contextlib import asynccontextmanager

import pytest
import zmq

from epp.app.operators import inputs_health
from epp.framework import Endpoint
from epp.pool.kv_events.subscriptions import KvEvents
from tests.support.kv_fleet import HASHES, PROMPT, Fleet, fleet, running
from tests.support.kv_publisher import stored
from tests.support.ports import reserved_ports
from tests.support.waiting import until


@asynccontextmanager
async def central_fleet(count, address="", replay_port=0):
    """Return a fleet whose engines connect to the picker."""
    with reserved_ports(1) as (port,):
        events = {"discoverPods": False, "zmqEndpoint": address or f"tcp://127.0.0.1:{port}"}
        events["podDiscoveryConfig"] = {"replaySocketPort": replay_port}
        async with running(Fleet(5557, [], count, kvEventsConfig=events)) as found:
            yield found


async def test_engine_that_connects_is_believed_about_the_endpoint_of_its_topic():
    async with central_fleet(3) as world:
        await world.join(0, name="127.0.0.1:8000")
        await world.join(1, name="p1")
        await world.tell(0, stored(HASHES, PROMPT))
        await world.tell(1, stored(HASHES[:2], PROMPT[:32]))
        assert world.scores() == [1.0, 0.5, 0]
        world.publishers[0].close()
        await until(lambda: world.scores() == [0, 0.5, 0], "only the other one is known")


async def test_picker_listens_once_it_knows_an_endpoint():
    async with central_fleet(0) as world:
        port = int(world.producer.parameters.kv_events_config.zmq_endpoint.rpartition(":")[2])
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        world.store.replace([Endpoint("p0", "127.0.0.1", 8000)])
        await world.join(0, name="p0")
        await world.tell(0, stored(HASHES, PROMPT))
        assert world.scores() == [1.0]


async def test_message_of_an_unknown_sender_or_of_an_endpoint_that_left_is_dropped_and_counted():
    async with central_fleet(3) as world:
        await world.join(0, name="somebody")
        await world.join(1, name="127.0.0.1:8000")  # at 127.0.0.2
        await world.join(2, name="p2")
        await world.tell(2, stored(HASHES, PROMPT))
        for each in world.publishers[:2]:
            each.send(stored(HASHES, PROMPT))
        await until(lambda: world.value("kv_cache_events_unknown_senders") == 2, "both are counted")
        assert world.scores() == [0, 0, 1.0]
        world.store.replace(world.endpoints[:2])

        def is_unknown() -> bool:
            world.publishers[2].send(stored([1], range(16)))
            return world.value("kv_cache_events_unknown_senders") > 2

        await until(is_unknown, "it is an unknown sender")
        assert world.scores() == [0, 0]


async def test_ranks_of_a_pod_share_its_topic_and_connect_to_ports_one_after_another():
    async with central_fleet(0) as world:
        world.store.replace([Endpoint(f"p-rank-{rank}", "127.0.0.1", 8000 + rank) for rank in range(2)])
        for rank in range(2):
            await world.join(0, name="p", rank=rank)
        await world.tell(1, stored(HASHES, PROMPT))
        assert world.scores() == [0, 1.0]
        await world.tell(0, stored(HASHES[:2], PROMPT[:32]))
        assert world.scores() == [0.5, 1.0]


async def test_engine_that_connects_repeats_what_is_missing_and_later_messages_wait():
    with reserved_ports(1) as (replay_port,):
        async with central_fleet(1, replay_port=replay_port) as world:
            await world.join(0, name="p0")
            (one,) = world.publishers
            one.repeat(f"tcp://127.0.0.1:{replay_port}").silent_replays = 1
            one.lose(stored(HASHES[:2], PROMPT[:32]))
            one.send(stored(HASHES[2:3], PROMPT[32:48], parent=HASHES[1]))
            await until(lambda: one.asked, "a replay is asked for")
            assert world.scores() == [0]
            one.send(stored(HASHES[3:], PROMPT[48:], parent=HASHES[2]))
            del one.history[-1]  # it is not repeated
            await until(lambda: world.scores() == [1.0], "all blocks are known")
            assert one.asked == [0, 0]
            assert world.value("kv_cache_events_replays", "complete") == 1


async def test_subscription_takes_precedence_over_the_same_engine_that_connects():
    with reserved_ports(1) as (port,):
        address = f"tcp://127.0.0.1:{port}"
        async with fleet(1, kvEventsConfig={"zmqEndpoint": address}) as world:
            await world.tell(0, stored(HASHES, PROMPT))
            await world.join(0, name="p0", address=address)
            world.publishers[-1].send(stored(HASHES, PROMPT))
            await world.tell(0, {"type": "BlockRemoved", "block_hashes": HASHES[3:]})
            assert world.scores() == [0.75]


async def test_address_that_is_taken_is_said_and_tried_again():
    context = zmq.Context()
    other = context.socket(zmq.SUB)
    other.bind("tcp://127.0.0.1:*")
    address = other.getsockopt_string(zmq.LAST_ENDPOINT)
    async with central_fleet(1, address=address) as world:
        await until(lambda: world.producer.inputs.problems, "the problem is said")
        (problem,) = inputs_health([world.producer])["not_in_effect"]
        assert (problem["plugin"], problem["object"]) == ("precise", "zmqEndpoint")
        assert f"cannot listen on {address}: Address already in use; free the port" in problem["reason"]
        context.destroy(0)
        await until(lambda: not world.producer.inputs.problems, "it listens")
        await world.join(0, name="p0")
        await world.tell(0, stored(HASHES, PROMPT))
        assert world.scores() == [1.0]


@pytest.mark.parametrize("address", ["5557", "tcp://*", "ipc:///tmp/x", "tcp://*:0", "tcp://*:70000"])
def test_address_that_cannot_be_listened_on_is_refused(address):
    with pytest.raises(ValueError, match="write tcp://"):
        KvEvents(zmq_endpoint=address)
