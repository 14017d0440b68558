# SPDX-License-Identifier: Apache-2.0
"""All files that a picker follows, held to one rule: whatever is put in their place, the last good version counts.

The reason is told, with the file, and a good version is noticed afterwards.
"""

import asyncio
from abc import ABC, abstractmethod
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epp.config import Builder, ConfigFollower, assemble, load_file
from epp.framework import ManualClock
from epp.framework.files import UNCHANGED_SECONDS
from epp.framework.registry import Registry
from epp.pool.discovery import FileDiscovery, PodFileDiscovery
from epp.pool.discovery.endpoints_file import FileDiscoveryParameters
from epp.pool.discovery.pod_files import PodFileParameters
from epp.routing.datastore import Datastore
from tests.support.config_files import replace
from tests.support.hostile_files import DISGUISED, HOSTILE, remove

NAMES = tuple("abcdefgh")


class Followed(ABC):
    """A file with entries of the names a to h, and what follows it."""

    file = "followed.yaml"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()

    @staticmethod
    @abstractmethod
    def text(names: str) -> str:
        """Return a version with these entries."""

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def check(self) -> None: ...

    @abstractmethod
    def names(self) -> str:
        """Return the names of the entries in effect, in the order of letters."""

    @abstractmethod
    def problem(self) -> str: ...

    async def look_twice(self) -> None:
        await self.check()
        self.clock.advance(UNCHANGED_SECONDS)
        await self.check()


class Endpoints(Followed):
    @staticmethod
    def text(names: str) -> str:
        return "endpoints:\n" + "".join(
            f"- name: {name}\n  address: 10.0.0.{ord(name)}\n  port: 8000\n  labels: {{app: vllm}}\n" for name in names
        )

    async def start(self) -> None:
        self.store = Datastore(self.clock)
        parameters = FileDiscoveryParameters(path=str(self.path), watch_file=True)
        self.discovery = FileDiscovery(parameters, clock=self.clock)
        await self.discovery.start(self.store)

    async def check(self) -> None:
        await self.discovery.reread(self.store)

    def names(self) -> str:
        return "".join(sorted(endpoint.name for endpoint in self.store.endpoints))

    def problem(self) -> str:
        return "; ".join(map(str, self.discovery.inputs.problems))


POD = """apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  containers:
  - name: vllm
    resources: {{limits: {{nvidia.com/gpu: "1"}}}}
status:
  podIP: 10.0.0.{number}
  phase: Running
  conditions:
  - type: Ready
    status: "True"
"""


class Pods(Followed):
    @staticmethod
    def text(names: str) -> str:
        return "---\n".join(POD.format(name=name, number=ord(name)) for name in names)

    async def start(self) -> None:
        self.store = Datastore(self.clock)
        self.discovery = PodFileDiscovery(PodFileParameters(paths=(str(self.path),)), clock=self.clock)
        await self.discovery.start(self.store)

    async def check(self) -> None:
        await self.discovery.check(self.store)

    def names(self) -> str:
        return "".join(sorted(endpoint.name[0] for endpoint in self.store.endpoints))

    def problem(self) -> str:
        return "; ".join(map(str, self.discovery.inputs.problems))


class Plugin(Followed):
    """A plugin that is asked to look."""

    plugin_type = "accelerator-data-source"
    parameter: str

    def parameters(self) -> dict:
        return {self.parameter: str(self.path)}

    async def start(self) -> None:
        registry = Registry()
        self.plugin = registry.build(self.plugin_type, self.parameters(), name="plugin", clock=self.clock)

    async def check(self) -> None:
        await self.plugin.check()

    def problem(self) -> str:
        return "; ".join(map(str, self.plugin.inputs.problems))


class Prices(Plugin):
    parameter = "prices"

    @staticmethod
    def text(names: str) -> str:
        return "prices:\n" + "".join(f"- {{instanceType: {name}, perHour: 1.5}}\n" for name in names)

    def names(self) -> str:
        return "".join(sorted(price.instance_type for price in self.plugin._tables.price_file.parsed.value))  # noqa: SLF001  no other way


class GpuCatalogue(Plugin):
    parameter = "gpuCatalogue"

    @staticmethod
    def text(names: str) -> str:
        return "".join(f"- {{model: {name}, fullModelName: {name}, costPerHour: 1.5}}\n" for name in names)

    def names(self) -> str:
        return "".join(sorted(entry.model for entry in self.plugin._tables.products.parsed.value))  # noqa: SLF001  the same


class Classes(Plugin):
    @staticmethod
    def text(names: str) -> str:
        return "---\n".join(
            f"apiVersion: ome.io/v1beta1\nkind: AcceleratorClass\nmetadata:\n  name: {name}\nspec: {{vendor: nvidia}}\n"
            for name in names
        )

    def parameters(self) -> dict:
        return {"paths": [str(self.path)]}

    def names(self) -> str:
        return "".join(sorted(self.plugin.inventory.classes))


class ApiKeys(Plugin):
    plugin_type = "tenants"

    @staticmethod
    def text(names: str) -> str:
        return "".join(f"sk-{name}: team-{name}\n" for name in names)

    def parameters(self) -> dict:
        return {"apiKeyFile": str(self.path), "tenants": [{"name": f"team-{name}"} for name in NAMES]}

    def names(self) -> str:
        return "".join(name for name in NAMES if self.plugin.directory.of_key(f"sk-{name}") is not None)


class Configuration(Followed):
    @staticmethod
    def text(names: str) -> str:
        plugins = "".join(f"- type: queue-scorer\n  name: {name}\n" for name in names)
        uses = "".join(f"  - pluginRef: {name}\n" for name in names)
        head = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
        return f"{head}plugins:\n{plugins}schedulingProfiles:\n- name: default\n  plugins:\n{uses}"

    async def start(self) -> None:
        self.follower = ConfigFollower(self.path, load_file(self.path), build=self._build, clock=self.clock)
        self.loaded = load_file(self.path)
        await self.check()

    def _build(self, loaded):
        return assemble(loaded, Builder(Registry(), self.clock))

    async def check(self) -> None:
        assembly = await self.follower.check()
        if assembly is not None:
            self.follower.accept(assembly)
            self.loaded = assembly.loaded

    def names(self) -> str:
        return "".join(sorted(plugin.name for plugin in self.loaded.model.plugins))

    def problem(self) -> str:
        return self.follower.state.refused


KINDS = (Endpoints, Pods, Prices, GpuCatalogue, Classes, ApiKeys, Configuration)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request) -> type[Followed]:
    return request.param


@pytest.fixture
def followed(kind, tmp_path) -> Followed:
    path = tmp_path / kind.file
    path.write_text(kind.text("abcdefgh"))
    return kind(path)


@pytest.mark.parametrize("what", HOSTILE)
async def test_last_good_version_stays_whatever_is_put_in_place_of_a_file(followed, what):
    if what == "everything twice" and isinstance(followed, GpuCatalogue | ApiKeys):
        pytest.skip("a list that goes on, or keys that have the tenant they had")
    put = HOSTILE[what]
    await followed.start()
    for _ in range(2):
        put(followed.path, followed.text("abcdefgh"))
        await followed.check()
        assert followed.names() == "abcdefgh"
        assert followed.path.name in followed.problem()
        await followed.check()
        assert followed.names() == "abcdefgh"

        if followed.path.is_dir():
            remove(followed.path)
        replace(followed.path, followed.text("abcdefg"))
        await followed.look_twice()  # an inode may be given to another file
        assert followed.names() == "abcdefg"
        assert followed.problem() == ""

        replace(followed.path, followed.text("abcdefgh"))
        await followed.look_twice()
        assert followed.names() == "abcdefgh"


@pytest.mark.parametrize("put", DISGUISED.values(), ids=DISGUISED)
async def test_good_version_counts_in_any_form(followed, put):
    await followed.start()
    put(followed.path, followed.text("abcdefghi"[1:]))
    await followed.look_twice()
    assert followed.names() == "bcdefghi" if not isinstance(followed, ApiKeys) else "bcdefgh"
    assert followed.problem() == ""


async def test_less_than_half_waits_even_after_a_rename_and_half_does_not(followed):
    await followed.start()
    replace(followed.path, followed.text("abcd"))
    await followed.check()
    assert followed.names() == "abcd"
    replace(followed.path, followed.text("a"))
    await followed.check()
    if isinstance(followed, Configuration):  # has no entries that are counted
        assert followed.names() == "a"
        return
    assert followed.names() == "abcd"
    assert "it has 1 entries in place of 4: it takes effect once it has not changed for 1.5 s" in followed.problem()
    followed.clock.advance(UNCHANGED_SECONDS - 0.1)
    await followed.check()
    assert followed.names() == "abcd"
    followed.clock.advance(0.1)
    await followed.check()
    assert followed.names() == "a"
    assert followed.problem() == ""


async def test_file_that_is_written_again_and_again_is_taken_after_ten_seconds(followed):
    await followed.start()
    for second in range(10):
        followed.path.write_text(followed.text("abcdefg"[second % 7 :]))
        await followed.check()
        assert followed.names() == "abcdefgh"
        followed.clock.advance(1)
    followed.path.write_text(followed.text("fgh"))
    await followed.check()
    assert followed.names() == "fgh"
    assert followed.problem() == ""


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    before=st.sets(st.sampled_from("abcd"), min_size=1),
    after=st.sets(st.sampled_from("abcd"), min_size=1),
    step=st.integers(5, 9),
)
def test_pool_is_the_old_one_at_every_moment_of_a_write_in_place(tmp_path_factory, before, after, step):
    for kind in (Endpoints, Pods):
        followed = kind(tmp_path_factory.mktemp("files") / "followed.yaml")
        asyncio.run(_written_in_steps(followed, "".join(sorted(before)), "".join(sorted(after)), step))


async def _written_in_steps(followed: Followed, before: str, after: str, step: int) -> None:
    followed.path.write_text(followed.text(before))
    await followed.start()
    content = followed.text(after).encode()
    for length in range(0, len(content), step):
        followed.path.write_bytes(content[:length])
        await followed.check()
        assert followed.names() == before, content[:length]
    followed.path.write_bytes(content)
    await followed.look_twice()
    assert followed.names() == after
    assert followed.problem() == ""
