# SPDX-License-Identifier: Apache-2.0
"""A new version of the file is taken over with what is unchanged kept; a bad one changes nothing."""

import asyncio
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from structlog.testing import capture_logs

from epp.config import Builder, ConfigFollower, ConfigObserver, ConfigState, assemble, load_file, load_text
from epp.framework import (
    WAITING,
    ConfigurationError,
    ManualClock,
    Parameters,
    PreRequest,
    Producer,
    Request,
    RequestBody,
    Scorer,
)
from epp.framework.files import UNCHANGED_SECONDS
from epp.framework.registry import Registry
from epp.framework.request import PREFIX_MATCH
from epp.framework.testing import candidates
from tests.support.config_files import ConfigMap, replace

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
FIRST = HEAD + "plugins: [{type: queue-scorer}]\n"
THIRD = HEAD + "plugins: [{type: kv-cache-utilization-scorer}]\n"
SECOND = HEAD + "plugins: [{type: active-request-scorer}]\n"
NOT_YAML = "plugins: ["
NO_PLUGIN = HEAD + "plugins: [{type: nope}]\n"


class OddParameters(Parameters, frozen=True):
    trouble: bool = False


class Odd(Scorer[OddParameters]):
    """Raises what nobody expects as it is built."""

    plugin_type = "odd"

    def __init__(self, parameters=None, *, name="", clock=None):
        super().__init__(parameters, name=name, clock=clock)
        if self.parameters.trouble:
            raise ZeroDivisionError("one by nothing")

    def score(self, request, candidates):
        return candidates.values(WAITING) * 0.0


PREFIX = "{type: prefix-cache-scorer, parameters: {matchLengthWeight: 0.5}}"
MINE = "{type: approx-prefix-cache-producer, name: mine}"
DEFAULTS = "{type: approx-prefix-cache-producer, name: mine, parameters: {blockSizeTokens: 16, autoTune: true}}"
DECIDED = """\
{type: disagg-profile-handler, parameters: {deciders: {prefill: decider}}}, {type: queue-scorer},
{type: prefix-based-pd-decider, name: decider, parameters: {nonCachedTokens: TOKENS}}"""
DECODE = "schedulingProfiles: [{name: decode, plugins: [{pluginRef: queue-scorer}]}]"


@pytest.mark.parametrize(
    ("before", "after", "kept", "gone"),
    [
        (
            *(f"{{type: queue-scorer}}, {PREFIX}", f"{PREFIX}, {{type: active-request-scorer}}"),
            *({"prefix-cache-scorer", "approx-prefix-cache-producer", "metrics-data-source"}, {"queue-scorer"}),
        ),
        (MINE, DEFAULTS, {"mine"}, set()),
        (MINE, MINE.replace("}", ", parameters: {blockSizeTokens: 128}}"), set(), {"mine"}),
        (MINE, MINE.replace("mine", "other"), set(), {"mine"}),
        (MINE, "{type: token-producer, name: mine}", set(), {"mine"}),
        (
            *(DECIDED.replace("TOKENS", "16"), DECIDED.replace("TOKENS", "32")),
            *({"queue-scorer"}, {"disagg-profile-handler", "decider"}),
        ),
    ],
    ids=["unchanged", "default written out", "parameters", "name", "type", "refers to a changed one"],
)
def test_unchanged_plugins_are_the_very_same_instances_and_changed_ones_are_not(build, before, after, kept, gone):
    profiles = f"\n{DECODE}" if "decider" in before else ""
    first = build(f"plugins: [{before}]{profiles}").instances.by_name
    second = build(f"plugins: [{after}]{profiles}", previous=first).instances.by_name
    assert {name for name in kept | gone if second.get(name) is first[name]} == kept


def test_source_of_objects_keeps_their_last_good_versions_unless_its_parameters_change(build, tmp_path):
    objects = tmp_path / "objects.yaml"
    objects.write_text("{apiVersion: ome.io/v1beta1, kind: AcceleratorClass, metadata: {name: a100}}")
    source = f"plugins: [{{type: accelerator-data-source, parameters: {{paths: [{objects}], SOME}}}}, {{type: NAME}}]"
    first = build(source.replace("SOME", "").replace("NAME", "queue-scorer")).instances.by_name

    objects.write_text("{")
    second = build(source.replace("SOME", "").replace("NAME", "cheapest-scorer"), previous=first).instances.by_name
    assert second["accelerator-data-source"] is first["accelerator-data-source"]
    assert list(second["accelerator-data-source"].inventory.classes) == ["a100"]

    with capture_logs() as logs:
        other = source.replace("SOME", "watchFiles: false").replace("NAME", "cheapest-scorer")
        third = build(other, previous=second).instances.by_name
    assert not third["accelerator-data-source"].inventory.classes
    (warning,) = [log["problem"] for log in logs if log["log_level"] == "warning"]
    assert warning.startswith(f"{objects} is skipped: line 1: neither YAML nor JSON: ")


def test_prefix_index_survives_a_reload(build):
    prompt = RequestBody(model="m", prompt=b"x" * 4096, prompt_tokens=1024)
    pool = candidates(waiting=[9, 0, 9], running=[0] * 3)

    def matched(assembly, request_id: str) -> list[int]:
        """Route a request; return how many blocks each endpoint was believed to hold before."""
        request = Request(request_id, prompt)
        for producer in assembly.pipeline.of(Producer):
            producer.produce(request, pool)
        result = assembly.pipeline.scheduler.schedule(request, pool)
        for hook in assembly.pipeline.of(PreRequest):
            hook.pre_request(request, result)
        return request.get(PREFIX_MATCH).matched_blocks.tolist()

    first = build("plugins: [{type: prefix-cache-scorer}, {type: queue-scorer}]")
    assert matched(first, "a") == [0, 0, 0]  # it goes to the second endpoint: nothing waits there
    text = "plugins: [{type: prefix-cache-scorer}, {type: active-request-scorer}]"
    second = build(text, previous=first.instances.by_name)
    assert matched(second, "b") == [0, 16, 0]  # 4096 bytes are 16 blocks of 64 tokens of 4 bytes
    assert matched(build(text), "c") == [0, 0, 0]


class Heard(ConfigObserver):
    """Keeps what it was told, and lets tests wait for it."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[int | str] = asyncio.Queue()

    def config_taken(self, generation: int) -> None:
        self.told.put_nowait(generation)

    def config_refused(self, reason: str) -> None:
        self.told.put_nowait(reason)

    def so_far(self) -> list[int | str]:
        return [self.told.get_nowait() for _ in range(self.told.qsize())]


class Following:
    """A follower of a file, and what it took over."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.heard = Heard()
        self.taken: list[str] = []
        self.trouble: Exception | None = None
        self.registry = Registry()
        self.registry.register(Odd)
        self.clock = ManualClock()
        self.start(clock=self.clock)

    def start(self, **options) -> None:
        self.follower = ConfigFollower(
            self.path, load_file(self.path), build=self.build, observer=self.heard, **options
        )

    def build(self, loaded):
        return assemble(loaded, Builder(self.registry, ManualClock()))

    def settle(self, assembly) -> None:
        if self.trouble is not None:
            self.follower.reject(self.trouble)
        else:
            self.taken.append(assembly.loaded.text)
            self.follower.accept(assembly)

    async def check(self, text: str | None = None) -> ConfigState:
        if text is not None:
            replace(self.path, text)
        assembly = await self.follower.check()
        if assembly is not None:
            self.settle(assembly)
        return self.follower.state

    async def follow(self) -> None:
        async for assembly in self.follower.versions():
            self.settle(assembly)


@pytest.fixture
def following(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(FIRST)
    return Following(path)


async def test_default_is_in_effect_while_there_is_no_file(following, tmp_path):
    default = tmp_path / "default.yaml"
    default.write_text(FIRST)
    following.start(default=default)
    following.path.unlink()
    assert (await following.check()).generation == 1
    replace(default, SECOND)
    assert (await following.check()).generation == 2
    assert (await following.check(THIRD)).generation == 3
    replace(default, FIRST)
    assert (await following.check()).generation == 3
    following.path.unlink()
    assert (await following.check()).generation == 4
    assert following.taken == [SECOND, THIRD, FIRST]


async def test_gie_11_new_version_is_taken_once(following):
    assert await following.check() == ConfigState(1)
    assert await following.check(SECOND) == ConfigState(2)
    assert await following.check() == ConfigState(2)
    assert await following.check(FIRST) == ConfigState(3)
    assert following.taken == [SECOND, FIRST]
    assert following.heard.so_far() == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (NOT_YAML, "c.yaml:1:11: is not valid YAML"),
        (NO_PLUGIN, "c.yaml:3:12: plugins[0].type: plugin type 'nope' is not registered"),
        (
            HEAD + "plugins: [{type: odd, name: o, parameters: {trouble: true}}]",
            "c.yaml:3:11: plugins[0]: plugin 'o': failed to initialize: ZeroDivisionError: one by nothing",
        ),
    ],
)
async def test_gie_11_bad_version_changes_nothing_and_says_why_until_the_old_text_is_back(following, text, reason):
    refused = await following.check(text)
    assert (refused.generation, reason in refused.refused) == (1, True)
    await following.check()
    assert following.taken == []
    assert following.heard.so_far() == [1, refused.refused]  # once, though it was looked at twice
    assert await following.check(FIRST) == ConfigState(1)
    assert following.taken == []
    assert following.heard.so_far() == [1]


async def test_another_bad_version_is_refused_for_its_own_reason(following):
    first = await following.check(NOT_YAML)
    second = await following.check(NO_PLUGIN)
    assert following.heard.so_far() == [1, first.refused, second.refused]


async def test_version_may_be_wrapped_in_a_config_map(following):
    wrapped = "kind: ConfigMap\ndata:\n  epp.yaml: |\n" + "".join(f"    {line}\n" for line in SECOND.splitlines())
    assert await following.check(wrapped) == ConfigState(2)
    assert await following.check(wrapped) == ConfigState(2)
    assert await following.check(f"\N{BYTE ORDER MARK}{FIRST}") == ConfigState(3)
    assert following.taken[0] == wrapped


async def test_file_that_is_gone_or_unreadable_changes_nothing(following):
    following.path.unlink()
    assert "cannot be read" in (await following.check()).refused
    following.path.mkdir()
    assert "cannot be read" in (await following.check()).refused
    following.path.rmdir()
    following.path.write_bytes(b"\xff\xfe")
    assert "is UTF-16; save it as UTF-8" in (await following.check()).refused
    assert await following.check(FIRST) == ConfigState(1)
    assert following.taken == []


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (ConfigurationError("endpoints file is missing"), "endpoints file is missing"),
        (KeyError("slot"), "KeyError: 'slot'"),
    ],
)
async def test_version_that_cannot_be_put_into_effect_is_refused_and_tried_again(following, trouble, reason):
    following.trouble = trouble
    assert await following.check(SECOND) == ConfigState(1, reason)
    assert await following.check(FIRST) == ConfigState(1)
    assert await following.check(SECOND) == ConfigState(1, reason)
    assert await following.check() == ConfigState(1, reason)
    assert following.heard.so_far() == [1, reason, 1, reason]
    following.trouble = None
    assert await following.check() == ConfigState(2)  # without another edit
    assert following.taken == [SECOND]


async def until_told(following, *, generation: int) -> None:
    async with asyncio.timeout(60):
        while await following.heard.told.get() != generation:
            pass


async def test_following_sees_a_file_written_in_place_and_one_renamed_over_it(following, monkeypatch):
    monkeypatch.setattr("epp.framework.files.UNCHANGED_SECONDS", 0.1)
    following.start()  # by the real clock
    task = asyncio.create_task(following.follow())
    following.path.write_text(SECOND)
    await until_told(following, generation=2)
    replace(following.path, FIRST)
    await until_told(following, generation=3)
    task.cancel()
    assert following.taken == [SECOND, FIRST]


async def test_version_written_in_place_waits_for_a_second_look(following):
    whole = SECOND + "schedulingProfiles:\n- {name: default, plugins: [{pluginRef: active-request-scorer}]}\n"
    await following.check(whole)
    generation = ConfigState(2)
    for cut in (SECOND, whole[:-1]):
        following.path.write_text(cut)
        for _ in range(2):
            refused = (await following.check()).refused
            assert "it was written in place: it takes effect once it has not changed for 1.5 s" in refused
        following.path.write_text(whole)
        assert await following.check() == generation
    following.path.write_text(SECOND)
    await following.check()
    following.clock.advance(UNCHANGED_SECONDS)
    assert await following.check() == ConfigState(3)
    assert following.taken == [whole, SECOND]


async def test_wait_of_long_ago_does_not_count_for_another_version(following):
    following.path.write_text(SECOND)
    await following.check()
    following.path.write_text(NOT_YAML)
    assert "is not valid YAML" in (await following.check()).refused
    following.clock.advance(3600)
    following.path.write_text(SECOND)
    assert "it was written in place" in (await following.check()).refused
    assert following.taken == []


async def test_following_sees_the_links_of_a_config_map_swapped(tmp_path):
    mounted = ConfigMap(tmp_path, c=FIRST)
    following = Following(tmp_path / "c.yaml")
    task = asyncio.create_task(following.follow())
    mounted.update(c=SECOND)
    await until_told(following, generation=2)
    task.cancel()
    assert following.taken == [SECOND]


async def test_a_new_version_is_built_beside_the_loop(following):
    built_in = []

    def notice(loaded):
        built_in.append(threading.current_thread())
        return following.build(loaded)

    follower = ConfigFollower(following.path, load_text(SECOND), build=notice)
    await follower.check()
    assert threading.current_thread() not in built_in
    assert len(built_in) == 1


GOOD = [FIRST, SECOND, HEAD + "plugins: [{type: random-picker}]\n"]
BAD = [NOT_YAML, NO_PLUGIN, "", HEAD + "plugins: [{type: odd, parameters: {trouble: true}}]\n"]


class AnyVersions(RuleBasedStateMachine):
    """Whatever is written, the last good version is in effect."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self._runner = asyncio.Runner()
        path = Path(self._directory.name) / "c.yaml"
        path.write_text(FIRST)
        self._following = Following(path)
        self._written: str | None = FIRST
        self._effective = [FIRST]

    def teardown(self) -> None:
        self._runner.close()
        self._directory.cleanup()

    @rule(text=st.sampled_from(GOOD + BAD))
    def write(self, text: str) -> None:
        self._written = text
        if text in GOOD and text != self._effective[-1]:
            self._effective.append(text)
        self._runner.run(self._following.check(text))
        self._following.clock.advance(UNCHANGED_SECONDS)  # a deleted file may leave its inode to the next one
        self._runner.run(self._following.check())

    @rule()
    def delete(self) -> None:
        self._following.path.unlink(missing_ok=True)
        self._written = None
        self._runner.run(self._following.check())

    @rule()
    def look_again(self) -> None:
        self._runner.run(self._following.check())

    @invariant()
    def last_good_version_is_in_effect(self) -> None:
        assert [FIRST, *self._following.taken] == self._effective

    @invariant()
    def generation_counts_what_was_taken(self) -> None:
        assert self._following.follower.state.generation == len(self._effective)

    @invariant()
    def refused_says_whether_the_file_is_another_one(self) -> None:
        assert bool(self._following.follower.state.refused) == (self._written != self._effective[-1])


TestAnyVersions = AnyVersions.TestCase
