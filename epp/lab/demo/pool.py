# SPDX-License-Identifier: Apache-2.0
"""The demo's pool and configuration: three kinds of hardware at three prices."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from epp.config import LoadedConfig, load_text
from epp.framework.accelerators.tag import AcceleratorDeclaration
from epp.lab.demo.servers import ModelServer
from epp.pool.discovery import StaticDiscovery, Target
from epp.runtime.addresses import parse_host_port

PRESETS: Mapping[str, AcceleratorDeclaration] = MappingProxyType(
    {
        "h100": AcceleratorDeclaration(accelerator_class="h100", count=1, cost_per_hour=4.25),
        "a100-3g.20gb": AcceleratorDeclaration(
            accelerator_class="a100-40gb", count=1, profile="3g.20gb", cost_per_hour=2.00
        ),
        "t4": AcceleratorDeclaration(accelerator_class="t4", count=1, cost_per_hour=0.53),
    }
)
"""The hardware that each preset simulates; US dollars for a whole device."""

_CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: cost-aware-spill
  parameters: {queueThreshold: 2, kvThreshold: 0.5, limits: {t4: {maxConcurrency: 3}, a100: {maxConcurrency: 6}}}
- type: prefix-cache-scorer
- type: active-request-scorer
  parameters: {normalizeBy: relativeCapacity}
- type: queue-scorer
  parameters: {normalizeBy: relativeCapacity}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: cost-aware-spill
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: active-request-scorer, weight: 2}
  - {pluginRef: queue-scorer, weight: 2}
"""


def demo_config() -> LoadedConfig:
    """Return a configuration that fills the cheapest hardware first, and prefers cached prompts within it.

    With the sample `heterogeneous-cost` the H100 would serve all of the demo's traffic: kept busy, it costs least.
    """
    return load_text(_CONFIG, "demo configuration")


def demo_discovery(servers: Iterable[ModelServer]) -> StaticDiscovery:
    """Return the pool of the servers, each with its hardware."""
    targets = []
    for server in servers:
        place = parse_host_port(server.address)
        targets.append(Target(server.name, place.host, place.port, accelerator=PRESETS[server.name]))
    return StaticDiscovery(targets)
