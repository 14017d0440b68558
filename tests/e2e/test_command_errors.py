# SPDX-License-Identifier: Apache-2.0
"""What goes wrong at the start is one clear line and exit code 1, and flags of the Go picker are understood."""

import asyncio

import pytest

from tests.support.commands import command, outcome
from tests.support.serving import ANY_PORT, served_by

ENDPOINTS = "--endpoints=127.0.0.1:1"
MISTAKES = """\
serve
  no endpoints to pick from: give --endpoints host:port,... or a configuration with dataLayer.discovery;
serve ENDPOINTS --config-file /no/such/file.yaml
  /no/such/file.yaml: cannot be read: No such file or directory
gateway ENDPOINTS --bind-address ::
  --bind-address has no effect without --metrics-port: add it
serve ENDPOINTS --bind-address 192.0.2.1
  cannot listen on 192.0.2.1:9002: this machine does not have the address: choose one of its own, or :: for
gateway ENDPOINTS --config-text kind:Pod --config-file pod.yaml
  --config-file and --config-text cannot be combined: give one
gateway --listen gateway.svc:80 --print-envoy-config
  --listen: 'gateway.svc:80' is not an IP address and port; Envoy does not resolve host names here
gateway --cluster-type override-host --print-envoy-config
  --eds-file: missing: an override-host cluster needs a file of endpoints, such as
demo --listen nowhere
  --listen: 'nowhere' has no port: write host:port or [ipv6]:port
demo --tenants --clusters
  --clusters and --tenants cannot be combined: give one
serve ENDPOINTS --metrics-cert-dir=x
  --metrics-cert-dir: TLS alone does not authenticate clients: add --metrics-endpoint-auth,
serve ENDPOINTS --metrics-client-ca-file=x
  --metrics-client-ca-file has no effect without --metrics-cert-dir
serve ENDPOINTS --metrics-cert-dir=/none --metrics-client-ca-file=x
  --metrics-cert-dir /none
serve ENDPOINTS --metrics-token-file=/none
  --metrics-token-file: /none cannot be read
serve ENDPOINTS --metrics-request-timeout=0s
  --metrics-request-timeout
gateway --endpoints=a=https://localhost:1 --endpoint-ca-file=/none/ca.pem
  --endpoint-ca-file /none/ca.pem: No such file or directory
gateway --endpoints=a=https://localhost:1 --endpoint-ca-file=/none/ca.pem --endpoint-insecure-skip-verify
  --endpoint-ca-file and --endpoint-insecure-skip-verify cannot be combined: give one
gateway --failure-mode=FailOpen ENDPOINTS
  --failure-mode: FailOpen does not work with cluster
gateway ENDPOINTS --body-mode=full-duplex --failure-mode=FailOpen --cluster-type=override-host
  --body-mode: full-duplex bodies are lost when the picker fails
serve ENDPOINTS --grpc-port=0 --cert-path=/none
  --cert-path /none: No such file or directory: /none/tls.key; the directory must have tls.crt and tls.key
serve ENDPOINTS --grpc-port=0 --tls-min-version=VersionTLS13 --transport=grpcio
  --transport grpcio only supports TLS 1.2 as minimum version, and no choice of
serve ENDPOINTS --grpc-port=0 --tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 --transport=grpcio
  --transport grpcio only supports TLS 1.2 as minimum version, and no choice of
serve ENDPOINTS --admin-port=0 --admin-host=0.0.0.0
  --admin-host: 0.0.0.0 can be reached from other machines, and there is no token
serve ENDPOINTS --admin-port=0 --admin-host=all
  --admin-host: 'all' is not an IP address
serve ENDPOINTS --admin-port=0 --admin-request-timeout=0s
  --admin-request-timeout
serve ENDPOINTS --admin-token-file=/none
  --admin-token-file has no effect without --admin-port
serve ENDPOINTS --workers=2 --transport=grpcio
  --workers: --transport grpcio cannot accept passed connections: leave it out
""".splitlines()
"""Command lines, and below each what its error begins with."""


@pytest.mark.parametrize(("command_line", "error"), [*zip(MISTAKES[::2], MISTAKES[1::2], strict=True)])
async def test_mistake_is_one_clear_line(command_line, error):
    exit_code, said = await outcome(*command_line.replace("ENDPOINTS", ENDPOINTS).split())
    assert exit_code == 1
    assert said.error.startswith(f"error: {error.strip()}")
    assert said.out == []


async def test_taken_port_is_named():
    taken_by = "the address is taken by another process: stop it (`ss -ltnp` names it), or choose another port"
    async with command("serve", ENDPOINTS, *ANY_PORT) as first:
        served = await served_by(first)
        ports = grpc_port, health_port, metrics_port = served.grpc_port, served.health_port, served.metrics_port
        expected = [
            f"error: cannot listen on [::]:{grpc_port}: {taken_by}",
            f"error: cannot listen on [::]:{health_port}: {taken_by}",
            f"error: the metrics page cannot listen on [::]:{metrics_port}: {taken_by}",
        ]
        names = ("--grpc-port", "--grpc-health-port", "--metrics-port")
        taken = [f"{name}={port}" for name, port in zip(names, ports, strict=True)]
        others = [(*ANY_PORT[:position], taken[position], *ANY_PORT[position + 1 :]) for position in range(3)]
        said = await asyncio.gather(
            *(outcome("serve", ENDPOINTS, *flags) for flags in others),
            outcome("gateway", ENDPOINTS, f"--listen={metrics_port}"),
            outcome("sim-server", f"--port={metrics_port}"),
        )
        assert [exit_code for exit_code, _ in said] == [1, 1, 1, 1, 1]
        *pickers, gateway, server = [command.error for _, command in said]
        assert pickers == expected
        assert gateway == f"error: --listen: cannot listen on 127.0.0.1:{metrics_port}: {taken_by}"
        assert server == f"error: cannot listen on 127.0.0.1:{metrics_port}: {taken_by}"


async def test_deployment_of_the_go_picker_keeps_its_flags():
    flags = "--pool-namespace x --pool-group=y --ha-enable-leader-election=false "
    zap = "--enable-pprof --zap-devel --zap-stacktrace-level error --zap-encoder json "
    ours = "--secure-serving --health-checking=false --pool-name=z --refresh-metrics-interval=50ms -v=1"
    async with command("serve", ENDPOINTS, *ANY_PORT, *(flags + zap + ours).split()) as running:
        for flag in ("--pool-namespace", "--pool-group", "--enable-pprof"):
            assert '"msg":"flag has no effect"' in await running.says(f'"flag":"{flag}"')
        await running.says('"msg":"ready"')
        assert running.out == []
