# SPDX-License-Identifier: Apache-2.0
"""A picker and an Envoy that run together, and the EDS file with the endpoints of the pool."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import structlog

from epp.app import Picker, PickerSettings
from epp.framework import Endpoint
from epp.lab.gateway.bootstrap import load_types
from epp.lab.gateway.envoy import EnvoyProcess
from epp.lab.gateway.settings import (
    HTTPS,
    MODEL_SERVERS,
    ClusterType,
    GatewaySettings,
    SettingsError,
    temporary_directory,
)
from epp.routing.datastore import Datastore
from epp.runtime.supervisor import first_of

_RETRY_SECONDS = 1.0

_log = structlog.get_logger()


def discovery_response(endpoints: Iterable[Endpoint]) -> bytes:
    """Return the text of the EDS file: a DiscoveryResponse in protobuf's JSON mapping, one endpoint per line."""
    lines = [msgspec.json.encode(_host(each)) for each in endpoints]
    listed = b",\n".join(b"      " + line for line in lines)
    return b"""{"resources": [
  {
    "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
    "cluster_name": "%b",
    "endpoints": [{"lb_endpoints": [
%b
    ]}]
  }
]}
""" % (MODEL_SERVERS.encode(), listed)


def _host(endpoint: Endpoint) -> dict[str, object]:
    address = {"socket_address": {"address": endpoint.address, "port_value": endpoint.port}}
    if not endpoint.tls:
        return {"endpoint": {"address": address}}
    # Envoy sends the host name in the handshake and verifies the certificate against it. For an IP address, the mark
    # selects the settings that verify this address.
    hostname = endpoint.host.rstrip(".")  # names in handshakes have no trailing dot
    host: dict[str, object] = {"address": address, **({"hostname": hostname} if hostname else {})}
    mark = HTTPS if endpoint.host else endpoint.address
    return {"endpoint": host, "metadata": {"filter_metadata": {"envoy.transport_socket_match": {HTTPS: mark}}}}


@asynccontextmanager
async def eds_file(path: Path, store: Datastore) -> AsyncIterator[None]:
    """Keep the file at `path` equal to the pool while the block runs; the file remains afterwards.

    The first version exists when the block begins, because Envoy does not start without it. New versions replace the
    file atomically; a failed write is retried every second. Entering the block raises `SettingsError` if `path` cannot
    be written.
    """
    changed = asyncio.Event()
    writing: set[asyncio.Future[None]] = set()

    async def write() -> None:
        changed.clear()
        writing.clear()
        new = asyncio.ensure_future(asyncio.to_thread(_replace, path, discovery_response(store.endpoints)))
        writing.add(new)
        await asyncio.shield(new)  # a thread cannot be cancelled: the end of the block waits for it

    async def follow() -> None:
        while True:
            await changed.wait()
            try:
                await write()
            except OSError as error:
                _log.warning("EDS file not written, retrying", path=str(path), error=error.strerror)
                changed.set()
                await asyncio.sleep(_RETRY_SECONDS)

    store.subscribe(lambda _change: changed.set())
    try:
        await write()
    except OSError as error:
        raise SettingsError(
            "eds_file", f"cannot write {str(path)!r}: {error.strerror}; make room, or name another directory"
        ) from error
    task = asyncio.create_task(follow(), name="EDS file")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        await asyncio.wait(writing)


def _replace(path: Path, text: bytes) -> None:
    fresh = path.with_name(f"{path.name}.new")
    try:
        fresh.write_bytes(text)
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)  # frees the space of the incomplete file
        raise


@dataclass(frozen=True, slots=True)
class LocalGateway:
    picker: Picker
    envoy: EnvoyProcess

    @property
    def url(self) -> str:
        return f"http://{self.envoy.address}"

    async def wait(self, stop: asyncio.Event) -> None:
        """Wait for `stop`; raises EnvoyDiedError if Envoy exits before."""
        await first_of(self.envoy.wait(), stop.wait())

    async def drain(self, most_seconds: float, enough: asyncio.Event) -> None:
        """Stop accepting connections; return when no request is open, the time is up or `enough` is set."""
        await first_of(self.envoy.drain(), enough.wait(), most_seconds=most_seconds)


@asynccontextmanager
async def local_gateway(picker: PickerSettings, gateway: GatewaySettings) -> AsyncIterator[LocalGateway]:
    """Run both until the block ends. A unix socket connects them, so only the gateway has a port.

    The picker starts first; Envoy is ready once it finds the picker healthy. For an override-host cluster, the EDS file
    follows the picker's pool; it is a temporary file unless the settings name one. Envoy uses TLS if an endpoint does
    at the start, and only with the IP addresses known then: later endpoints without TLS support are not used.
    """
    load_types()  # before the picker starts: loading the types would hold its event loop
    with temporary_directory("epp-") as directory:
        address = f"unix:{Path(directory) / 'picker.sock'}"
        server = replace(picker.server, address=address, secure=False)
        running = Picker(replace(picker, server=server, endpoint_trust=gateway.endpoint_trust))
        await running.start()
        try:
            envoy_settings = msgspec.structs.replace(
                with_tls(gateway, running.tls_addresses) if running.has_tls_endpoints else gateway,
                picker_address=address,
                metadata_namespaces=tuple(sorted(running.metadata_namespaces)),
            )
            running.limit_tls(by_name=envoy_settings.endpoint_tls, addresses=envoy_settings.endpoint_addresses)
            async with AsyncExitStack() as stack:
                if envoy_settings.cluster_type is ClusterType.OVERRIDE_HOST:
                    path = gateway.eds_file or Path(directory) / "endpoints.json"
                    envoy_settings = msgspec.structs.replace(envoy_settings, eds_file=path)
                    await stack.enter_async_context(eds_file(path, running.store))
                envoy = await stack.enter_async_context(await EnvoyProcess.start(envoy_settings, wait_for_picker=True))
                try:
                    yield LocalGateway(running, envoy)
                finally:
                    await running.refuse_waiting()  # while Envoy can still answer the clients
        finally:
            await running.stop(drain_seconds=0)


def with_tls(gateway: GatewaySettings, addresses: Iterable[str]) -> GatewaySettings:
    """Return the settings for HTTPS endpoints; `addresses` are the IP addresses of those without a host name.

    Raises SettingsError for a cluster type without TLS.
    """
    if gateway.cluster_type is ClusterType.ORIGINAL_DST:
        raise SettingsError(
            "cluster_type",
            f"{ClusterType.ORIGINAL_DST} cannot connect to https endpoints: leave it out, or choose "
            f"{ClusterType.OVERRIDE_HOST}",
        )
    return msgspec.structs.replace(
        gateway, cluster_type=ClusterType.OVERRIDE_HOST, endpoint_tls=True, endpoint_addresses=tuple(addresses)
    )
