# SPDX-License-Identifier: Apache-2.0
"""Pickers that share their state through a genuine server."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from redis import Redis

from epp.framework import SystemClock
from epp.sharing.settings import SharingSettings
from epp.sharing.stream import SharedStream
from tests.shared_state.streams import streaming
from tests.support.certificates import new_pair, write
from tests.support.waiting import until
from tests.unit.sharing.pickers import ENDPOINTS, Picker

A, B, *_ = ENDPOINTS
KEY, SALT = "epp:{pool}:changes", "epp:{pool}:salt"


@asynccontextmanager
async def sharing(url: str, **settings):
    """Run a picker that shares its state."""
    clock = SystemClock()
    picker = Picker(clock)
    async with streaming(picker.exchange, clock, url, **settings) as picker.stream:
        picker.store.ledger.on_open = picker.stream.wakes.set
        yield picker


async def knows(picker: Picker, in_flight: dict) -> None:
    await until(lambda: picker.in_flight == in_flight, f"{in_flight} are in flight, not {picker.in_flight}")


async def test_pickers_know_what_the_others_do(server):
    shared = await server()
    async with sharing(shared.url) as one, sharing(shared.url) as other:
        assert await one.stream.caught_up(10)
        assert await other.stream.caught_up(10)
        one.send(A, 10)
        one.place(A, [1, 2, 3])
        await knows(other, {"e0": (1, 10)})
        assert other.matched(A, [1, 2, 3]) == 3
        other.send(B, 5)
        await knows(one, {"e0": (1, 10), "e1": (1, 5)})
        one.tickets[0].close()
        await knows(other, {"e1": (1, 5)})
        assert (one.exchange.peers, other.exchange.peers) == (1, 1)
        assert one.stream.health == {"server": f"{shared.url}/0", "connected": True, "other_pickers": 1}


async def test_picker_that_starts_knows_placements_and_what_is_in_flight(server):
    shared = await server()
    async with sharing(shared.url) as one:
        one.send(A, 10)
        one.place(A, [1, 2, 3])
        await until(lambda: one.exchange.counts["published"] > 1, "it was told")
        async with sharing(shared.url) as other:
            assert await other.stream.caught_up(10)
            assert other.matched(A, [1, 2, 3]) == 3
            await knows(other, {"e0": (1, 10)})
    async with sharing(shared.url) as third:  # the first has ended
        assert await third.stream.caught_up(10)
        assert third.matched(A, [1, 2, 3]) == 3
        assert third.in_flight == {}


async def test_placements_are_read_once_the_endpoints_are_known(server):
    shared = await server()
    async with sharing(shared.url) as one:
        one.place(A, [1, 2, 3])
        await until(lambda: one.exchange.counts["published"], "it was told")
        late = Picker(SystemClock(), order=())
        stream = SharedStream(late.exchange, SharingSettings(address=shared.url), "pool", SystemClock())
        running = asyncio.create_task(stream.run())
        assert not await stream.caught_up(0.2)
        late.store.replace(ENDPOINTS)
        stream.begins.set()
        assert await stream.caught_up(10)
        assert late.matched(A, [1, 2, 3]) == 3
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_picker_that_ends_is_forgotten_at_once(server):
    shared = await server()
    async with sharing(shared.url) as other:
        async with sharing(shared.url) as one:
            one.send(A, 10)
            await knows(other, {"e0": (1, 10)})
        await knows(other, {})
        assert other.exchange.peers == 0


async def test_pickers_go_on_alone_without_the_server_and_catch_up(server):
    shared = await server()
    async with sharing(shared.url) as one, sharing(shared.url) as other:
        one.send(A, 10)
        await knows(other, {"e0": (1, 10)})
        shared.kill()
        await until(lambda: not other.stream.is_connected, "it is known")
        assert "problem" in other.stream.health
        one.place(B, [4, 5])
        await until(lambda: other.in_flight == {}, "what a silent picker told is forgotten")
        assert one.in_flight == {"e0": (1, 10)}
        shared.start()
        await knows(other, {"e0": (1, 10)})
        assert other.matched(B, [4, 5]) == 2
        await until(lambda: one.stream.problem == "", "nothing is wrong any more")


async def test_server_that_refuses_writes_is_a_problem_and_is_read(server):
    shared = await server()
    async with sharing(shared.url) as one, sharing(shared.url) as other:
        await until(lambda: one.exchange.peers and other.exchange.peers, "both are there")
        shared.client.config_set("min-replicas-to-write", 1)
        await until(lambda: "NOREPLICAS" in one.stream.problem, "it says so")
        assert not one.stream.is_connected
        one.send(A, 10)
        shared.client.config_set("min-replicas-to-write", 0)
        await knows(other, {"e0": (1, 10)})


async def test_full_server_is_a_problem_until_it_has_room(server):
    shared = await server("--maxmemory-policy", "noeviction")
    async with sharing(shared.url) as one, sharing(shared.url) as other:
        await until(lambda: one.exchange.peers and other.exchange.peers, "both are there")
        shared.client.config_set("maxmemory", "1")
        await until(lambda: "maxmemory" in one.stream.problem, "it says so")
        one.send(A, 10)
        shared.client.config_set("maxmemory", "0")
        await knows(other, {"e0": (1, 10)})


async def test_garbage_in_the_stream_is_counted_and_passed_over(server):
    shared = await server()
    async with sharing(shared.url) as one, sharing(shared.url) as other:
        await until(lambda: one.exchange.peers and other.exchange.peers, "both are there")
        shared.client.xadd(KEY, {"b": b"\xff" * 1000})
        shared.client.xadd(KEY, {"other": "field"})
        one.send(A, 10)
        await knows(other, {"e0": (1, 10)})
        assert other.exchange.counts["refused"] == 2
    shared.client.delete(KEY)
    shared.client.set(KEY, "no stream")
    async with sharing(shared.url) as one:
        await until(lambda: "WRONGTYPE" in one.stream.problem, "it says so")
    shared.client.set(SALT, "no salt")
    async with sharing(shared.url) as one:
        await until(lambda: "is not the salt of a pool: delete it" in one.stream.problem, "it says so")


async def test_emptied_server_gets_the_same_salt_again(server):
    shared = await server()
    async with sharing(shared.url) as one:
        await one.stream.caught_up(10)
        shared.client.flushall()
        await until(lambda: shared.client.get(SALT) == f"{one.exchange.salt:016x}", "it is there again")


async def test_slow_server_delays_news_and_nothing_else(server):
    """A proxy passes everything on after 0.3 s."""
    shared = await server()

    async def relay(reader, writer):
        there, back = await asyncio.open_connection("127.0.0.1", shared.port)

        async def pump(source, sink):
            try:
                while data := await source.read(65536):
                    await asyncio.sleep(0.3)
                    sink.write(data)
            finally:
                sink.close()

        await asyncio.gather(pump(reader, back), pump(there, writer))

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as slow:
        url = f"redis://127.0.0.1:{slow.sockets[0].getsockname()[1]}"
        async with sharing(url) as one, sharing(shared.url) as other:
            one.send(A, 10)
            await knows(other, {"e0": (1, 10)})
            await until(lambda: one.stream.problem.startswith("the server answered after"), "it says so")
            other.send(B, 1)
            await knows(one, {"e0": (1, 10), "e1": (1, 1)})


async def test_history_is_bounded_and_a_gap_is_counted(server, monkeypatch):
    monkeypatch.setattr("epp.sharing.stream._LEAST_ENTRIES", 10)
    monkeypatch.setattr("epp.sharing.stream._MOST_ENTRIES", 10)
    shared = await server("--stream-node-max-entries", "10")
    async with sharing(shared.url) as one:
        for _ in range(40):
            one.send(A, 1)
            before = one.exchange.counts["published"]
            await until(lambda before=before: one.exchange.counts["published"] > before, "it was told")
        assert shared.client.xlen(KEY) <= 20
        shared.kill()
        await until(lambda: not one.stream.is_connected, "it is known")
        shared.start()
        await until(lambda: one.stream.is_connected and one.stream.trimmed == 1, "it is known that the history is gone")


async def test_picker_reads_on_after_a_successor_without_the_last_entries(server):
    """Their ids are higher than those of its own entries, as if its clock were late."""
    shared = await server()
    async with sharing(shared.url) as one, sharing(shared.url) as other:
        await until(lambda: one.exchange.peers and other.exchange.peers, "both are there")
        shared.client.xadd(KEY, {"b": b"not of a picker"}, id="99999999999999-0")
        await until(lambda: other.exchange.counts["refused"], "it was read")
        shared.kill()
        await until(lambda: not one.stream.is_connected and not other.stream.is_connected, "it is known")
        shared.start()
        one.send(A, 10)
        await knows(other, {"e0": (1, 10)})
        assert other.stream.trimmed == 1


async def test_user_password_and_tls(server, tmp_path):
    write(tmp_path, *new_pair("localhost"))
    acl = "+@read +@write +ping +time +multi +exec ~epp:* &* on"
    shared = await server(
        *("--tls-cert-file", str(tmp_path / "tls.crt"), "--tls-key-file", str(tmp_path / "tls.key")),
        *("--tls-auth-clients", "no", "--user", "picker", *acl.split(), ">s3cret"),
        is_open=False,
        is_tls=True,
    )
    url, ca = f"rediss://picker@localhost:{shared.port}", str(tmp_path / "tls.crt")
    admin = Redis(host="localhost", port=shared.port, ssl=True, ssl_ca_certs=ca)
    await until(lambda: _is_up(admin), "the server answers")
    (tmp_path / "password").write_text("wrong\n")
    settings = {"ca_file": ca, "password_file": tmp_path / "password"}
    async with sharing(url, **settings) as one:
        await until(lambda: "invalid username-password pair" in one.stream.problem, "it says so")
        assert "wrong" not in str(one.stream.health)
        (tmp_path / "password").write_text("s3cret\n")
        await until(lambda: one.stream.is_connected, "the new password is used")
    async with sharing(f"rediss://localhost:{shared.port}") as one:
        await until(
            lambda: "certificate verify failed" in one.stream.problem.lower(), "an unknown authority is refused"
        )


def _is_up(client: Redis) -> bool:
    try:
        return bool(client.ping())
    except Exception:  # noqa: BLE001  it is starting
        return False


def test_password_in_the_address_is_not_shown():
    settings = SharingSettings(address="redis://me:s3cret@store:7000/2")
    stream = SharedStream(Picker(SystemClock()).exchange, settings, "pool", SystemClock())
    assert stream.health["server"] == "redis://store:7000/2"
    with pytest.raises(ValueError, match="--shared-state is not an address") as found:
        SharingSettings(address="http://me:s3cret@store")
    assert "s3cret" not in str(found.value)
