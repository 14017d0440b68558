# SPDX-License-Identifier: Apache-2.0
"""Objects stay right while the server does all that a server may do: end watches, forget, refuse, break off, hang."""

from structlog.testing import capture_logs

from epp.kube.collection import Delta
from epp.kube.watched import WatchState
from tests.support.kube.kube_server import line_of, no_widgets, shows, with_lines, with_status
from tests.support.waiting import until

GONE = with_status(404, "404 page not found")


async def test_list_of_several_pages_is_one_change(server, watched, start):
    for name in "abcde":
        await server.put(name, "red")
    heard: list[Delta[str]] = []
    watched.subscribe(heard.append)
    start()
    await watched.first_list()
    assert len(watched.objects) == 5
    assert [len(delta.changed) for delta in heard] == [5]
    assert [params.get("continue", "") for params in server.lists] == ["", "2", "4"]
    assert watched.state is WatchState.CURRENT


async def test_watch_that_the_server_ends_goes_on_where_it_ended(server, watched, start):
    await server.put("a", "red")
    start()
    await shows(watched, a="red")
    await until(lambda: server.watches, "the watch is open")
    await server.end_watches()
    await until(lambda: len(server.watches) >= 2, "another watch is open")
    await server.put("b", "green")
    await shows(watched, a="red", b="green")
    assert watched.lists == 1
    assert server.watches[0]["allowWatchBookmarks"] == "true"
    assert 240 <= int(server.watches[0]["timeoutSeconds"]) <= 480


async def test_bookmark_moves_the_place_from_which_a_watch_goes_on(server, watched, start):
    server.faults += [no_widgets, with_lines(line_of("BOOKMARK", {"metadata": {"resourceVersion": "777"}}))]
    start()
    await until(lambda: len(server.watches) >= 2, "another watch is open")
    assert server.watches[1]["resourceVersion"] == "777"


async def test_forgotten_history_means_a_new_list_without_what_is_gone(server, watched, start):
    await server.put("a", "red")
    await server.put("b", "red")
    start()
    await shows(watched, a="red", b="red")
    server.faults += [with_status(503)] * 3
    await server.end_watches()
    await server.delete("a")
    await server.put("c", "red")
    await server.compact()
    await shows(watched, b="red", c="red")
    assert watched.lists == 2


async def test_staleness_is_the_time_since_the_objects_could_be_read(server, watched, start, clock):
    start()
    await until(lambda: server.watches, "the watch is open")
    assert watched.stale_seconds == 0
    server.faults += [with_status(503, '{"message": "the server is starting"}')] * 1000
    await server.end_watches()
    await until(lambda: watched.state is WatchState.STALE, "the objects are stale")
    clock.advance(7)
    assert watched.stale_seconds == 7
    assert watched.reason == "the server is starting"
    server.faults.clear()
    await until(lambda: watched.state is WatchState.CURRENT, "the objects are up to date")
    assert (watched.stale_seconds, watched.reason) == (0, "")


async def test_kind_that_is_missing_for_a_moment_keeps_its_objects(server, watched, start, clock):
    await server.put("a", "red")
    start()
    await shows(watched, a="red")
    server.faults += [GONE] * 1000
    await server.end_watches()
    await until(lambda: watched.state is WatchState.STALE, "the kind is missing")
    clock.advance(29)
    await until(lambda: len(server.faults) < 990, "the kind is still missing")
    assert watched.objects == {"ns/a": "red"}
    clock.advance(2)
    await shows(watched)
    assert watched.state is WatchState.ABSENT
    assert watched.stale_seconds == 0
    server.faults.clear()
    await shows(watched, a="red")


async def test_kind_that_was_never_there_settles_at_once_and_is_found_when_it_is_installed(server, watched, start):
    server.version = ""
    start()
    await watched.settled()
    assert watched.state is WatchState.ABSENT
    server.version = "v1"
    await server.put("a", "red")
    await shows(watched, a="red")
    await until(lambda: watched.state is WatchState.CURRENT, "the objects are up to date")


async def test_forbidden_kind_settles_and_says_what_the_server_says(server, watched, start):
    server.faults += [with_status(403, '{"reason": "Forbidden", "message": "me cannot list widgets"}')] * 1000
    with capture_logs() as logs:
        start()
        await watched.settled()
        await until(lambda: len(server.faults) < 995, "it is tried again")
    assert (watched.state, watched.reason) == (WatchState.FORBIDDEN, "me cannot list widgets")
    assert [each["reason"] for each in logs] == ["me cannot list widgets"]
