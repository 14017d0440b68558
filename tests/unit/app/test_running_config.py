# SPDX-License-Identifier: Apache-2.0
"""One running configuration, without a process: started, switched, stopped."""

import asyncio
from typing import NamedTuple

import pytest

from epp.app import running_config
from epp.app.running_config import RunningConfig
from epp.config import Builder, assemble, load_text
from epp.framework import RUNNING, Clock, ConfigurationError, Endpoint, Headers, ManualClock, Parameters, SystemClock
from epp.framework.datalayer import (
    DataSource,
    Discovery,
    Extractor,
    Follower,
    PageError,
    Report,
    Tagger,
    every_endpoint,
)
from epp.framework.refusals import StartingError
from epp.framework.registry import Registry
from epp.framework.request import PREFIX_MATCH
from epp.framework.snapshot import TOPOLOGY, Topology
from epp.kube.cluster import Cluster
from epp.kube.readers import ClusterReaders
from epp.pool.discovery import StaticDiscovery
from epp.pool.discovery.targets import Target
from epp.routing.director import Cause
from epp.runtime.supervisor import Supervisor
from epp.telemetry.metrics import Metrics
from tests.support.kube.fake_api import FakeApi
from tests.support.kube.kube_server import kubeconfig
from tests.support.waiting import until

HEAD = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n"
BODY = b'{"model":"m","prompt":"hello"}'


class HostsParameters(Parameters, frozen=True):
    hosts: tuple[str, ...] = ()
    fails: bool = False


class Hosts(Discovery[HostsParameters]):
    """Endpoints by IP, or `name/IP`; may fail once they are in the pool, and writes once more when told to stop."""

    plugin_type = "hosts"

    def setup(self):
        self.follows = False

    async def start(self, pool):
        targets = [Target(host.partition("/")[0], host.rpartition("/")[2], 8000) for host in self.parameters.hosts]
        await StaticDiscovery(targets).start(pool)
        if self.parameters.fails:
            raise ConfigurationError("hosts: source lost")

    async def follow(self, pool):
        self.follows = True
        try:
            await asyncio.Event().wait()
        finally:
            await StaticDiscovery([Target("afterthought", "10.6.6.6", 8000)]).start(pool)
            self.follows = False


class Zone(Tagger, Follower):
    """Puts every endpoint in a zone that it learns as it follows; fails the first time it follows."""

    plugin_type = "zone"
    writes = (TOPOLOGY,)

    def setup(self):
        self.known = ""
        self.starts = 0

    def tag(self, endpoint):
        return Report(attributes={TOPOLOGY: Topology(zone=self.known)})

    async def follow(self, changed):
        self.starts += 1
        if self.starts == 1:
            raise ConnectionError("no source yet")
        self.known = "z1"
        changed(every_endpoint)
        await asyncio.Event().wait()


class PlaceParameters(Parameters, frozen=True):
    zone: str = ""


class Place(Tagger[PlaceParameters]):
    """Puts every endpoint in a zone."""

    plugin_type = "place"
    writes = (TOPOLOGY,)

    def tag(self, endpoint):
        return Report(attributes={TOPOLOGY: Topology(zone=self.parameters.zone)})


class Pages(DataSource):
    """Answers when a test says so: the first poll of each endpoint; later ones are not answered."""

    plugin_type = "pages"
    port = None
    interval_seconds = None

    def setup(self):
        self.asked: dict[str, asyncio.Future[bytes]] = {}

    async def fetch(self, endpoint):
        if endpoint.address in self.asked:
            return await asyncio.Future()
        future = self.asked[endpoint.address] = asyncio.get_running_loop().create_future()
        return await future

    async def close(self):
        pass


class Counts(Extractor):
    """Reads the number of running requests."""

    plugin_type = "counts"
    writes = (RUNNING,)

    def extract(self, page, endpoint):
        return Report({RUNNING: float(page)})


SLOW_PAGES = f"""{HEAD}
plugins: [{{type: hosts, parameters: {{hosts: [10.0.0.1, 10.0.0.2]}}}}, {{type: pages}}, {{type: counts}}]
dataLayer:
  injectDefaults: false
  discovery: {{pluginRef: hosts}}
  sources: [{{pluginRef: pages, extractors: [{{pluginRef: counts}}]}}]
"""


def pool(*hosts: str, fails: str = "false", more: str = "") -> str:
    return HEAD + (
        f"plugins: [{{type: hosts, parameters: {{hosts: [{', '.join(hosts)}], fails: {fails}}}}}{more}]\n"
        "dataLayer: {injectDefaults: false, discovery: {pluginRef: hosts}}"
    )


class World:
    def __init__(self, text: str, clock: Clock | None = None, **options) -> None:
        self.clock = clock or ManualClock()
        self.metrics = Metrics("pool", self.clock)
        self.registry = Registry()
        for plugin in (Hosts, Zone, Place, Pages, Counts):
            self.registry.register(plugin)
        self.running = RunningConfig(self.assembly(text), self.clock, self.metrics, **options)

    def assembly(self, text: str):
        running = getattr(self, "running", None)
        previous = {} if running is None else running.assembly.instances.by_name
        return assemble(load_text(text), Builder(self.registry, self.clock, previous=previous))

    def targets(self) -> set[str]:
        route = self.running.director.route
        return {route(Headers(), BODY, None).result.targets[0].address for _ in range(20)}

    def zone(self) -> Topology:
        """Where the endpoint of the first slot is."""
        return self.running.store.snapshot().records(TOPOLOGY).values[0]

    async def __aenter__(self):
        await self.running.start()
        return self

    async def __aexit__(self, *_):
        await self.running.stop()


async def test_tf_15_requests_are_refused_until_the_pool_is_known():
    world = World(pool("10.0.0.1"))
    with pytest.raises(StartingError) as refused:
        world.running.director.route(Headers(), BODY, None)
    assert (refused.value.status, refused.value.retry_after_seconds) == (503, 1)
    async with world:
        assert world.targets() == {"10.0.0.1"}


async def test_tf_15_start_waits_for_the_first_report_of_each_endpoint_and_for_no_other():
    world = World(SLOW_PAGES, clock=SystemClock())
    (pages,) = [plugin for plugin in world.running.assembly.plugins if isinstance(plugin, Pages)]
    starting = asyncio.create_task(world.running.start())
    try:
        await until(lambda: len(pages.asked) == 2, "both are asked")
        pages.asked["10.0.0.1"].set_result(b"7")
        await until(lambda: world.running.awaited == "first reports of endpoints: 1 missing", "one has reported")
        assert not starting.done()
        with pytest.raises(StartingError):
            world.running.director.route(Headers(), BODY, None)
        pages.asked["10.0.0.2"].set_exception(PageError("no page"))  # as good as a report
        await starting
        assert not world.running.awaited
        world.running.take_over(600)
        assert world.running.inherited == 7
    finally:
        starting.cancel()
        await world.running.stop()


async def test_tf_15_start_does_not_wait_long_for_an_endpoint_that_says_nothing(monkeypatch):
    monkeypatch.setattr(running_config, "_CHECKS", 3)
    async with World(SLOW_PAGES, clock=SystemClock()) as world:
        assert world.targets() == {"10.0.0.1", "10.0.0.2"}
        world.running.take_over(600)
        assert world.running.inherited == 0


async def test_endpoints_that_another_process_polls_are_neither_polled_nor_tagged_here():
    asked = []
    async with World(SLOW_PAGES, clock=SystemClock(), ask=lambda endpoint, _: asked.append(endpoint.address)) as world:
        (pages,) = [plugin for plugin in world.running.assembly.plugins if isinstance(plugin, Pages)]
        assert world.targets() == {"10.0.0.1", "10.0.0.2"}
        assert not pages.asked
        assert not {"collect", "polls of many endpoints"} & {task.get_name() for task in asyncio.all_tasks()}
        world.running.director.outliers.suspect(world.running.store.endpoints[0])
        assert asked == ["10.0.0.1"]
        await world.running.switch(world.assembly(SLOW_PAGES))
        assert not pages.asked


@pytest.mark.parametrize(
    ("ask", "watched"),
    [(None, {"hub", "cluster", "quotas"}), (lambda _endpoint, _tell: None, {"quotas"})],
    ids=["main process", "worker"],
)
async def test_ocm_15_worker_reads_no_hub_and_no_objects_for_tags(ask, watched, tmp_path, monkeypatch):
    cluster, hub, supervisor = FakeApi(), FakeApi(), Supervisor()
    hub.namespace = "default"
    monkeypatch.setattr("epp.kube.readers.KubeApi", lambda *_, **__: hub)
    access = kubeconfig(tmp_path / "hub", "https://10.0.0.1:6443", token="t")  # noqa: S106  of nobody
    plugins = [
        f"{{type: cluster-data-source, parameters: {{kubeconfig: {access}}}}}",
        "{type: accelerator-data-source}",
        "{type: topology-extractor}",
        "{type: tenant-quotas, parameters: {gpuResourceQuotas: true}}",
    ]
    of_pool = Cluster(cluster, clock=SystemClock(), supervisor=supervisor)
    readers = ClusterReaders(of_pool, "llm", supervisor=supervisor)
    text = pool("10.0.0.1", more=f", {', '.join(plugins)}")
    try:
        async with World(text, clock=SystemClock(), ask=ask, readers=readers) as world:
            await world.running.switch(world.assembly(text))
            await until(lambda: cluster.requests, "objects are read")
            found = {"hub"} if hub.requests or readers.hubs.clusters else set()
            found |= {"quotas" if "gpuresourcequotas" in path else "cluster" for path in cluster.requests}
            assert found == watched
    finally:
        await of_pool.close()
        await supervisor.stop()


MANY = 150


def hosts(first: int) -> list[str]:
    return [f"10.0.{number // 250}.{number % 250 + 1}" for number in range(first, first + MANY)]


def placed(first: int, zone: str) -> str:
    return pool(*hosts(first), more=f", {{type: place, parameters: {{zone: {zone}}}}}")


class Seen(NamedTuple):
    """Addresses and zones of the endpoints that a request chose from, and where it went."""

    addresses: frozenset[str]
    zones: frozenset[str]
    target: str


def seen(world: World) -> Seen:
    routing = world.running.director.route(Headers(), BODY, None)
    candidates = routing.result.primary.candidates
    routing.complete(Cause.NATURAL)
    zones = frozenset(each.zone for each in candidates.records(TOPOLOGY))
    return Seen(frozenset(one.address for one in candidates.endpoints), zones, routing.result.targets[0].address)


async def test_each_request_during_a_switch_of_many_has_the_old_pool_or_the_new_one_with_its_tags(monkeypatch):
    monkeypatch.setattr("epp.pool.collectors.tagging.STRETCH_SECONDS", 0.0)  # every step takes a turn of its own
    old, new = (frozenset(hosts(0)), frozenset({"z1"})), (frozenset(hosts(MANY // 2)), frozenset({"z2"}))
    async with World(placed(0, "z1"), SystemClock()) as world:
        found, changes = [seen(world)], []
        world.running.store.subscribe(changes.append)
        switching = asyncio.ensure_future(world.running.switch(world.assembly(placed(MANY // 2, "z2"))))
        while not switching.done():
            await asyncio.sleep(0)
            found.append(seen(world))
        await switching
        pools = [(each.addresses, each.zones) for each in found]
        assert pools == [old] * pools.count(old) + [new] * pools.count(new)
        assert pools.count(old) > MANY  # turns in which one is tagged
        assert pools[-1] == new
        assert all(each.target in each.addresses for each in found)
        assert len(changes) == 1
        await until(lambda: set(world.running._collector._endpoints) == {  # noqa: SLF001  what is polled
            one.id for one in world.running.store.endpoints
        }, "the new pool is polled")  # fmt: skip


async def test_switch_of_many_ends_though_the_old_pool_changes_all_the_time():
    async with World(placed(0, "z1"), SystemClock()) as world:
        switching = asyncio.ensure_future(world.running.switch(world.assembly(placed(MANY, "z2"))))
        number = 0
        while not switching.done():
            world.running.store.update([Endpoint("restless", "10.9.9.9", 1 + number % 2)])
            number += 1
            await asyncio.sleep(0)
        await switching
        world.running.store.update([], ["default/restless"])
        found = seen(world)
        assert (found.addresses, found.zones) == (frozenset(hosts(MANY)), {"z2"})


async def test_switch_that_fails_changes_nothing():
    async with World(pool("10.0.0.1")) as world:
        before = world.running.assembly
        with pytest.raises(ConfigurationError, match="source lost"):
            await world.running.switch(world.assembly(pool("10.0.0.2", fails="true")))
        assert world.running.assembly is before
        assert world.targets() == {"10.0.0.1"}


async def test_source_that_was_replaced_changes_the_pool_no_more():
    async with World(pool("10.0.0.1")) as world:
        before = world.running.assembly.discovery
        await until(lambda: before.follows, "the first source is followed")
        await world.running.switch(world.assembly(pool("10.0.0.2")))
        await until(lambda: not before.follows, "it has ended")
        assert world.targets() == {"10.0.0.2"}


async def test_two_endpoints_of_one_name_are_refused_with_nothing_changed():
    async with World(pool("10.0.0.1")) as world:
        with pytest.raises(ValueError, match="two endpoints are named"):
            await world.running.switch(world.assembly(pool("10.0.0.2", "10.0.0.2/10.0.0.4")))
        assert world.targets() == {"10.0.0.1"}
        await world.running.switch(world.assembly(pool("10.0.0.3")))
        assert world.targets() == {"10.0.0.3"}


async def test_plugin_kept_across_a_switch_keeps_its_state_and_forgets_endpoints_that_left():
    index = ", {type: approx-prefix-cache-producer}"
    long = b'{"model":"m","prompt":"%s"}' % (b"x" * 4096)  # 16 blocks of 64 tokens of 4 bytes

    def matched(world: World) -> int:
        """Route the prompt; return how many of its blocks the endpoint was believed to hold before."""
        routing = world.running.director.route(Headers(), long, None)
        return max(routing.request.get(PREFIX_MATCH).matched_blocks.tolist())

    async with World(pool("10.0.0.1", more=index)) as world:
        assert [matched(world), matched(world)] == [0, 16]
        await world.running.switch(world.assembly(pool("10.0.0.1", more=index + ", {type: queue-scorer}")))
        assert matched(world) == 16
        await world.running.switch(world.assembly(pool("10.0.0.2", more=index)))
        assert [matched(world), matched(world)] == [0, 16]  # the new endpoint has the old one's slot, not its blocks


async def test_tagger_kept_across_a_switch_follows_on_and_tags_the_new_pool():
    zone = ", {type: zone}"
    async with World(pool("10.0.0.1", more=zone)) as world:
        tagger = world.running.assembly.instances.by_name["zone"]
        await until(lambda: tagger.known, "the tagger has learned its zone")
        await world.running.switch(world.assembly(pool("10.0.0.2", more=zone)))
        assert world.running.assembly.instances.by_name["zone"] is tagger
        assert world.zone() == Topology(zone="z1")
        assert tagger.starts == 2  # one that failed, and one that goes on


async def test_given_source_of_endpoints_takes_precedence_and_one_is_needed():
    given = StaticDiscovery([Target("mine", "10.9.9.9", 8000)])
    async with World(pool("10.0.0.1"), discovery=given) as world:
        assert world.targets() == {"10.9.9.9"}
        await world.running.switch(world.assembly(HEAD))
        assert world.targets() == {"10.9.9.9"}
    with pytest.raises(ConfigurationError, match="give --endpoints"):
        World(HEAD)


async def test_task_that_fails_is_listed_counted_and_restarted():
    async with World(pool("10.0.0.1", more=", {type: zone}")) as world:
        tagger = world.running.assembly.instances.by_name["zone"]
        await until(lambda: world.zone() == Topology(zone="z1"), "the endpoint is tagged")
        assert tagger.starts == 2
        assert world.running.failing_tasks == {"tagger zone": "ConnectionError: no source yet"}
        failures = "llm_d_epp_background_task_failures_total"
        assert world.metrics.registry.get_sample_value(failures, {"task": "tagger"}) == 1
        await world.running.switch(world.assembly(pool("10.0.0.1")))
        assert world.zone() == Topology()
        await until(lambda: not world.running.failing_tasks, "the task of the tagger has ended")


async def test_two_pools_run_side_by_side():
    async with World(pool("10.0.0.1")) as one, World(pool("10.0.0.2")) as other:
        assert (one.targets(), other.targets()) == ({"10.0.0.1"}, {"10.0.0.2"})
        await one.running.switch(one.assembly(pool("10.0.0.3")))
        assert (one.targets(), other.targets()) == ({"10.0.0.3"}, {"10.0.0.2"})
