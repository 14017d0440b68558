# SPDX-License-Identifier: Apache-2.0
"""Endpoints of several sources behind a real Envoy: all of them serve, whatever becomes of one source."""

import asyncio
from pathlib import Path

import pytest
import yaml

from epp.framework import ConfigurationError
from tests.support.config_files import endpoints_file, picker_config, replace
from tests.support.waiting import until
from tests.support.world import World, open_world


def config(*sources: tuple[str, Path]) -> str:
    """Return a configuration with these sources of endpoints, by name."""
    plugins = [
        {"type": "file-discovery", "name": f"file-{name}", "parameters": {"path": str(path), "watchFile": True}}
        for name, path in sources
    ]
    listed = [{"pluginRef": f"file-{name}", "name": name} for name, _ in sources]
    plugins.append({"type": "active-request-scorer"})
    return picker_config(yaml.safe_dump({"plugins": plugins, "dataLayer": {"discovery": {"endpoints": listed}}}))


async def served(world: World) -> set[str]:
    return set(await asyncio.gather(*(world.ask(f"question {number}") for number in range(8))))


def states(world: World) -> dict[str, dict]:
    return {each["name"]: each for each in world.gateway.picker.operators.health().get("sources", ())}


@pytest.fixture
async def sims(simulated):
    return await simulated("a", "b", "c")


async def test_ocm_14_requests_go_to_the_endpoints_of_all_sources_while_one_is_broken(sims, tmp_path):
    local = endpoints_file(tmp_path / "local.yaml", a=(sims["a"].address, {}))
    remote = endpoints_file(tmp_path / "remote.yaml", b=(sims["b"].address, {}))
    file = tmp_path / "config.yaml"
    replace(file, config(("local", local), ("remote", remote)))
    async with open_world(config_file=file, sims=sims) as world:
        assert await served(world) == {"a", "b"}
        replace(remote, "endpoints: 3")
        await until(lambda: states(world)["remote"]["trouble"], "the broken file is told of")
        assert "'endpoints' is not a list" in states(world)["remote"]["trouble"]
        assert not states(world)["local"]["trouble"]
        assert await served(world) == {"a", "b"}  # by its last good version
        endpoints_file(local, a=(sims["a"].address, {}), c=(sims["c"].address, {}))
        await until(lambda: "c" in world.available, "the other file is followed")
        endpoints_file(remote, b=(sims["b"].address, {}))
        await until(lambda: not states(world)["remote"]["trouble"], "the file is whole again")
        assert await served(world) == {"a", "b", "c"}


async def test_ocm_14_source_that_is_broken_at_the_start_joins_once_it_is_whole(sims, tmp_path):
    local, remote = endpoints_file(tmp_path / "local.yaml", a=(sims["a"].address, {})), tmp_path / "remote.yaml"
    async with open_world(config=config(("local", local), ("remote", remote)), sims=sims) as world:
        assert await served(world) == {"a"}
        assert f"endpoints file {remote}" in states(world)["remote"]["trouble"]
        endpoints_file(remote, b=(sims["b"].address, {}))
        await until(lambda: "b" in world.available, "the file is read")
        assert await served(world) == {"a", "b"}


async def test_ocm_14_sources_change_with_the_configuration_and_those_that_stay_are_undisturbed(sims, tmp_path):
    files = {name: endpoints_file(tmp_path / f"{name}.yaml", **{name: (sims[name].address, {})}) for name in "abc"}
    file = tmp_path / "config.yaml"
    replace(file, config(*((name, files[name]) for name in "ab")))
    async with open_world(config_file=file, sims=sims) as world:
        kept = world.gateway.picker.store.endpoint("default/a")
        for names in ("ac", "a", "abc"):
            replace(file, config(*((name, files[name]) for name in names)))
            await until(lambda n=names: world.available == set(n), f"the sources are {names}")
            assert await served(world) == set(names)
            assert world.gateway.picker.store.endpoint("default/a") is kept or names == "a"


async def test_ocm_14_endpoints_of_flags_are_one_source_or_none_is_started(sims, tmp_path):
    remote = endpoints_file(tmp_path / "remote.yaml", b=(sims["b"].address, {}))
    content = yaml.safe_load(config(("remote", remote)))
    content["plugins"].append({"type": "pool-discovery"})
    content["dataLayer"]["discovery"]["endpoints"].append({"pluginRef": "pool-discovery", "name": "flags"})
    text = yaml.safe_dump(content)
    async with open_world(config=text, endpoints=f"a={sims['a'].address}", sims=sims) as world:
        assert await served(world) == {"a", "b"}
        assert {name: each["endpoints"] for name, each in states(world).items()} == {"remote": 1, "flags": 1}
    missing = "pool-discovery needs a flag for endpoints"
    with pytest.raises(ConfigurationError, match=missing):
        async with open_world(config=text, sims=sims):
            pass
