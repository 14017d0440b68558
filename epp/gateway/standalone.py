"""The configuration of an Envoy that somebody else starts: what `deploy/envoy.yaml` holds."""

from __future__ import annotations

from epp.gateway.bootstrap import bootstrap_yaml
from epp.gateway.settings import GatewaySettings

__all__ = ["standalone_yaml"]

_HEADER = """\
# For an Envoy of your own (1.40 or later) next to a picker started with `epp serve`: a virtual machine, a bare-metal
# box, a sidecar. With a Kubernetes gateway you need none of this, as it configures Envoy itself; to try things out,
# `epp gateway` starts an Envoy for you.
#
#   envoy --config-path envoy.yaml
#
# Clients      0.0.0.0:8080, HTTP/1.1 or HTTP/2 without TLS.
# Picker       127.0.0.1:9002 with TLS. The certificate is not verified, so keep the picker on the same host or add a
#              validation_context.
# Admin        127.0.0.1:9901. Whoever reaches it can stop Envoy.
# Destination  The picker names one ip:port in x-gateway-destination-endpoint, and Envoy connects there. This cluster
#              type takes exactly one address: a comma-separated list is answered with 503.
#
# Generated, see README.md beside this file; a test holds the two together.
"""

_STANDALONE = GatewaySettings(
    listen_host="0.0.0.0",  # noqa: S104 - clients are elsewhere
    picker_tls=True,
    admin_address="127.0.0.1:9901",
)


def standalone_yaml() -> str:
    """Return the text of `deploy/envoy.yaml`, comments included."""
    return _HEADER + bootstrap_yaml(_STANDALONE)
