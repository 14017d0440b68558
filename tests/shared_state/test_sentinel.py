# SPDX-License-Identifier: Apache-2.0
"""A genuine primary with a replica and three Sentinels, of which the primary dies."""

from collections.abc import AsyncIterator
from contextlib import ExitStack

import pytest

from tests.shared_state.test_stream import ENDPOINTS, knows, sharing
from tests.support.ports import reserved_ports
from tests.support.redis_server import Server
from tests.support.waiting import until
from tests.unit.sharing.pickers import Picker

A, B, *_ = ENDPOINTS
_FAILOVER_SECONDS = 80.0
"""A Sentinel that the machine has kept waiting for 2 seconds does nothing for the next 30."""
PASSWORDS = {"user": "s3cret", "sentinel": "an0ther"}


class Watched:
    """A primary, its replica, and three Sentinels."""

    def __init__(self, primary: Server, replica: Server, sentinels: list[Server]) -> None:
        self.primary = primary
        self.replica = replica
        self.sentinels = sentinels
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in sentinels)
        self.url = f"redis+sentinel://:{PASSWORDS['user']}@{hosts}/state"

    def names(self) -> int:
        """Return the port that the last Sentinel says."""
        return int(self.sentinels[-1].client.execute_command("SENTINEL", "get-master-addr-by-name", "state")[1])


@pytest.fixture
async def watched(server, tmp_path, monkeypatch) -> AsyncIterator[Watched]:
    monkeypatch.setenv("EPP_REDIS_SENTINEL_PASSWORD", PASSWORDS["sentinel"])
    needs = ("--requirepass", PASSWORDS["user"], "--masterauth", PASSWORDS["user"])
    primary = await server(*needs, is_open=False)
    primary.client.connection_pool.connection_kwargs["password"] = PASSWORDS["user"]
    with ExitStack() as stack:
        replica_port, *ports = stack.enter_context(reserved_ports(4))

        async def start(name: str, port: int, *options: str, password: str, first: tuple[str, ...] = ()) -> Server:
            folder = tmp_path / name
            folder.mkdir(exist_ok=True)
            found = Server(primary.program, str(folder), port, *options, first=first).start()
            stack.callback(found.kill)
            found.client.connection_pool.connection_kwargs["password"] = password
            await until(found.is_up, f"{name} answers")
            return found

        follows = ("--replicaof", f"127.0.0.1 {primary.port}", "--repl-diskless-sync-delay", "0")
        replica = await start("replica", replica_port, *needs, *follows, password=PASSWORDS["user"])
        sentinels = []
        for number, port in enumerate(ports):
            file = tmp_path / f"sentinel-{number}.conf"
            file.write_text(
                f"requirepass {PASSWORDS['sentinel']}\n"
                f"sentinel sentinel-pass {PASSWORDS['sentinel']}\n"
                f"sentinel monitor state 127.0.0.1 {primary.port} 2\n"
                f"sentinel auth-pass state {PASSWORDS['user']}\n"
                "sentinel down-after-milliseconds state 500\n"
                "sentinel failover-timeout state 1000\n"
            )
            first = (str(file), "--sentinel")
            sentinels.append(await start(f"sentinel-{number}", port, password=PASSWORDS["sentinel"], first=first))
        await until(lambda: replica.client.info()["master_link_status"] == "up", "the replica has a copy")
        for each in sentinels:

            def knows_all(each: Server = each) -> bool:
                state = each.client.sentinel_master("state")
                return state["num-slaves"] == 1 and state["num-other-sentinels"] == 2

            await until(knows_all, "a Sentinel knows the replica and the others")
        yield Watched(primary, replica, sentinels)


def are_connected(*pickers: Picker) -> bool:
    return all(each.stream.is_connected for each in pickers)


async def test_pickers_follow_to_the_replica_that_takes_over(watched):
    async with sharing(watched.url) as one, sharing(watched.url) as other:
        one.place(A, [1, 2, 3])
        one.send(A, 10)
        await knows(other, {"e0": (1, 10)})
        assert other.stream.health["server"] == f"{watched.url.replace(':s3cret@', '')}/0"
        assert other.matched(A, [1, 2, 3]) == 3
        told = watched.primary.client.info()["master_repl_offset"]
        await until(lambda: watched.replica.client.info()["slave_repl_offset"] >= told, "the replica has it too")
        watched.sentinels[0].kill()  # the first that is asked
        watched.primary.kill()
        await until(lambda: not other.stream.is_connected, "it is known")
        one.send(B, 5)
        await until(lambda: are_connected(one, other), "both are connected again", seconds=_FAILOVER_SECONDS)
        assert watched.names() == watched.replica.port
        await knows(other, {"e0": (1, 10), "e1": (1, 5)})
        other.send(B, 1)
        await knows(one, {"e0": (1, 10), "e1": (2, 6)})
        async with sharing(watched.url) as third:
            assert await third.stream.caught_up(10)
            assert third.matched(A, [1, 2, 3]) == 3
