# SPDX-License-Identifier: Apache-2.0
"""A version of a file, or of an object in it, that cannot be understood leaves the one before in effect."""

import asyncio
import shutil
from pathlib import Path

import pytest
import yaml
from structlog.testing import capture_logs

from epp.framework import ManualClock
from epp.framework.plugin_status import InputProblem
from epp.framework.registry import Registry
from epp.hardware.tagger import AcceleratorTagger
from tests.support.config_files import ConfigMap, replace
from tests.support.kube.manifests import manifest

GRACE_SECONDS = 300.0
"""The default of missingFileGracePeriod."""


class Objects:
    """A directory of files with AcceleratorClasses by name and price, and a source that reads it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.source: AcceleratorTagger | None = None

    def write(self, *documents: dict, file: str = "classes.yaml") -> Path:
        return self.text(yaml.safe_dump_all(documents) or "--- # none\n", file)

    def text(self, text: str, file: str = "classes.yaml") -> Path:
        replace(self.directory / file, text)
        return self.directory / file

    def start(self, *paths: Path, **parameters) -> None:
        parameters = {"paths": [str(path) for path in paths or (self.directory,)], **parameters}
        self.source = Registry().build("accelerator-data-source", parameters, name="hardware", clock=self.clock)

    async def check(self) -> dict[str, str]:
        """Read the files again; return the prices in effect."""
        await self.source.check()
        return self.prices

    @property
    def prices(self) -> dict[str, str]:
        return {name: str(each.spec.cost.per_hour) for name, each in self.source.inventory.classes.items()}

    @property
    def problems(self) -> dict[str, str]:
        """What is not in effect, by file and object, with the number of objects kept."""
        return {
            f"{Path(each.file).name} {each.object}".strip(): f"{each.reason} (kept {each.kept})"
            for each in self.source.inputs.problems
        }


def priced(name: str, price: str | int, **spec) -> dict:
    return manifest("ome.io/v1beta1", "AcceleratorClass", name, spec={"cost": {"perHour": price}, **spec})


def bad(name: str) -> dict:
    return priced(name, 99, capabilities={"memoryGB": "80GiB"})


OPERATORS = "DoesNotExist, Exists, Gt, In, Lt, NotIn"
TERMS = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Like"}]}]}
BAD_FIELD = "spec.capabilities.memoryGB is '80GiB': write 80Gi, without the B"


@pytest.fixture
def objects(tmp_path) -> Objects:
    (tmp_path / "objects").mkdir()
    return Objects(tmp_path / "objects")


@pytest.fixture
def started(objects) -> Objects:
    """Two classes in a file, read."""
    objects.write(priced("a100", 2), priced("t4", 1))
    objects.start()
    return objects


@pytest.mark.parametrize("text", ["{{ not yaml", "a: [", "\x00", "kind: !!python/object:os.system {}"])
async def test_file_that_cannot_be_parsed_keeps_all_its_objects(started, text):
    started.text(text)
    assert await started.check() == {"a100": "2", "t4": "1"}
    ((file, problem),) = started.problems.items()
    assert file == "classes.yaml"
    assert problem.startswith("line 1: neither YAML nor JSON: ")
    assert problem.endswith("(kept 2)")

    started.write(priced("a100", 3))
    assert await started.check() == {"a100": "3"}
    assert started.problems == {}


async def test_object_with_a_bad_field_keeps_its_version_and_the_others_take_theirs(started):
    started.write(bad("a100"), priced("t4", 5), priced("h100", 4))
    assert await started.check() == {"a100": "2", "t4": "5", "h100": "4"}
    assert started.problems == {"classes.yaml AcceleratorClass a100": f"{BAD_FIELD} (kept 1)"}

    started.write(priced("a100", 3, capabilities={"memoryGB": "80Gi"}), priced("t4", 5))
    assert await started.check() == {"a100": "3", "t4": "5"}
    assert started.problems == {}


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (
            {"capabilities": {"computeCapability": "nine"}},
            "spec.capabilities.computeCapability is 'nine': write a version like 9.0",
        ),
        ({"cost": {"tier": "huge"}}, "spec.cost.tier is 'huge': write low, medium or high"),
        (
            {"discovery": {"dra": {"expression": "device.driver"}}},
            "spec.discovery.dra.expression returns STRING; it must return true or false",
        ),
        (
            {"discovery": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": TERMS}}}},
            f"spec.discovery.affinity: zone: unknown operator 'Like'; write one of {OPERATORS}",
        ),
    ],
)
async def test_value_that_would_have_no_effect_leaves_the_version_before(started, spec, reason):
    started.write({**priced("a100", 7), "spec": spec}, priced("t4", 5))
    assert await started.check() == {"a100": "2", "t4": "5"}
    assert started.problems == {"classes.yaml AcceleratorClass a100": f"{reason} (kept 1)"}


async def test_impossible_value_is_left_out_and_the_rest_of_the_new_version_counts(started):
    started.write(priced("a100", 7, capabilities={"memoryGB": -80}), priced("t4", 5))
    assert await started.check() == {"a100": "7", "t4": "5"}
    assert started.problems == {}
    (ignored,) = started.source.inputs.ignored
    assert (ignored.kind, ignored.object) == ("AcceleratorClass", "a100")
    assert ignored.reason == "spec.capabilities.memoryGB is -80: write the size of one device, such as 80Gi"


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"kind": "AcceleratorClass", "metadata": {"name": "a100"}}, "document 1"),
        ({"apiVersion": "ome.io/v1beta1", "metadata": {"name": "a100"}}, "document 1"),
        ({"apiVersion": "ome.io/v1beta1", "kind": "AcceleratorClass"}, "AcceleratorClass without a name"),
        (manifest("ome.io/v1beta1", "AcceleratorClass", 100), "AcceleratorClass 100"),
        (manifest("ome.io/v2", "AcceleratorClass", "a100"), "AcceleratorClass a100"),
        ({"apiVersion": "v1", "kind": "List", "items": {}}, "document 1"),
        ("a100", "document 1"),
    ],
)
async def test_document_that_may_be_an_object_which_is_missing_keeps_it(started, document, problem):
    started.write(document, priced("t4", 5))
    assert await started.check() == {"a100": "2", "t4": "5"}
    assert [key for key, text in started.problems.items() if text.endswith("(kept 1)")] == [f"classes.yaml {problem}"]


async def test_namespaces_and_kinds_tell_objects_of_one_name_apart(objects):
    def pod(namespace: str | None, node: object) -> dict:
        return manifest("v1", "Pod", "gpu", namespace, spec={"nodeName": node})

    objects.write(pod(None, "n1"), pod("llm", "n2"), priced("gpu", 1))
    objects.start()
    objects.write(pod("default", 7), pod("llm", "n4"), priced("gpu", 2))  # no namespace is `default`
    await objects.check()
    nodes = {name: pod.spec.node_name for name, pod in objects.source.inventory.pods.items()}
    assert nodes == {"default/gpu": "n1", "llm/gpu": "n4"}
    assert objects.prices == {"gpu": "2"}


async def test_missing_file_keeps_its_objects_until_the_grace_period_is_over(started):
    started.write(priced("h100", 4), file="more.yaml")
    await started.check()
    (started.directory / "classes.yaml").unlink()
    everything = {"a100": "2", "t4": "1", "h100": "4"}
    assert await started.check() == everything
    assert started.problems == {
        "classes.yaml": ("it is gone: restore it; its objects are removed once it has been missing for 5m (kept 2)")
    }
    started.clock.advance(GRACE_SECONDS - 1)
    assert await started.check() == everything
    started.clock.advance(1)
    with capture_logs() as logs:
        assert await started.check() == {"h100": "4"}
    assert {"event": "objects of a missing file removed", "objects": 2}.items() <= logs[0].items()
    assert started.problems == {}


async def test_empty_file_counts_as_missing(started):
    # `kubectl get ... > classes.yaml` empties the file first, and writes it seconds later
    started.text("")
    assert await started.check() == {"a100": "2", "t4": "1"}
    assert list(started.problems) == ["classes.yaml"]
    started.clock.advance(GRACE_SECONDS)
    assert await started.check() == {}
    assert started.problems == {}
    started.write(priced("a100", 3))
    assert await started.check() == {"a100": "3"}


async def test_directory_that_vanishes_keeps_its_objects_and_may_come_back(started, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    started.directory.rename(elsewhere)
    assert await started.check() == {"a100": "2", "t4": "1"}
    assert started.problems == {
        "objects": "it is gone: restore it, or remove it from `paths` (kept 0)",
        "classes.yaml": ("it is gone: restore it; its objects are removed once it has been missing for 5m (kept 2)"),
    }
    elsewhere.rename(started.directory)
    started.write(priced("a100", 3))
    assert await started.check() == {"a100": "3"}
    assert started.problems == {}

    started.directory.rename(elsewhere)
    await started.check()
    started.clock.advance(GRACE_SECONDS)
    assert await started.check() == {}
    assert list(started.problems) == ["objects"]


async def test_swapped_links_of_a_config_map_lose_nothing(tmp_path):
    objects = Objects(tmp_path)
    first, second, broken = (yaml.safe_dump_all([priced("a100", price), priced("t4", 1)]) for price in (2, 3, "?"))
    mounted = ConfigMap(tmp_path, classes=first)
    objects.start(missingFileGracePeriod="0s")
    for version in (second, broken, "{"):
        mounted.update(classes=version)
        assert await objects.check() == {"a100": "3", "t4": "1"}
    mounted.update(classes=first)
    assert await objects.check() == {"a100": "2", "t4": "1"}
    assert objects.problems == {}


def test_of_two_objects_with_one_name_that_of_the_later_path_counts(objects):
    first, second = objects.write(priced("a100", 1), file="z.yaml"), objects.write(priced("a100", 2), file="a.yaml")
    objects.start(first, second)
    assert objects.prices == {"a100": "2"}
    objects.start(second, first)
    assert objects.prices == {"a100": "1"}


def test_first_version_is_used_as_far_as_it_is_understood(objects):
    objects.write(bad("a100"), priced("t4", 1))
    objects.text("{", "broken.yaml")
    with capture_logs() as logs:
        objects.start()
    assert objects.prices == {"t4": "1"}
    assert objects.problems["classes.yaml AcceleratorClass a100"] == f"{BAD_FIELD} (kept 0)"
    assert objects.problems["broken.yaml"].startswith("line 1: neither YAML nor JSON: ")
    assert [log["log_level"] for log in logs] == ["warning"] * 2
    assert logs[1]["problem"].startswith(f"{objects.directory}/classes.yaml: AcceleratorClass a100 is skipped: ")


async def test_directory_that_comes_back_is_followed_on(started):
    changed = asyncio.Event()

    def notify(_concerns) -> None:
        changed.set()

    async def until(condition) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await changed.wait()
                changed.clear()

    following = asyncio.create_task(started.source.follow(notify))
    try:
        shutil.rmtree(started.directory)
        await until(lambda: started.problems)
        assert started.prices == {"a100": "2", "t4": "1"}
        started.directory.mkdir()
        started.write(priced("a100", 3))
        await until(lambda: started.prices == {"a100": "3"})
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_each_change_is_logged_once(started):
    started.write(bad("a100"))
    with capture_logs() as logs:
        await started.check()
        await started.check()
        started.write(bad("a100"), priced("t4", 7))
        await started.check()
    (warning,) = [log for log in logs if log["log_level"] == "warning"]
    assert warning["problem"] == (
        f"{started.directory}/classes.yaml: AcceleratorClass a100 stays as it was: {BAD_FIELD}"
    )
    started.write(priced("a100", 3))
    await started.check()
    started.write(bad("a100"))
    with capture_logs() as logs:
        await started.check()
    assert [log["log_level"] for log in logs] == ["warning", "info"]


async def test_rejected_versions_are_counted_by_file(started):
    file = str(started.directory / "classes.yaml")
    assert started.source.inputs.rejected == {file: 0}
    for text in ("{", "[", "[["):
        started.text(text)
        await started.check()
    assert started.source.inputs.rejected == {file: 3}
    started.write(bad("a100"), bad("t4"))
    await started.check()
    assert started.source.inputs.rejected == {file: 5}
    started.write(bad("a100"), bad("t4"), priced("h100", 4))  # the same two versions as before
    await started.check()
    assert started.source.inputs.rejected == {file: 5}


def test_problem_is_one_sentence():
    assert str(InputProblem("f.yaml", reason="why", kept=1)) == "f.yaml stays as it was, with 1 object: why"
    assert str(InputProblem("f.yaml", reason="why", kept=2)) == "f.yaml stays as it was, with 2 objects: why"
    assert str(InputProblem("f.yaml", "Node n", "why", 1)) == "f.yaml: Node n stays as it was: why"
    assert str(InputProblem("f.yaml", "Node n", "why")) == "f.yaml: Node n is skipped: why"


async def test_hundreds_of_objects_are_read_while_the_event_loop_goes_on(objects):
    def classes(price: int) -> list[dict]:
        return [priced(f"class-{number}", price, vendor="nvidia", family="hopper") for number in range(300)]

    objects.write(*classes(1))
    objects.start()
    objects.write(*classes(2))
    looking, turns = asyncio.create_task(objects.source.check()), 0
    while not looking.done():
        turns += 1
        await asyncio.sleep(0)
    assert set(objects.prices.values()) == {"2"}
    assert turns > 100  # a look that worked on the event loop would leave it a handful
