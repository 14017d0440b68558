# SPDX-License-Identifier: Apache-2.0
"""A publisher of KV events, as a model server has one: events of vLLM in maps or arrays, or any bytes."""

from collections.abc import Sequence
from typing import Any

import msgspec
import zmq


class Publisher:
    """A ZeroMQ PUB socket with the topic and the sequence numbers of an engine."""

    def __init__(self, address: str, model: str = "m", *, name: str = "engine") -> None:
        """Bind `address`, such as `tcp://127.0.0.1:5557`; a port of `*` is any free one."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.XPUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(address)
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.topic = f"kv@{name}@{model}".encode()
        self.sequence = 0

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    async def subscribed(self, until) -> None:
        """Wait for a subscriber: what is sent before is lost."""
        await until(lambda: self._socket.poll(0))
        self._socket.recv()

    def send(self, *events: Any, skip: int = 0) -> None:
        """Send a message, after `skip` sequence numbers that nobody gets."""
        self.sequence += skip
        self.send_parts([self.topic, self.sequence.to_bytes(8, "big"), msgspec.msgpack.encode([0.5, list(events), 0])])
        self.sequence += 1

    def send_parts(self, parts: Sequence[bytes]) -> None:
        self._socket.send_multipart(parts)

    def close(self) -> None:
        self._context.destroy(0)


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
