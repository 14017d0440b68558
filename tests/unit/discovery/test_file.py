# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from epp.framework import ConfigurationError, ManualClock
from epp.pool.discovery import FileDiscovery
from epp.pool.discovery.endpoints_file import FileDiscoveryParameters
from epp.routing.datastore import Datastore
from tests.support.config_files import replace
from tests.support.waiting import until


def content(**endpoints: str) -> str:
    lines = [f"- {{name: {name}, address: '{address}', port: 8000}}" for name, address in endpoints.items()]
    return "endpoints:\n" + "\n".join(lines) + "\n"


@pytest.fixture
def path(tmp_path) -> Path:
    path = tmp_path / "endpoints.yaml"
    path.write_text(content(a="10.0.0.1"))
    return path


@pytest.fixture
def discovery(path, names) -> FileDiscovery:
    return FileDiscovery(FileDiscoveryParameters(path=str(path), watch_file=True), lookup=names)


async def test_start_fills_the_pool_and_a_file_touched_without_a_change_does_not_again(discovery, path, pool):
    await discovery.start(pool)
    assert pool.hostports == {"a": "10.0.0.1:8000"}
    path.touch()
    await discovery.reread(pool)
    assert pool.replaced == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("endpoints: [{name: a}]", r"endpoints.yaml: endpoints\[0\] 'a' \(line 1\): address is missing"),
        (None, "No such file"),
    ],
)
async def test_bad_or_missing_file_is_an_error_at_the_start(discovery, path, pool, text, problem):
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError, match=problem):
        await discovery.start(pool)
    assert pool.replaced == 0


async def test_unresolvable_hosts_are_left_out_even_when_none_is_left(discovery, path, pool, names):
    path.write_text(content(a="host-a", b="host-b"))
    with capture_logs() as logs:
        await discovery.start(pool)
    assert pool.endpoints == []
    assert pool.replaced == 1
    assert [entry["event"] for entry in logs] == [
        "host name does not resolve",
        "host name does not resolve",
        "the pool is empty: none of the endpoints' host names resolves",
    ]
    names.table = {"host-a": ["10.0.0.1"], "host-b": ["::1"]}
    await discovery.resolver.refresh(pool)
    assert pool.hostports == {"a": "10.0.0.1:8000", "b": "[::1]:8000"}


async def test_replacement_is_followed(discovery, path, pool, following):
    await discovery.start(pool)
    async with following(discovery, pool):
        replace(path, content(a="10.0.0.1", b="10.0.0.2"))
        await until(lambda: pool.hostports == {"a": "10.0.0.1:8000", "b": "10.0.0.2:8000"}, "there are two")
        replace(path, content(b="10.0.0.3"))
        await until(lambda: pool.hostports == {"b": "10.0.0.3:8000"}, "one is gone and one has moved")


async def test_bad_replacement_changes_nothing_and_is_logged_once(discovery, path, pool):
    await discovery.start(pool)
    with capture_logs() as logs:
        for text in ("endpoints: [{name: a}]", "endpoints: [{name: a}]", "endpoints", None):
            if text is None:
                path.unlink()
            else:
                replace(path, text)
            await discovery.reread(pool)
            await discovery.reread(pool)
    assert (pool.hostports, pool.replaced) == ({"a": "10.0.0.1:8000"}, 1)
    reasons = [entry["reason"].partition("with 1 object: ")[2] for entry in logs]
    assert [reason[:25] for reason in reasons] == [
        "endpoints[0] 'a' (line 1)",
        "no list 'endpoints': for ",
        "cannot be read: No such f",
    ]


async def test_file_that_is_not_watched_stays_as_it_was_read(path, pool, names, following):
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
