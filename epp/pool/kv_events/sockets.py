# SPDX-License-Identifier: Apache-2.0
"""Sockets to engines: their encryption by CURVE, their limits, and the replays that engines send over them."""

import re
import time
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

import zmq
from zmq.utils import z85

from epp.framework import Name, Parameters
from epp.framework.files import read_regular
from epp.pool.kv_events.order import SEQUENCE_BYTES, EventOrder, Received, message_of

_MOST_BYTES = 16 * 1024
_KEY = re.compile(rb"""^\s*(public|secret)-key\s*=\s*["']?([!-~]{40})["']?\s*$""", re.MULTILINE)


class CurveParameters(Parameters, frozen=True):
    """Keys in ZeroMQ certificate files of `zmq.auth.create_certificates`; they are read with the configuration."""

    server_key_file: Name
    """Path of the public key, which all engines share."""
    key_file: str = ""
    """Path of the secret key of the picker; if empty, a key is created at each start, for engines that accept any."""

    def keys(self) -> "Curve":
        """Read the files; raises ValueError."""
        server = _read("serverKeyFile", self.server_key_file, b"public")
        secret = _read("keyFile", self.key_file, b"secret") if self.key_file else zmq.curve_keypair()[1]
        return Curve(server, zmq.curve_public(secret), secret)


class Curve(NamedTuple):
    """Keys of a connection, in Z85."""

    server: bytes
    public: bytes
    secret: bytes


def _read(parameter: str, path: str, kind: bytes) -> bytes:
    where = f"kvEventsConfig.curve.{parameter}"
    try:
        found: dict[bytes, bytes] = dict(_KEY.findall(read_regular(Path(path), _MOST_BYTES).data))
    except OSError as error:
        raise ValueError(f"{where}: {path} cannot be read: {error.strerror}") from None
    try:
        z85.decode(found[kind])
    except (KeyError, ValueError):
        text = f"{where}: {path} has no line {kind.decode()}-key with 40 characters of Z85"
        raise ValueError(f"{text}; write the file with zmq.auth.create_certificates") from None
    return found[kind]


MOST_MESSAGE_BYTES = 1024 * 1024
"""Size of a prompt of 180,000 tokens or more, stored in one step of the engine. ZeroMQ ends the connection of an engine
that sends a longer message. Decoding blocks the interpreter for 10 ms of CPU time, or 20 ms with unusual extra keys."""
_QUEUED_MESSAGES = 32
"""Messages of one engine that wait here; further messages wait in the engine, which drops some if its queue is full."""
MESSAGES_AT_A_TIME = 32
_MOST_BYTES_AT_A_TIME = 1024 * 1024
_RECONNECT_MILLISECONDS, _LONGEST_RECONNECT_MILLISECONDS = 100, 5_000
_END = b"\xff" * SEQUENCE_BYTES
"""Sequence number of the message that ends a replay."""
_SILENCE_SECONDS = 2.0
"""Time without a message after which an attempt of a replay ends."""
Socket: TypeAlias = "zmq.Socket[bytes]"
Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"


def limited(context: Context, kind: int, curve: Curve | None = None) -> Socket:
    """Return a socket with bounded memory, which detects vanished peers."""
    socket: Socket = context.socket(kind)
    if curve is not None:
        socket.curve_serverkey, socket.curve_publickey, socket.curve_secretkey = curve
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.IPV6, 1),
        (zmq.RCVHWM, _QUEUED_MESSAGES),
        (zmq.MAXMSGSIZE, MOST_MESSAGE_BYTES),
        (zmq.TCP_KEEPALIVE, 1),
        (zmq.TCP_KEEPALIVE_IDLE, 30),
        (zmq.TCP_KEEPALIVE_INTVL, 10),
        (zmq.TCP_KEEPALIVE_CNT, 3),
        (zmq.RECONNECT_IVL, _RECONNECT_MILLISECONDS),
        (zmq.RECONNECT_IVL_MAX, _LONGEST_RECONNECT_MILLISECONDS),
    ):
        socket.setsockopt(option, value)
    return socket


def frames_of(socket: Socket) -> Iterator[list[zmq.Frame]]:
    """Yield messages that have arrived, up to the limits."""
    size = 0
    for _ in range(MESSAGES_AT_A_TIME):
        try:
            frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return
        yield frames
        size += sum(map(len, frames))
        if size >= _MOST_BYTES_AT_A_TIME:
            return


def parts_of(socket: Socket) -> Iterator[list[bytes]]:
    """Yield the parts of messages that have arrived, up to the limits."""
    for frames in frames_of(socket):
        yield [frame.bytes for frame in frames]


def discard(socket: Socket) -> None:
    """Drop the messages of an ended connection, so that they are not mixed with those of the next connection."""
    for _ in range(2 * _QUEUED_MESSAGES):
        if not any(True for _ in parts_of(socket)):
            return


class Replays:
    """Requests replays of the messages that are missing in the `order` of an engine."""

    def __init__(self, context: Context, address: str, order: EventOrder, curve: Curve | None = None) -> None:
        """Prepare to request messages at `address`, which is empty if the engine does not repeat messages."""
        self._curve = curve
        self.order = order
        self.socket: Socket | None = None
        """Open during an attempt."""
        self._context, self._address = context, address
        self._received_at = 0.0

    def resume(self, ready: Container[object], may_begin: Callable[[], bool]) -> list[Received]:
        """Begin, continue or end an attempt of a replay; return the changes."""
        order, now = self.order, time.monotonic()
        assert order.replay is not None  # noqa: S101  checked by the caller
        if self.socket is None:
            if now >= order.replay.due and may_begin():
                self._request(now)
            return []
        found: list[Received] = []
        if self.socket in ready:
            self._received_at = now
            for parts in parts_of(self.socket):
                if parts[-1] == b"" or parts[-2:-1] == [_END]:
                    self.end_attempt()
                    return found + order.reply_ended(now)
                topic = parts[-3:-2] or [b""]  # older versions of vLLM repeat a message without it
                if (message := message_of([*topic, *parts[-2:]])) is not None:
                    found += order.replayed(message)
                else:
                    order.own.errors["replay-incomplete"] += 1
                    order.replay.is_broken = True
        if now - self._received_at >= _SILENCE_SECONDS or now >= order.replay.until:
            self.end_attempt()
            found += order.attempt_ended(now)
        return found

    def _request(self, now: float) -> None:
        self._received_at = now
        self.socket = limited(self._context, zmq.DEALER, self._curve)
        start = self.order.attempt(now)
        try:
            self.socket.connect(self._address)
            self.socket.send_multipart([b"", start.to_bytes(SEQUENCE_BYTES, "big")], zmq.NOBLOCK)
        except zmq.ZMQError:
            self.order.own.errors["replay-connect"] += 1

    def end_attempt(self) -> None:
        if self.socket is not None:
            self.socket.close(0)
            self.socket = None
