# SPDX-License-Identifier: Apache-2.0
import socket

import pytest
from structlog.testing import capture_logs

from epp.framework import ConfigurationError
from epp.framework.datalayer import Unresolved
from epp.pool.discovery import FileDiscovery, StaticDiscovery, parse_targets
from epp.pool.discovery.endpoints_file import FileDiscoveryParameters
from epp.pool.discovery.targets import Resolver, system_lookup
from tests.support.waiting import until


async def test_addresses_and_schemes_are_those_of_the_list_and_a_host_name_becomes_its_lowest_address(pool, names):
    names.table["vllm"] = ["2001:db8::1", "10.0.0.10", "10.0.0.9"]  # of which IPv4 goes first
    await StaticDiscovery(parse_targets("a=10.0.0.1:8000,[::1]:8001,https://vllm:8000"), lookup=names).start(pool)
    assert [(one.name, one.hostport, one.host, one.tls) for one in pool.endpoints] == [
        ("a", "10.0.0.1:8000", "", False),
        ("[::1]:8001", "[::1]:8001", "", False),
        ("vllm:8000", "10.0.0.9:8000", "vllm", True),
    ]


async def test_host_that_does_not_resolve_is_left_out_until_it_does(pool, names):
    names.table["b"] = ["10.0.0.2"]
    discovery = StaticDiscovery(parse_targets("a=a:1,b=b:1"), lookup=names)
    with capture_logs() as logs:
        await discovery.start(pool)
        await discovery.resolver.refresh(pool)
    assert pool.hostports == {"b": "10.0.0.2:1"}
    assert [(entry["host"], entry["reason"]) for entry in logs] == [("a", "a: name not known")]
    names.table["a"] = ["10.0.0.1"]
    await discovery.resolver.refresh(pool)
    assert pool.hostports == {"a": "10.0.0.1:1", "b": "10.0.0.2:1"}


async def test_none_that_resolves_is_an_error_at_the_start(pool, names):
    with pytest.raises(ConfigurationError, match="none of the endpoints' host names resolves: a, b"):
        await StaticDiscovery(parse_targets("a:1,b:1"), lookup=names).start(pool)


async def test_name_that_stops_resolving_keeps_its_address_and_is_logged_once_until_it_is_back(pool, names):
    names.table["a"] = ["10.0.0.1"]
    discovery = StaticDiscovery(parse_targets("a=a:1"), lookup=names)
    await discovery.start(pool)
    with capture_logs() as logs:
        for addresses in (None, None, ["10.0.0.7"], None):
            names.table = {"a": addresses} if addresses else {}
            await discovery.resolver.refresh(pool)
    assert pool.hostports == {"a": "10.0.0.7:1"}
    assert [entry["kept_address"] for entry in logs] == ["10.0.0.1", "10.0.0.7"]


async def test_two_endpoints_at_one_address_are_an_error_at_the_start_that_names_both(pool, names):
    names.table["localhost"] = ["::1", "127.0.0.1"]
    targets = parse_targets("own=127.0.0.1:18101,other=127.0.0.1:18102,host=localhost:18101")
    with pytest.raises(ConfigurationError, match=r"'own' and 'host' are one server, 127.0.0.1:18101: leave one out"):
        await StaticDiscovery(targets, lookup=names).start(pool)


async def test_endpoints_that_come_to_one_address_later_are_one_and_that_is_logged_once_until_they_part(pool, names):
    names.table = {"a": ["10.0.0.1"], "b": ["10.0.0.2"]}
    discovery = StaticDiscovery(parse_targets("a=a:1,b=b:1,c=b:2"), lookup=names)
    await discovery.start(pool)
    with capture_logs() as logs:
        for address in ("10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.1"):
            names.table["b"] = [address]
            await discovery.resolver.refresh(pool)
            apart = {"b": "10.0.0.2:1"} if address == "10.0.0.2" else {}
            assert pool.hostports == {"a": "10.0.0.1:1", "c": f"{address}:2", **apart}
    assert [(line["address"], line["first"], line["second"]) for line in logs] == [("10.0.0.1:1", "a", "b")] * 2
    assert {line["event"] for line in logs} == {"two endpoints have the same address: the second one is not used"}


async def test_unresolved_hosts_are_tried_again_sooner_than_resolved_ones(pool, names):
    resolver = Resolver(names, parse_targets("a:1,b:1,10.0.0.1:1"))
    names.table["a"] = ["10.0.0.2"]
    await resolver.refresh(pool)
    assert resolver.refresh_seconds == 2
    names.table["b"] = ["10.0.0.3"]
    await resolver.refresh(pool)
    assert resolver.refresh_seconds == 30
    resolver.targets = parse_targets("10.0.0.1:1")
    await resolver.refresh(pool)
    assert resolver.refresh_seconds is None


async def test_pool_is_filled_again_only_when_targets_or_addresses_changed(pool, names):
    names.table = {"a": ["10.0.0.1"], "b": ["10.0.0.2"]}
    resolver = Resolver(names, parse_targets("a=a:1,b=b:1"))
    await resolver.refresh(pool)
    assert await resolver.refresh(pool) == 2
    assert pool.replaced == 1
    names.table["b"] = ["10.0.0.3"]
    await resolver.refresh(pool)
    assert pool.hostports == {"a": "10.0.0.1:1", "b": "10.0.0.3:1"}
    resolver.targets = parse_targets("b=b:1,a=a:1;zone=z1")
    await resolver.refresh(pool)
    assert [(endpoint.name, dict(endpoint.labels)) for endpoint in pool.endpoints] == [("b", {}), ("a", {"zone": "z1"})]


async def test_following_takes_over_a_late_host(pool, names, following, monkeypatch):
    monkeypatch.setattr("epp.pool.discovery.targets._UNRESOLVED_SECONDS", 0.01)
    names.table["b"] = ["10.0.0.2"]
    discovery = StaticDiscovery(parse_targets("a=a:1,b=b:1"), lookup=names)
    await discovery.start(pool)
    names.table["a"] = ["10.0.0.1"]
    async with following(discovery, pool):
        await until(lambda: pool.hostports == {"a": "10.0.0.1:1", "b": "10.0.0.2:1"}, "the late host is in the pool")


async def test_name_that_is_no_name_is_an_error_of_the_lookup():
    with pytest.raises(socket.gaierror):
        await system_lookup("name.invalid")


async def test_endpoints_without_an_address_are_named_until_they_have_one(pool, names, tmp_path):
    path = tmp_path / "endpoints.yaml"
    path.write_text(
        "endpoints: [{name: a, address: gpu, port: 443, scheme: https}, {name: b, address: 10.0.0.2, port: 1}]"
    )
    of_file = FileDiscovery(FileDiscoveryParameters(path=str(path)), lookup=names)
    of_flag = StaticDiscovery(parse_targets("a=https://gpu:443,b=10.0.0.2:80"), lookup=names)
    for discovery in (of_file, of_flag):
        names.table.pop("gpu", None)
        await discovery.start(pool)
        (left_out,) = discovery.unresolved
        assert left_out == Unresolved("default/a", "gpu", left_out.reason, tls=True)
        assert left_out.reason
        for names.table in ({"gpu": ["10.0.0.1"]}, {}):  # it keeps its address
            await discovery.resolver.refresh(pool)
            assert discovery.unresolved == ()
