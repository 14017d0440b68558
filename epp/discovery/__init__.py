# SPDX-License-Identifier: Apache-2.0
"""Sources of endpoints: the command line, a file, pods in files, or a Kubernetes cluster."""

from epp.discovery.endpoint_list import parse_targets
from epp.discovery.file import FileDiscovery
from epp.discovery.inference_pool import PodDiscovery, PoolName
from epp.discovery.pod_files import PodFileDiscovery
from epp.discovery.pods import PodTarget
from epp.discovery.static import StaticDiscovery
from epp.discovery.targets import Target

__all__ = [
    "FileDiscovery",
    "PodDiscovery",
    "PodFileDiscovery",
    "PodTarget",
    "PoolName",
    "StaticDiscovery",
    "Target",
    "parse_targets",
]
