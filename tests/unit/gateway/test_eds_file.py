# SPDX-License-Identifier: Apache-2.0
"""The file that Envoy follows: what it says, and that it keeps up with the pool."""

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from epp.framework import Endpoint, SystemClock
from epp.lab.gateway.local import discovery_response, eds_file
from epp.lab.gateway.settings import SettingsError
from epp.routing.datastore import Datastore
from tests.support.waiting import until

A, B = Endpoint("a", "10.0.0.11", 8000), Endpoint("b", "10.0.0.12", 8000)


def listed(text: bytes) -> list[tuple[str, int]]:
    (resource,) = json.loads(text)["resources"]
    assert resource["cluster_name"] == "model_servers"
    (locality,) = resource["endpoints"]
    addresses = [each["endpoint"]["address"]["socket_address"] for each in locality["lb_endpoints"]]
    return [(each["address"], each["port_value"]) for each in addresses]


async def read(path: Path) -> list[tuple[str, int]]:
    return listed(await asyncio.to_thread(path.read_bytes))


async def says(path: Path, *endpoints: Endpoint) -> None:
    wanted = {(each.address, each.port) for each in endpoints}

    async def listed_are() -> bool:
        return set(await read(path)) == wanted

    await until(listed_are, f"the file lists {wanted}")


@pytest.fixture
def store():
    store = Datastore(SystemClock())
    store.replace([A])
    return store


@given(
    st.lists(st.tuples(st.ip_addresses().filter(lambda ip: not getattr(ip, "scope_id", None)), st.integers(1, 65_535)))
)
def test_every_endpoint_is_in_the_file_in_order(addresses):
    endpoints = [Endpoint(f"e{i}", str(ip), port) for i, (ip, port) in enumerate(addresses)]
    assert listed(discovery_response(endpoints)) == [(str(ip), port) for ip, port in addresses]


async def test_file_is_there_at_once_and_follows_the_pool(store, tmp_path):
    path = tmp_path / "endpoints.json"
    async with eds_file(path, store):
        assert await read(path) == [("10.0.0.11", 8000)]
        store.replace([A, B])
        await says(path, A, B)
        store.replace([B])
        await says(path, B)
        store.replace([])
        await says(path)


async def test_last_of_many_changes_is_what_stays(store, tmp_path):
    path = tmp_path / "endpoints.json"
    async with eds_file(path, store):
        for turn in range(50):
            store.replace([A, B] if turn % 2 else [B])
            await asyncio.sleep(0)
        await says(path, A, B)
    assert [each.name for each in tmp_path.iterdir()] == ["endpoints.json"]


async def test_reader_never_sees_half_a_file(store, tmp_path):
    path = tmp_path / "endpoints.json"
    many = [Endpoint(f"e{i}", "10.0.0.1", 1 + i) for i in range(2_000)]
    async with eds_file(path, store):
        store.replace(many)
        sizes = set()
        async with asyncio.timeout(20):
            while len(many) not in sizes:
                sizes.add(len(await read(path)))
    assert sizes <= {1, len(many)}


async def test_unwritable_place_is_named(store, tmp_path):
    with pytest.raises(SettingsError, match=r"cannot write '.*/missing/endpoints.json': No such file or directory"):
        async with eds_file(tmp_path / "missing" / "endpoints.json", store):
            pass


async def test_change_that_could_not_be_written_is_tried_again(store, tmp_path):
    directory, away = tmp_path / "here", tmp_path / "away"
    directory.mkdir()
    with capture_logs() as said:
        async with eds_file(directory / "endpoints.json", store):
            directory.rename(away)
            store.replace([B])
            await until(
                lambda: any(line["event"] == "EDS file not written, retrying" for line in said), "the error is logged"
            )
            away.rename(directory)
            await says(directory / "endpoints.json", B)


def test_endpoint_that_speaks_https_is_marked_with_the_host_or_address_to_verify():
    endpoints = [
        A,
        Endpoint("named", "10.0.0.12", 8443, host="gpu.example.", tls=True),
        Endpoint("bare", "10.0.0.13", 8443, tls=True),
    ]
    (resource,) = json.loads(discovery_response(endpoints))["resources"]
    plain, named, bare = resource["endpoints"][0]["lb_endpoints"]
    assert "metadata" not in plain
    assert named["endpoint"]["hostname"] == "gpu.example"
    assert "hostname" not in bare["endpoint"]  # an IP address is no name to ask for
    marks = [each["metadata"]["filter_metadata"]["envoy.transport_socket_match"]["https"] for each in (named, bare)]
    assert marks == ["https", "10.0.0.13"]
