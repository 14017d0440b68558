# SPDX-License-Identifier: Apache-2.0
"""A picker and the file that it follows, while a switch to another source of endpoints takes its time."""

import asyncio
from collections.abc import AsyncIterator
from typing import ClassVar

import pytest

from epp.app import Picker, PickerSettings
from epp.config import load_file
from epp.extproc.settings import ServerSettings
from epp.framework import ConfigurationError, Endpoint, Headers, Parameters
from epp.framework.datalayer import Discovery
from tests.support.config_files import replace
from tests.support.waiting import until


class HostParameters(Parameters, frozen=True):
    host: str


class SlowHost(Discovery[HostParameters]):
    """One endpoint, once the future of its host is settled; a host without a future is there at once."""

    plugin_type = "slow-host"
    futures: ClassVar[dict[str, asyncio.Future[None]]] = {}
    begun: ClassVar[set[str]] = set()

    async def start(self, pool):
        host = self.parameters.host
        self.begun.add(host)
        if host in self.futures:
            await self.futures[host]
        pool.replace([Endpoint(host, host, 8000)])

    async def follow(self, pool):
        await asyncio.Event().wait()


def at(host: str) -> str:
    return f"""
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins: [{{type: "{__name__}:SlowHost", name: pool, parameters: {{host: {host}}}}}]
dataLayer: {{injectDefaults: false, discovery: {{pluginRef: pool}}}}
"""


FIRST, SLOW, THIRD = at("10.0.0.1"), at("10.0.0.2"), at("10.0.0.3")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(FIRST)
    return path


@pytest.fixture
async def picker(file, tmp_path) -> AsyncIterator[Picker]:
    picker = Picker(
        PickerSettings(
            server=ServerSettings(f"unix:{tmp_path}/picker.sock", secure=False),
            config=load_file(file),
            watch_config=file,
            plugin_modules=(__name__,),
        )
    )
    await picker.start()
    yield picker
    await picker.stop(drain_seconds=0)


@pytest.fixture
async def switching(picker, file, monkeypatch) -> asyncio.Future[None]:
    """A switch to the second host that waits for this future."""
    future = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(SlowHost, "futures", {"10.0.0.2": future})
    monkeypatch.setattr(SlowHost, "begun", set())
    replace(file, SLOW)
    await until(lambda: "10.0.0.2" in SlowHost.begun, "the switch is under way")
    return future


def target(picker: Picker) -> str:
    return picker.director.route(Headers(), b'{"model":"m","prompt":"hello"}', None).result.targets[0].address


async def test_requests_are_routed_by_the_old_configuration_until_the_new_pool_is_there(picker, switching):
    assert target(picker) == "10.0.0.1"
    assert picker.config.generation == 1
    switching.set_result(None)
    await until(lambda: picker.config.generation == 2, "the switch is done")
    assert target(picker) == "10.0.0.2"


async def test_version_that_comes_during_a_switch_is_applied_after_it(picker, file, switching):
    replace(file, THIRD)
    switching.set_result(None)
    await until(lambda: picker.config.generation == 3, "both are applied")
    assert target(picker) == "10.0.0.3"
    assert picker.config.refused == ""


async def test_version_in_effect_that_comes_back_during_a_switch_is_applied_after_it(picker, file, switching):
    replace(file, FIRST)
    switching.set_result(None)
    await until(lambda: picker.config.generation == 3, "the switch is done and undone")
    assert target(picker) == "10.0.0.1"


async def test_bad_version_that_comes_during_a_switch_is_refused_and_the_switch_stays(picker, file, switching):
    replace(file, "kind: Nonsense")
    switching.set_result(None)
    await until(lambda: bool(picker.config.refused), "the bad version is refused")
    assert picker.config.generation == 2
    assert target(picker) == "10.0.0.2"


async def test_switch_that_fails_is_tried_again_unless_the_file_has_another_version(picker, file, switching):
    replace(file, THIRD)
    switching.set_exception(ConfigurationError("no such host"))
    await until(lambda: picker.config.generation == 2, "the other version is in effect")
    assert target(picker) == "10.0.0.3"
    assert picker.config.refused == ""


async def test_picker_can_be_stopped_during_a_switch(picker, switching):
    await picker.stop(drain_seconds=0)
    assert switching.cancelled()
    assert picker.config.generation == 1
