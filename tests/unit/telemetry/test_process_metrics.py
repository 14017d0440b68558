# SPDX-License-Identifier: Apache-2.0
"""The metrics of the process, under the names that clients of Prometheus share."""

import resource
from pathlib import Path

import yaml
from prometheus_client import CollectorRegistry

from epp.telemetry import process_series
from epp.telemetry.process_series import show_process

LIST = Path(__file__).parents[2] / "contract" / "llm_d_metrics.yaml"
NAMES = set(yaml.safe_load(LIST.read_text())["process"])


def shown() -> dict[str, float]:
    registry = CollectorRegistry()
    show_process(registry)
    return {sample.name: sample.value for family in registry.collect() for sample in family.samples}


def test_process_has_the_nine_metrics_of_prometheus_clients():
    values = shown()
    assert values.keys() == NAMES
    assert values["process_max_fds"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert 0 < values["process_open_fds"] <= len(list(Path("/proc/self/fd").iterdir())) + 1
    assert values["process_resident_memory_bytes"] < values["process_virtual_memory_bytes"]
    assert values["process_virtual_memory_max_bytes"] > 0


def test_network_without_counters_has_no_samples(monkeypatch, tmp_path):
    counters = tmp_path / "netstat"
    monkeypatch.setattr(process_series, "_NETWORK", counters)
    assert NAMES - shown().keys() == {name for name in NAMES if "network" in name}
    counters.write_text("TcpExt: A\nTcpExt: 1\nIpExt: InOctets OutOctets\nIpExt: 7 9\n")
    assert shown()["process_network_transmit_bytes_total"] == 9
