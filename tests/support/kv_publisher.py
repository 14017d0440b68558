# SPDX-License-Identifier: Apache-2.0
"""A publisher of KV events, as a model server has one: events of vLLM in maps or arrays, or any bytes."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq

from tests.support.waiting import until


class Publisher:
    """A ZeroMQ PUB socket with the topic and the sequence numbers of an engine."""

    def __init__(
        self,
        address: str,
        model: str = "m",
        *,
        name: str = "engine",
        connects: bool = False,
        rank: int = 0,
        curve: bytes | None = None,
    ) -> None:
        """Bind `address`, such as `tcp://127.0.0.1:5557`, or connect to it; a port of `*` is any free one.

        With `curve`, a secret key, connections are encrypted.
        """
        self._curve = curve
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.XPUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._encrypt(self._socket)
        self._socket.connect(address) if connects else self._socket.bind(address)
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.topic = f"kv@{name}@{model}".encode()
        self.rank = rank
        self.sequence = 0
        self.history: list[tuple[bytes, bytes, bytes]] = []
        """Messages with events, for replays; a test may remove some."""
        self.asked: list[int] = []
        """Numbers from which replays were asked for."""
        self.silent_replays = 0
        """Requests for a replay that are left without an answer."""
        self.replay_address = ""
        self._server: threading.Thread | None = None

    def repeat(self, address: str = "tcp://127.0.0.1:*") -> "Publisher":
        """Answer requests for replays, as vLLM does, on another socket."""
        router = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.LINGER, 0)
        self._encrypt(router)
        router.bind(address)
        self.replay_address = router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._server = threading.Thread(target=self._serve, args=(router,), daemon=True)
        self._server.start()
        return self

    def _encrypt(self, socket: "zmq.Socket[bytes]") -> None:
        if self._curve is not None:
            socket.curve_server, socket.curve_secretkey = True, self._curve

    def _serve(self, router: "zmq.Socket[bytes]") -> None:
        try:
            while True:
                client, empty, start = router.recv_multipart()
                self.asked.append(int.from_bytes(start, "big"))
                if self.silent_replays:
                    self.silent_replays -= 1
                    continue
                for topic, number, payload in tuple(self.history):
                    if number >= start:
                        router.send_multipart([client, empty, topic, number, payload])
                router.send_multipart([client, empty, b"", b"\xff" * 8, b""])
        except zmq.ZMQError:
            router.close(0)

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    async def subscribed(self, what: str = "the picker has subscribed") -> None:
        """Wait for a subscriber: what is sent before is lost."""
        await until(lambda: self._socket.poll(0), what)
        self._socket.recv()

    def send(self, *events: Any, skip: int = 0) -> None:
        """Send a message, after `skip` sequence numbers that nobody gets."""
        self.sequence += skip
        self.lose(*events)
        self.send_parts(self.history[-1])

    def lose(self, *events: Any) -> None:
        """Publish a message that is lost on its way."""
        number = self.sequence.to_bytes(8, "big")
        self.history.append((self.topic, number, msgspec.msgpack.encode([time.time(), list(events), self.rank])))
        self.sequence += 1

    def send_parts(self, parts: Sequence[bytes]) -> None:
        self._socket.send_multipart(parts)

    def close(self) -> None:
        if not self._socket.closed:
            self._socket.close(0)
            self._context.term()  # the thread of replays ends, as its socket raises


def stored(hashes: Sequence[Any], tokens: Sequence[int], *, size: int = 16, parent: Any = None, **more: Any) -> dict:
    """Return a BlockStored event in the map form."""
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": list(tokens),
        "block_size": size,
        **more,
    }


def removed(hashes: Sequence[Any], **more: Any) -> dict:
    """Return a BlockRemoved event in the map form."""
    return {"type": "BlockRemoved", "block_hashes": list(hashes), **more}


CLEARED = {"type": "AllBlocksCleared"}
