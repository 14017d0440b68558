# SPDX-License-Identifier: Apache-2.0
"""Encryption of KV events by CURVE, ZeroMQ's mechanism with long-term keys of both sides."""

import re
from pathlib import Path
from typing import NamedTuple

import zmq
from zmq.utils import z85

from epp.framework import Name, Parameters
from epp.framework.files import read_regular

_MOST_BYTES = 16 * 1024
_KEY = re.compile(rb"""^\s*(public|secret)-key\s*=\s*["']?([!-~]{40})["']?\s*$""", re.MULTILINE)


class CurveParameters(Parameters, frozen=True):
    """Keys in ZeroMQ certificates, files as `zmq.auth.create_certificates` writes them; read with the configuration."""

    server_key_file: Name
    """Path of the public key of the engines, which all have the same one."""
    key_file: str = ""
    """Path of the secret key of the picker; empty for a key that is made at each start, where engines accept any."""

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

    def encrypt(self, socket: "zmq.Socket[bytes]") -> None:
        """Encrypt the connections that a socket will make."""
        socket.curve_serverkey, socket.curve_publickey, socket.curve_secretkey = self


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
