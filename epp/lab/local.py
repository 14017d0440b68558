# SPDX-License-Identifier: Apache-2.0
"""A picker and an Envoy in front of it, started and stopped together."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from epp.app import Picker, PickerSettings
from epp.lab.gateway import ClusterType, EdsFile, EnvoyProcess, GatewaySettings, SettingsError, load_types
from epp.lab.gateway.errors import temporary_directory
from epp.runtime.supervisor import first_of


@dataclass(frozen=True, slots=True)
class LocalGateway:
    """A running picker and Envoy."""

    picker: Picker
    envoy: EnvoyProcess

    @property
    def url(self) -> str:
        """The base URL for clients."""
        return f"http://{self.envoy.address}"

    async def wait(self, stop: asyncio.Event) -> None:
        """Wait for `stop`; raises EnvoyDiedError when Envoy exits before."""
        await first_of(self.envoy.wait(), stop.wait())

    async def drain(self, most_seconds: float, enough: asyncio.Event) -> None:
        """Stop accepting connections; return when no request is open, the time is up or `enough` is set."""
        await first_of(self.envoy.drain(), enough.wait(), most_seconds=most_seconds)


@asynccontextmanager
async def local_gateway(picker: PickerSettings, gateway: GatewaySettings) -> AsyncIterator[LocalGateway]:
    """Run both until the block ends; they are connected by a unix socket, so only the gateway has a port.

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
                    await stack.enter_async_context(EdsFile(path, running.store))
                envoy = await stack.enter_async_context(await EnvoyProcess.start(envoy_settings, wait_for_picker=True))
                try:
                    yield LocalGateway(running, envoy)
                finally:
                    await running.refuse_waiting()  # while Envoy can still answer the clients
        finally:
            await running.stop(drain_seconds=0)


def with_tls(gateway: GatewaySettings, addresses: Iterable[str]) -> GatewaySettings:
    """Return the settings for a pool with HTTPS endpoints; `addresses` are of those without a host name.

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
