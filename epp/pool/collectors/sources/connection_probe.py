# SPDX-License-Identifier: Apache-2.0
"""A brief connection to endpoints that no other source asks."""

import ssl

from epp.framework.datalayer import DataSource, NotAskedError
from epp.framework.endpoint import Endpoint, EndpointTrust
from epp.framework.plugin import Parameters
from epp.pool.collectors.sources.failures import Attempt
from epp.pool.collectors.sources.protocols import handshake, speaks_http
from epp.pool.collectors.sources.tls import EndpointTls
from epp.runtime.process import NO_DESCRIPTOR

_TIMEOUT_SECONDS = 1.0
_UNVERIFIED = EndpointTrust(verify=False)


class ConnectionProbe(DataSource[Parameters]):
    """Connects to the port of an endpoint, over TLS if it speaks HTTPS, and closes the connection; no page."""

    plugin_type = "connection-probe"

    def __init__(self, endpoint_tls: EndpointTls | None) -> None:
        super().__init__()
        self._verifies = endpoint_tls is not None
        self._endpoint_tls = endpoint_tls or EndpointTls(_UNVERIFIED)

    @property
    def interval_seconds(self) -> float:
        """Time between two connections to an endpoint."""
        return 1.0

    async def fetch(self, endpoint: Endpoint) -> bytes:
        """Return an empty page; raises UnreachableError or NotAskedError."""
        attempt = Attempt(
            endpoint, f"port {endpoint.port}", endpoint.port, self.name, own_tls=True, as_gateway=self._verifies
        )
        context = self._endpoint_tls.context if endpoint.tls else None
        try:
            await handshake(endpoint.address, endpoint.port, context, endpoint.host.rstrip("."), _TIMEOUT_SECONDS)
        except ssl.SSLCertVerificationError as error:
            raise attempt.not_trusted(error) from error
        except (TimeoutError, ssl.SSLError) as error:
            if endpoint.tls and await speaks_http(endpoint.address, endpoint.port, _TIMEOUT_SECONDS):
                raise attempt.speaks_plaintext() from error
            if isinstance(error, TimeoutError):
                raise attempt.timed_out(_TIMEOUT_SECONDS) from None
            raise attempt.no_handshake(error) from error
        except OSError as error:
            if error.errno in NO_DESCRIPTOR:
                raise NotAskedError(f"{attempt.place}: {error.strerror}") from None
            raise attempt.lost(error) from error
        return b""

    async def close(self) -> None:
        """Do nothing: no connection is kept."""
