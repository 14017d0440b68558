# SPDX-License-Identifier: Apache-2.0
"""The controllers of Kubernetes that make pods of Deployments, and list the ready ones for each Service."""

import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from tests.support.kube.processes import Process
from tests.support.kube.running import Cluster
from tests.support.ports import reserved_ports

NAMES = ("deployment-controller", "replicaset-controller", "endpointslice-controller", "garbage-collector-controller")


@asynccontextmanager
async def controllers_of(cluster: Cluster, program: Path, directory: Path) -> AsyncIterator[None]:
    """Run them for a cluster."""
    with reserved_ports(1) as (port,):
        process = Process(
            directory / "controllers.log",
            str(program),
            f"--kubeconfig={cluster.kubeconfig(directory / 'kubeconfig')}",
            f"--controllers={','.join(NAMES)}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={directory / 'certificates'}",
        )
        unverified = ssl.create_default_context()
        unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE

        async def ready() -> bool:
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with (
                    aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=unverified)) as http,
                    http.get(f"https://127.0.0.1:{port}/healthz") as response,
                ):
                    return response.status == 200
            return False

        try:
            await process.start(ready)
            yield
        finally:
            process.kill()
