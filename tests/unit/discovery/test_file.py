# SPDX-License-Identifier: Apache-2.0
import asyncio
import os
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from epp.framework import ConfigurationError, ManualClock
from epp.pool.discovery import FileDiscovery
from epp.pool.discovery.endpoints_file import FileDiscoveryParameters
from epp.routing.datastore import Datastore
from tests.support.waiting import until


def content(**endpoints: str) -> str:
    lines = [f"- {{name: {name}, address: '{address}', port: 8000}}" for name, address in endpoints.items()]
    return "endpoints:\n" + "\n".join(lines) + "\n"


def replace(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


@pytest.fixture
def path(tmp_path) -> Path:
    path = tmp_path / "endpoints.yaml"
    path.write_text(content(a="10.0.0.1"))
    return path


@pytest.fixture
def discovery(path, names) -> FileDiscovery:
    return FileDiscovery(FileDiscoveryParameters(path=str(path), watch_file=True), lookup=names)


@asynccontextmanager
async def following(discovery, pool):
    task = asyncio.create_task(discovery.follow(pool))
    try:
        yield
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_start_fills_the_pool(discovery, pool):
    await discovery.start(pool)
    assert pool.hostports == {"a": "10.0.0.1:8000"}


async def test_bad_file_is_an_error_at_the_start(discovery, path, pool):
    path.write_text("endpoints: [{name: a}]")
    with pytest.raises(ConfigurationError, match=r"endpoints.yaml: endpoints\[0\] 'a' \(line 1\): address is missing"):
        await discovery.start(pool)
    assert pool.replaced == 0


async def test_missing_file_is_an_error_at_the_start(discovery, path, pool):
    path.unlink()
    with pytest.raises(ConfigurationError, match="No such file"):
        await discovery.start(pool)


async def test_unresolvable_hosts_are_left_out_even_when_none_is_left(discovery, path, pool, names):
    path.write_text(content(a="host-a", b="host-b"))
    with capture_logs() as logs:
        await discovery.start(pool)
    assert pool.endpoints == []
    assert pool.replaced == 1
    assert [entry["event"] for entry in logs] == [
        "host name does not resolve",
        "host name does not resolve",
        "none of the endpoints' host names resolves, the pool is empty",
    ]
    names.table = {"host-a": ["10.0.0.1"], "host-b": ["::1"]}
    await discovery.resolver.refresh(pool)
    assert pool.hostports == {"a": "10.0.0.1:8000", "b": "[::1]:8000"}


async def test_replacement_is_followed(discovery, path, pool):
    await discovery.start(pool)
    async with following(discovery, pool):
        replace(path, content(a="10.0.0.1", b="10.0.0.2"))
        await until(lambda: pool.hostports == {"a": "10.0.0.1:8000", "b": "10.0.0.2:8000"}, "there are two")
        replace(path, content(b="10.0.0.3"))
        await until(lambda: pool.hostports == {"b": "10.0.0.3:8000"}, "one is gone and one has moved")


async def test_config_map_swap_is_followed(tmp_path, pool):
    """Kubernetes mounts `file -> ..data/file` and `..data -> ..<time>`, and renames a new `..data` over the old."""

    def publish(version: str, text: str) -> None:
        (tmp_path / version).mkdir()
        (tmp_path / version / "endpoints.yaml").write_text(text)
        (tmp_path / "..data_tmp").symlink_to(version)
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    publish("..2026_01", content(a="10.0.0.1"))
    path = tmp_path / "endpoints.yaml"
    path.symlink_to(os.path.join("..data", "endpoints.yaml"))  # noqa: PTH118 - '..data' is a name of its own
    discovery = FileDiscovery(FileDiscoveryParameters(path=str(path), watch_file=True))
    await discovery.start(pool)
    async with following(discovery, pool):
        for version, address in (("..2026_02", "10.0.0.2"), ("..2026_03", "10.0.0.3")):
            publish(version, content(a=address))
            wanted = {"a": f"{address}:8000"}
            await until(lambda wanted=wanted: pool.hostports == wanted, f"{version} is in the pool")


async def test_bad_replacement_changes_nothing_and_is_logged_once(discovery, path, pool):
    await discovery.start(pool)
    with capture_logs() as logs:
        for text in ("endpoints: [{name: a}]", "endpoints: [{name: a}]", "endpoints"):
            replace(path, text)
            await discovery.reread(pool)
            await discovery.reread(pool)
        path.unlink()
        await discovery.reread(pool)
        await discovery.reread(pool)
    assert pool.hostports == {"a": "10.0.0.1:8000"}
    assert pool.replaced == 1
    reasons = [entry["reason"].partition("with 1 object: ")[2] for entry in logs]
    assert [reason[:25] for reason in reasons] == [
        "endpoints[0] 'a' (line 1)",
        "no list 'endpoints': for ",
        "cannot be read: No such f",
    ]


async def test_good_file_after_a_bad_one_is_taken_over(discovery, path, pool):
    await discovery.start(pool)
    async with following(discovery, pool):
        with capture_logs() as logs:
            replace(path, "endpoints: [")
            await until(lambda: logs, "the bad file is logged")
        assert pool.replaced == 1
        replace(path, content(b="10.0.0.2"))
        await until(lambda: pool.hostports == {"b": "10.0.0.2:8000"}, "the good file is in the pool")


async def test_file_touched_without_a_change_is_not_taken_over_again(discovery, path, pool):
    await discovery.start(pool)
    path.touch()
    await discovery.reread(pool)
    assert pool.replaced == 1


async def test_file_that_is_not_watched_stays_as_it_was_read(path, pool, names):
    discovery = FileDiscovery(FileDiscoveryParameters(path=str(path)), lookup=names)
    watching = FileDiscovery(FileDiscoveryParameters(path=str(path), watch_file=True), lookup=names)
    other = type(pool)()
    await discovery.start(pool)
    await watching.start(other)
    async with following(discovery, pool), following(watching, other):
        replace(path, content(b="10.0.0.2"))
        await until(lambda: other.hostports == {"b": "10.0.0.2:8000"}, "the other one has seen the change")
    assert pool.hostports == {"a": "10.0.0.1:8000"}


async def test_endpoints_that_stay_keep_their_slots(discovery, path):
    store = Datastore(ManualClock())
    path.write_text(content(a="10.0.0.1", b="10.0.0.2", c="10.0.0.3"))
    await discovery.start(store)
    replace(path, content(d="10.0.0.4", c="10.0.0.3"))
    await discovery.reread(store)
    assert [e and e.name for e in store.snapshot().endpoints.values[:3]] == ["d", None, "c"]
