# SPDX-License-Identifier: Apache-2.0
"""A kube-apiserver that keeps its port, its certificate and its keys from one start to the next."""

import secrets
import ssl
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.support.kube.etcd import Etcd
from tests.support.kube.processes import Process

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Access:
    """Place of an API server, and how to know that it is the right one."""

    port: int
    ca: Path

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.port}"

    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca))


class ApiServer:
    """The process, and the token of an administrator."""

    def __init__(self, program: Path, data: Path, etcd: Etcd, port: int, *flags: str) -> None:
        certificates = data / "certificates"
        self.access = Access(port, certificates / "apiserver.crt")
        self.admin_token = secrets.token_hex(16)
        tokens = data / "tokens.csv"
        tokens.write_text(f'{self.admin_token},admin,admin,"system:masters"\n')
        key = data / "service-accounts.key"
        signing_key = ec.generate_private_key(ec.SECP256R1())
        key.write_bytes(signing_key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
        self.process = Process(
            data / "kube-apiserver.log",
            str(program),
            f"--etcd-servers={etcd.url}",
            f"--secure-port={port}",
            f"--bind-address={HOST}",
            f"--advertise-address={HOST}",
            f"--cert-dir={certificates}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--authorization-mode=RBAC",
            f"--token-auth-file={tokens}",
            "--disable-admission-plugins=ServiceAccount",
            "--delete-collection-workers=8",
            "--shutdown-watch-termination-grace-period=1s",
            *flags,
        )

    async def start(self) -> None:
        """Start it and wait until it is ready, for the first time or again."""
        await self.process.start(self._ready)

    def kill(self) -> None:
        """End it with SIGKILL: connections are reset."""
        self.process.kill()

    async def stop(self) -> None:
        """End it with SIGTERM: watches are closed."""
        await self.process.stop()

    def pause(self) -> None:
        """Let it hang: connections stay open, and nothing is answered."""
        self.process.pause()

    def resume(self) -> None:
        self.process.resume()

    async def _ready(self) -> bool:
        if not self.access.ca.exists():
            return False
        try:
            async with (
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self.access.tls())) as http,
                http.get(f"{self.access.url}/readyz") as response,
            ):
                return response.status == 200
        except (aiohttp.ClientConnectionError, ssl.SSLError):
            return False
