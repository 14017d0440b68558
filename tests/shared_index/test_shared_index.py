# SPDX-License-Identifier: Apache-2.0
"""Pickers that share the index of KV caches through a genuine server, in the layout of llm-d-router."""

from contextlib import asynccontextmanager

import pytest
from redis import Redis

from epp.pool.kv_events import shared_layout
from tests.support.certificates import new_pair, write
from tests.support.kv_fleet import Fleet, fleet, running
from tests.support.kv_publisher import CLEARED, removed, stored
from tests.support.waiting import until

IDS = list(range(0, 8000, 1000))
"""Two blocks of four tokens, with the keys that llm-d-kv-cache has for them."""
KEYS = ["300273098055276365", "7778264552299838436"]
XXH64_KEYS = ["14344377684739878502", "16345788425105911909"]
FIRST, SECOND = "127.0.0.1:8000", "127.0.0.2:8000"


def field(address: str, tier: str = "gpu", *, group: int | None = None) -> str:
    grouped = f'"HasGroup":{"false" if group is None else "true"},"GroupIdx":{group or 0}'
    return f'{{"PodIdentifier":"{address}","DeviceTier":"{tier}","Speculative":false,{grouped}}}'


def sharing(server, algorithm: str = "", **more) -> dict:
    return {
        "tokenProcessorConfig": {"blockSizeTokens": 4, "hashAlgorithm": algorithm},
        "indexerConfig": {"kvBlockIndexConfig": {"redisConfig": {"address": server.url, **more}}},
    }


@asynccontextmanager
async def deaf_fleet(count, **parameters):
    """Return a fleet whose engines the picker does not hear."""
    async with running(Fleet(5557, [], count, kvEventsConfig={"discoverPods": False}, **parameters)) as found:
        yield found


def written(world) -> float:
    return world.value("kv_cache_shared_index_blocks", "written")


async def scored(world, expected, ids=IDS) -> None:
    """Wait for scores; a picker that has just started is not connected yet."""

    async def are_there():
        return await world.admitted_scores(ids) == expected

    await until(are_there, f"the scores are {expected}")


@pytest.mark.parametrize(("algorithm", "keys"), [("", KEYS), ("cbor-fnv", KEYS), ("xxh64", XXH64_KEYS)])
async def test_blocks_are_written_in_the_layout_of_llm_d(server, algorithm, keys):
    shared = await server()
    async with fleet(1, **sharing(shared, algorithm)) as world:
        await world.tell(0, stored([11, 12], IDS, size=4, medium="GPU"))
        await until(lambda: written(world) == 2, "both blocks are written")
        assert sorted(shared.client.keys()) == sorted([*keys, "engine:11", "engine:12"])
        assert [shared.client.hgetall(key) for key in keys] == [{field(FIRST): ""}] * 2
        assert shared.client.zrange("engine:12", 0, -1, withscores=True) == [(keys[1], 0.0)]
        await world.tell(0, removed([12], medium="GPU"))
        await until(lambda: sorted(shared.client.keys()) == sorted([keys[0], "engine:11"]), "nothing is left of it")


async def test_blocks_that_another_picker_wrote_are_matched(server):
    shared = await server()
    shared.client.hset(KEYS[0], mapping={field(FIRST): "", field(SECOND): "", field("10.9.9.9:8000"): "", "junk": ""})
    shared.client.hset(KEYS[1], mapping={field(FIRST, "cpu", group=0): "", field("10.9.9.9:8000"): ""})
    async with deaf_fleet(2, **sharing(shared)) as world:
        await scored(world, [0.5, 0.5])  # 1 + 0.8 blocks, floored
        shared.client.hset(KEYS[1], field(FIRST), "")
        await scored(world, [1.0, 0.5])


async def test_pickers_that_hear_different_engines_know_all(server):
    shared = await server()
    async with fleet(1, **sharing(shared)) as one, deaf_fleet(2, **sharing(shared)) as two:
        await one.tell(0, stored([11, 12], IDS, size=4))
        await scored(two, [1.0, 0])
        await one.tell(0, removed([12]))
        await scored(two, [0.5, 0])


async def test_picker_that_restarts_knows_its_blocks_and_their_children(server):
    shared = await server()
    longer = [*IDS, 1, 2, 3, 4]
    async with fleet(1, **sharing(shared)) as world:
        await world.tell(0, stored([11, 12], IDS, size=4))
    assert shared.client.hkeys(KEYS[1]) == [field(FIRST)]  # written before it ended
    async with fleet(1, **sharing(shared)) as world:
        world.publishers[0].sequence = 7
        await scored(world, [1.0])
        await world.tell(0, stored([13], longer[8:], parent=12, size=4))
        await scored(world, [1.0], longer)
        await world.tell(0, removed([13]), removed([12]))
        await until(lambda: not shared.client.exists(KEYS[1]), "a block from before is removed")
        await scored(world, [0.333333], longer)


async def test_blocks_that_an_engine_names_without_token_ids_are_written(server):
    shared = await server()
    offloaded = {"medium": "CPU", "size": 0}
    async with fleet(1, **sharing(shared)) as world:
        await world.tell(0, stored([11, 12], IDS, size=4), stored([11, 99], [], **offloaded), removed([11]))
        await until(lambda: shared.client.hkeys(KEYS[0]) == [field(FIRST, "cpu")], "it moved to the host")
    async with fleet(1, **sharing(shared)) as world:  # which knows no block yet
        world.publishers[0].sequence = 7
        await world.tell(0, stored([12], [], **offloaded))
        moved = sorted([field(FIRST), field(FIRST, "cpu")])
        await until(lambda: sorted(shared.client.hkeys(KEYS[1])) == moved, "the other one is in the host, too")


async def test_engine_that_starts_anew_has_nothing_from_before(server):
    shared = await server()
    shared.client.hset(KEYS[0], field(FIRST), "")
    async with fleet(1, **sharing(shared)) as world:
        await scored(world, [0.5])
        await world.tell(0, stored([21], range(4), size=4))  # its first message
        await until(lambda: not shared.client.exists(KEYS[0]), "the old block is removed")
        await scored(world, [1.0], list(range(4)))


async def test_blocks_of_a_cleared_engine_go_and_all_else_stays(server):
    shared = await server()
    shared.client.set("1", "of another program")
    async with fleet(2, **sharing(shared)) as world:
        for number in (0, 1):
            await world.tell(number, stored([11, 12], IDS, size=4), stored([31], range(4), size=4, medium="cpu"))
        await until(lambda: written(world) == 6, "all blocks are written")
        await world.tell(0, CLEARED)
        await until(lambda: shared.client.hkeys(KEYS[0]) == [field(SECOND)], "its blocks are removed")
        await scored(world, [0, 1.0])
        await scored(world, [0, 0], list(range(5)))
        assert shared.client.get("1") == "of another program"
        world.store.replace(world.endpoints[:1])
        await until(lambda: not shared.client.exists(*KEYS), "those of an endpoint that left, too")


async def test_engine_that_is_cleared_while_writes_wait_loses_only_what_it_stored_before(server):
    shared = await server()
    async with fleet(2, **sharing(shared)) as world:
        await world.tell(0, stored([21], range(4), size=4))
        await world.tell(1, stored([21], range(4), size=4))
        await until(lambda: written(world) == 2, "the picker has heard of both")
        shared.client.config_set("min-replicas-to-write", 1)  # refuses all writes
        await world.tell(0, stored([11], IDS[:4], size=4))
        await world.tell(1, stored([11], IDS[:4], size=4))
        await world.tell(0, CLEARED)
        await until(lambda: world.value("kv_cache_shared_index_blocks", "dropped") == 1, "one block is dropped")
        await world.tell(0, stored([11, 12], IDS, size=4))
        await until(lambda: world.value("kv_cache_shared_index_waiting_blocks") == 3, "three blocks wait")
        shared.client.config_set("min-replicas-to-write", 0)
        await until(lambda: written(world) == 5, "they are written")
        (key,) = shared.client.zrange("engine:21", 0, -1)
        assert shared.client.hkeys(key) == [field(SECOND)]
        assert sorted(shared.client.hkeys(KEYS[0])) == [field(FIRST), field(SECOND)]
        assert shared.client.hkeys(KEYS[1]) == [field(FIRST)]


async def test_groups_of_layers_are_told_as_llm_d_does(server):
    shared = await server()
    kind = {"group_idx": 1, "kv_cache_spec_kind": "full_attention"}
    async with fleet(1, **sharing(shared)) as world:
        await world.tell(0, stored([11, 12], IDS, size=4, **kind))
        await until(lambda: shared.client.hkeys(KEYS[1]) == [field(FIRST, group=1)], "the group is written")
        await world.tell(0, removed([12], group_idx=1))
        await until(lambda: not shared.client.exists(KEYS[1]), "it is removed")


async def test_server_that_dies_disturbs_no_request_and_is_used_again_when_it_is_back(server):
    shared = await server()
    async with fleet(1, **sharing(shared)) as world:
        await world.tell(0, stored([11, 12], IDS, size=4))
        await until(lambda: written(world) == 2, "both blocks are written")
        shared.kill()
        await world.tell(0, stored([13], [1, 2, 3, 4], parent=12, size=4))
        for _ in range(6):
            assert await world.admitted_scores(IDS) == [1.0]
        await until(lambda: world.producer.inputs.problems, "/healthz says it")
        assert world.value("kv_cache_shared_index_lookups", "failed") == 5
        assert world.value("kv_cache_shared_index_lookups", "unavailable") == 1
        shared.start()
        await until(shared.is_up, "the server is back")
        await until(lambda: written(world) == 3, "what waited is written")
        world.clock.advance(10)
        assert await world.admitted_scores(IDS) == [1.0]
        assert not world.producer.inputs.problems


async def test_blocks_of_another_size_are_not_shared_and_that_is_said(server):
    shared = await server()
    async with fleet(1, **sharing(shared)) as world:
        await world.tell(0, stored([11], IDS, size=8))
        assert world.value("kv_cache_shared_index_blocks", "other size") == 1
        assert "blocks of 8 tokens are not shared; set" in str(world.producer.inputs.problems[0])
        assert world.scores(IDS) == [1.0]
        assert not shared.client.keys()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--maxmemory", "1kb"), "OOM"),
        (("--requirepass", "secret"), "Authentication required"),
        (("--replicaof", "127.0.0.1 1"), "READONLY"),
        (("--rename-command", "EVALSHA", ""), "unknown command"),
    ],
)
async def test_server_that_refuses_writes_is_named_with_its_reason(server, options, reason):
    shared = await server(*options, is_open=False)
    async with fleet(1, **sharing(shared)) as world:
        await world.tell(0, stored([11, 12], IDS, size=4))
        await until(lambda: reason in "".join(map(str, world.producer.inputs.problems)), "/healthz says it")
        assert await world.admitted_scores(IDS) == [1.0]
        assert "secret" not in str(world.producer.inputs)


async def test_password_comes_with_the_address_or_the_environment(server, monkeypatch):
    shared = await server("--requirepass", "p@ss", is_open=False)
    shared.client = Redis(port=shared.port, password="p@ss")  # noqa: S106  of this server alone
    await until(shared.is_up, "the server answers")
    shared.client.hset(KEYS[0], field(FIRST), "")
    given = shared.url.replace("redis://", "valkey://:p%40ss@")
    async with deaf_fleet(1, **sharing(shared, address=given)) as world:
        await scored(world, [0.5])
    monkeypatch.setenv("EPP_REDIS_PASSWORD", "p@ss")
    async with deaf_fleet(1, **sharing(shared)) as world:
        await scored(world, [0.5])


async def test_values_of_another_kind_are_skipped(server):
    shared = await server()
    shared.client.set(KEYS[0], "text")
    shared.client.set("engine:12", "text")
    async with fleet(1, **sharing(shared)) as world:
        await world.tell(0, stored([11, 12], IDS, size=4), stored([13], [1, 2, 3, 4], parent=12, size=4))
        await until(lambda: world.value("kv_cache_shared_index_blocks", "failed") == 2, "two blocks are refused")
        await until(lambda: written(world) == 1, "the third is written")
        assert await world.admitted_scores(IDS) == [1.0]
        assert "WRONGTYPE" in str(world.producer.inputs.problems[0])
        assert shared.client.get(KEYS[0]) == "text"


async def test_endpoint_with_too_many_waiting_blocks_is_cleared(server, monkeypatch):
    """It is cleared since removals may be lost."""
    monkeypatch.setattr(shared_layout, "_MOST_WAITING", 2)
    shared = await server()
    async with fleet(2, **sharing(shared)) as world:
        await world.tell(0, stored([11], IDS[:4], size=4))
        await world.tell(1, stored([11], IDS[:4], size=4))
        await until(lambda: written(world) == 2, "both blocks are written")
        shared.client.config_set("min-replicas-to-write", 1)  # refuses all writes
        await world.tell(0, removed([11]))
        await world.tell(0, stored([12, 13], range(8), size=4))
        await until(lambda: world.value("kv_cache_shared_index_blocks", "dropped") == 3, "three changes are dropped")
        shared.client.config_set("min-replicas-to-write", 0)
        await until(lambda: shared.client.hkeys(KEYS[0]) == [field(SECOND)], "the removed block is gone")
        await until(lambda: world.value("kv_cache_shared_index_waiting_blocks") == 0, "nothing waits")
        assert not shared.client.exists("engine:12", "engine:13")
        await world.tell(0, stored([14], IDS[:4], size=4))
        await until(lambda: len(shared.client.hkeys(KEYS[0])) == 2, "later blocks are written")


async def test_server_is_checked_against_the_certificates_of_a_file(server, tmp_path):
    write(tmp_path, *new_pair("127.0.0.1"))
    files = ("--tls-cert-file", f"{tmp_path}/tls.crt", "--tls-key-file", f"{tmp_path}/tls.key")
    shared = await server(*files, "--tls-auth-clients", "no", is_tls=True, is_open=False)
    shared.client = Redis("127.0.0.1", shared.port, ssl=True, ssl_ca_certs=f"{tmp_path}/tls.crt")
    await until(shared.is_up, "the server answers")
    shared.client.hset(KEYS[0], field(FIRST), "")
    given = shared.url.replace("redis://", "rediss://")
    async with deaf_fleet(1, **sharing(shared, address=given, caFile=f"{tmp_path}/tls.crt")) as world:
        await scored(world, [0.5])
    async with deaf_fleet(1, **sharing(shared, address=given)) as world:
        await until(lambda: "CERTIFICATE_VERIFY_FAILED" in str(world.producer.inputs), "/healthz says it")
