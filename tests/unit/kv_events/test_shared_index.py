# SPDX-License-Identifier: Apache-2.0
"""The shared index without a genuine server: addresses, matches, and servers that give no useful answer."""

import asyncio
import sys
from contextlib import asynccontextmanager

import pytest

from epp.config import load_text
from epp.config.assemble import Builder, assemble
from epp.config.describe import describe
from epp.framework import Admitter, ConfigurationError, ManualClock
from epp.framework.registry import Registry
from epp.pool.kv_events.parameters import RedisParameters
from epp.pool.kv_events.prompt_blocks import SharedMatch
from epp.pool.kv_events.shared_layout import cache_of, field_of
from tests.support.kv_fleet import HASHES, PROMPT, build, fleet
from tests.support.kv_publisher import stored
from tests.support.waiting import until


def sharing(address: str) -> dict:
    return {"indexerConfig": {"kvBlockIndexConfig": {"redisConfig": {"address": address}}}}


@pytest.mark.parametrize(
    ("address", "name", "user", "password"),
    [
        ("valkeys://me:p%40s%2Fs@index:7000/3", "rediss://index:7000/3", "me", "p@s/s"),
        ("redis://:secret@[::1]:7000?db=2", "redis://[::1]:7000/2", None, "secret"),
        ("unix:///run/redis.sock?db=1", "unix:///run/redis.sock", None, None),
    ],
)
def test_address_may_have_each_form_of_llm_d_and_is_named_without_its_password(address, name, user, password):
    given = RedisParameters(address=address).server
    found = given.connection({})
    assert (given.name, found["username"], found["password"]) == (name, user, password)


@pytest.mark.parametrize("address", ["http://index", "redis://u:pa/ss@index"])
def test_invalid_address_is_refused_without_being_repeated(address):
    with pytest.raises(ConfigurationError, match="is not an address; write redis://host:6379/0") as found:
        build(**sharing(address))
    assert "pa/ss" not in str(found.value)


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(ConfigurationError, match=r"inference-epp\[redis\]"):
        build(**sharing("index"))


def test_configuration_asks_for_the_shared_index_when_the_tokens_are_known():
    text = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: precise-prefix-cache-producer
  parameters: {indexerConfig: {kvBlockIndexConfig: {redisConfig: {address: "redis://me:hidden@index"}}}}
- type: token-producer
  parameters: {modelName: m, vllm: {url: "http://render:8000"}}
- {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}}
schedulingProfiles: [{name: default, plugins: [{pluginRef: prefix-cache-scorer}]}]
"""
    assembly = assemble(load_text(text, "config"), Builder(Registry(), ManualClock(1000.0)))
    assert [each.plugin_type for each in assembly.pipeline.of(Admitter)] == [
        "token-producer",
        "precise-prefix-cache-producer",
    ]
    assert "redisConfig" not in "".join(map(str, assembly.warnings))
    assert "redis://REDACTED@index" in str(describe(assembly))
    assert "hidden" not in str(describe(assembly))


def test_leading_blocks_count_with_their_best_tier_over_several_answers():
    match = SharedMatch({"gpu": 1.0, "cpu": 0.5})
    assert match.add(2, [("a", "gpu", [1, 2]), ("b", "cpu", [1, 2]), ("b", "gpu", [2, 2]), ("c", "gpu", [2, 2])])
    assert not match.add(3, [("a", "gpu", [1, 1, 3, 3]), ("b", "cpu", [1, 2]), ("c", "gpu", [1, 3])])
    match.begin()  # another prompt
    assert match.add(1, [("c", "disk", [1, 1])])
    found = match.matched({"a": 2, "b": 1, "c": 0}, 4, 16)
    assert (found.tokens / 16).tolist() == [1, 4, 3, 0]
    assert (found.weighted / 16).tolist() == [1, 1.0 + 3 * 0.5, 3, 0]
    assert (found.offloaded / 16).tolist() == [0, 4, 0, 0]
    assert {tier: (each / 16).tolist() for tier, each in found.tiers.items()} == {
        "cpu": [0, 3, 0, 0],
        "disk": [1, 0, 0, 0],
    }


def test_fields_are_those_of_llm_d_and_others_are_ignored():
    known = b'{"PodIdentifier":"10.0.0.1:8000","DeviceTier":"gpu","Speculative":false,"HasGroup":false,"GroupIdx":0}'
    assert field_of("10.0.0.1:8000", "gpu", None) == known
    assert cache_of(known.replace(b"}", b',"retrievalSpan":2}')) == ("10.0.0.1:8000", "gpu")
    assert cache_of(known.replace(b"false", b"true", 1)) == ("10.0.0.1:8000", "speculative")
    assert [cache_of(each) for each in (b"", b"\xff", b"{}", b"[]", b"10.0.0.1:8000@gpu")] == [None] * 5


@asynccontextmanager
async def answering(answer: bytes):
    """Return the address of a server that has one answer to all, and what it was asked."""
    asked: list[bytes] = []

    async def answer_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while question := await reader.read(65536):
            asked.append(question)
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(answer_all, "127.0.0.1", 0)
    async with server:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (b"", "late"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "failed"),
        (b"$5\r\nhello\r\n", "failed"),
        (b":1\r\n", "failed"),
    ],
)
async def test_request_goes_on_whatever_the_server_answers(monkeypatch, answer, result):
    if result == "failed":
        monkeypatch.setattr("epp.pool.kv_events.shared_index._BUDGET_SECONDS", 10.0)  # the answer comes at once
    async with answering(answer) as (address, asked), fleet(1, **sharing(address)) as world:
        await world.tell(0, stored(HASHES, PROMPT))
        for _ in range(6):
            assert await world.admitted_scores() == [1.0]
        assert world.value("kv_cache_shared_index_lookups", result) == 5
        assert world.value("kv_cache_shared_index_lookups", "unavailable") == 1
        await until(lambda: world.producer.inputs.problems, "/healthz says it")
        tried = len(asked)
        await until(lambda: len(asked) > tried + 1, "the server is tried again")
        assert world.value("kv_cache_index_lookup_requests") == 6
