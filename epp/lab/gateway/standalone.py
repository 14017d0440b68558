# SPDX-License-Identifier: Apache-2.0
"""The contents of the files in `deploy/`: configurations of an Envoy that is started by other means."""

from __future__ import annotations

from pathlib import Path

import msgspec

from epp.lab.gateway.bootstrap import bootstrap_yaml
from epp.lab.gateway.settings import Bodies, ClusterType, FailureMode, GatewaySettings

__all__ = ["standalone_buffered_yaml", "standalone_override_host_yaml", "standalone_yaml"]

_HEADER = """\
# For a stand-alone Envoy (1.40 or later) next to a picker started with `epp serve`: on a virtual machine, on bare
# metal, as a sidecar. A Kubernetes gateway configures Envoy itself; to try things out, `epp gateway` starts an Envoy.
#
#   envoy --config-path {name}
#
# Clients      0.0.0.0:8080, HTTP/1.1 or HTTP/2 without TLS.
# Picker       127.0.0.1:9002 with TLS. The certificate is not verified, so keep the picker on the same host or add a
#              validation_context.
# Admin        127.0.0.1:9901. Its clients can stop Envoy.
# Access log   stdout, one line of JSON per request: destination as the picker named it, served_by for where the request
#              went, reason if the picker refused it, details for the origin of the status.
{more}#
# Generated, see README.md in this directory; a test compares the file with the code.
"""

_ORIGINAL_DST = """\
# Destination  The picker names one ip:port in x-gateway-destination-endpoint, and Envoy connects there. This cluster
#              type takes exactly one address: a comma-separated list is answered with 503.
"""

_BUFFERED = (
    _ORIGINAL_DST
    + """\
# Bodies       Requests go to the picker whole: 32 MiB at most, larger ones get 413 (request_body_buffer_limit, and
#              --max-request-body of the picker). The bodies of responses pass it by, but for those that it asks for
#              (allow_mode_override), so it counts no tokens unless it is told to: --response-usage=always.
# Ends         Without bodies the picker sees when a response ends, but not whether it was complete or cut.
"""
)

_OVERRIDE_HOST = """\
# Endpoints    /etc/envoy/endpoints.json, see endpoints.json in this directory. Envoy watches it: write another file
#              beside it and rename that. An endpoint that is not in it is skipped.
# Destination  The picker names ip:port,ip:port,... in x-gateway-destination-endpoint (maxNumOfEndpoints of its picker
#              plugin). Envoy connects to the first, and to the next one when that fails.
# Picker down  FailOpen: Envoy sends requests to that of two random endpoints which has fewer. For that, request bodies
#              go to the picker whole: 32 MiB at most, larger ones get 413. For FailClose, see
#              `epp gateway --cluster-type override-host --eds-file /etc/envoy/endpoints.json --print-envoy-config`.
"""

_STANDALONE = GatewaySettings(
    listen_host="0.0.0.0",  # noqa: S104 - clients are elsewhere
    picker_tls=True,
    admin_address="127.0.0.1:9901",
    access_log=True,
)
_STANDALONE_OVERRIDE_HOST = msgspec.structs.replace(
    _STANDALONE,
    cluster_type=ClusterType.OVERRIDE_HOST,
    failure_mode=FailureMode.FAIL_OPEN,
    eds_file=Path("/etc/envoy/endpoints.json"),
)


def standalone_yaml() -> str:
    """Return the text of `deploy/envoy.yaml`, with comments."""
    return _HEADER.format(name="envoy.yaml", more=_ORIGINAL_DST) + bootstrap_yaml(_STANDALONE)


def standalone_buffered_yaml() -> str:
    """Return the text of `deploy/envoy-buffered.yaml`, with comments."""
    header = _HEADER.format(name="envoy-buffered.yaml", more=_BUFFERED)
    return header + bootstrap_yaml(msgspec.structs.replace(_STANDALONE, body_mode=Bodies.BUFFERED))


def standalone_override_host_yaml() -> str:
    """Return the text of `deploy/envoy-override-host.yaml`, with comments."""
    header = _HEADER.format(name="envoy-override-host.yaml", more=_OVERRIDE_HOST)
    return header + bootstrap_yaml(_STANDALONE_OVERRIDE_HOST)
