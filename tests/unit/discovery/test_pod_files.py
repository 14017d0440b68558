# SPDX-License-Identifier: Apache-2.0
"""A directory of dumps is a pool, and stays one while its files change, shrink or break."""

import json

import pytest
import yaml
from structlog.testing import capture_logs

from epp.framework import ConfigurationError, ManualClock
from epp.framework.files import UNCHANGED_SECONDS
from epp.framework.registry import Registry
from epp.pool.discovery.pod_files import PodFileDiscovery, PodFileParameters
from tests.support.config_files import replace
from tests.support.kube import manifests
from tests.support.waiting import until


def pod(name, address, **labels):
    gpu = {"limits": {"nvidia.com/gpu": "1"}}
    return {
        **manifests.pod(name, namespace="llm", labels=labels, resources=gpu),
        "status": manifests.pod_status(address),
    }


def inference_pool(name, **labels):
    return manifests.pool(name, namespace="llm", selector=labels, ports=(9000,))


def dump(*objects):
    """Return what `kubectl get -o yaml` writes."""
    return yaml.safe_dump({"apiVersion": "v1", "items": list(objects), "kind": "List", "metadata": {}})


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def build(tmp_path, clock):
    def built(**parameters):
        return PodFileDiscovery(PodFileParameters(paths=(str(tmp_path),), **parameters), clock=clock)

    return built


async def test_directory_of_dumps_is_a_pool(tmp_path, build, pool):
    (tmp_path / "one.yaml").write_text(dump(pod("a", "10.0.0.1"), pod("b", "10.0.0.2")))
    (tmp_path / "two.json").write_text(json.dumps(pod("c", "10.0.0.3")))
    await build().start(pool)
    assert pool.hostports == {"a-rank-0": "10.0.0.1:8000", "b-rank-0": "10.0.0.2:8000", "c-rank-0": "10.0.0.3:8000"}


async def test_broken_pod_changes_nothing_and_a_file_that_is_gone_counts_for_five_minutes(tmp_path, build, pool, clock):
    file = tmp_path / "dump.yaml"
    file.write_text(dump(pod("a", "10.0.0.1"), pod("b", "10.0.0.2")))
    discovery = build()
    await discovery.start(pool)
    broken = pod("a", "10.0.0.1")
    broken["status"]["conditions"] = "none"
    for change in (lambda: replace(file, dump(broken, pod("b", "10.0.0.2"))), file.unlink):
        change()
        await discovery.check(pool)
        await discovery.check(pool)  # nothing has changed since
        assert pool.hostports.keys() == {"a-rank-0", "b-rank-0"}
        assert discovery.inputs.problems
    clock.advance(301)
    await discovery.check(pool)
    assert pool.hostports == {}


async def test_pool_that_is_gone_from_the_files_changes_nothing(tmp_path, build, pool, clock):
    pods = dump(pod("a", "10.0.0.1", app="x"), pod("b", "10.0.0.2", app="y"))
    (tmp_path / "pods.yaml").write_text(pods)
    (tmp_path / "pool.yaml").write_text(yaml.safe_dump(inference_pool("chat", app="x")))
    discovery = build()
    await discovery.start(pool)
    assert pool.hostports == {"a-rank-0": "10.0.0.1:9000"}
    replace(tmp_path / "pool.yaml", dump())
    with capture_logs() as logs:
        await discovery.check(pool)
        clock.advance(UNCHANGED_SECONDS)
        await discovery.check(pool)
    assert pool.hostports == {"a-rank-0": "10.0.0.1:9000"}
    assert any("pool unchanged: the files have no InferencePool 'llm/chat'" in line["problem"] for line in logs)
    (tmp_path / "pool.yaml").write_text(dump(inference_pool("code", app="y"), inference_pool("chat", app="x")))
    await discovery.check(pool)
    assert pool.hostports == {"a-rank-0": "10.0.0.1:9000"}
    replace(tmp_path / "pool.yaml", dump(inference_pool("chat", app="y")))
    await discovery.check(pool)
    assert pool.hostports == {"b-rank-0": "10.0.0.2:9000"}


async def test_files_without_pods_are_an_error_at_the_start(tmp_path, build, pool):
    (tmp_path / "objects.yaml").write_text(dump())
    with pytest.raises(ConfigurationError, match="no endpoints to pick from: there is neither a Pod nor an Infer"):
        await build().start(pool)


async def test_files_are_followed(tmp_path, build, pool, following):
    file = tmp_path / "dump.yaml"
    file.write_text(dump(pod("a", "10.0.0.1")))
    discovery = build()
    await discovery.start(pool)
    async with following(discovery, pool):
        replace(file, dump(pod("a", "10.0.0.9")))
        await until(lambda: pool.hostports == {"a-rank-0": "10.0.0.9:8000"}, "the new address")


async def test_empty_pool_is_a_warning_that_says_which_pods_were_looked_for(tmp_path, build, pool):
    (tmp_path / "dump.yaml").write_text(dump(manifests.pod("router")))
    with capture_logs() as logs:
        await build().start(pool)
    counts = {"pods": "pods that request accelerators", "endpoints": 0}
    assert logs == [{"event": "pods in files selected", "log_level": "warning", **counts}]


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"paths": []}, "paths is empty"),
        ({"paths": ["/nowhere"]}, "paths: there is neither file nor directory '/nowhere'"),
        ({"paths": ["/"], "pool": "a", "targetPorts": [1]}, "pool has its own selector and targetPorts"),
        ({"paths": ["/"], "targetPorts": [70000]}, "targetPorts"),
        ({"paths": ["/"], "missingFileGracePeriod": "soon"}, "missingFileGracePeriod: "),
    ],
)
def test_parameters_that_cannot_be_meant_are_refused(parameters, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        Registry().build("pod-file-discovery", parameters, name="pods", clock=ManualClock())
