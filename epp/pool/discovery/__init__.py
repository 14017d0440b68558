# SPDX-License-Identifier: Apache-2.0
"""Sources of endpoints: the command line, a file, pods in files, or a Kubernetes cluster."""

from epp.pool.discovery.endpoints_file import FileDiscovery
from epp.pool.discovery.imports import PoolImportDiscovery
from epp.pool.discovery.inference_pool import PodDiscovery, PoolDiscovery, PoolName
from epp.pool.discovery.pod_files import PodFileDiscovery
from epp.pool.discovery.pods import PodTarget
from epp.pool.discovery.several import SeveralSources
from epp.pool.discovery.targets import StaticDiscovery, Target, parse_targets

__all__ = [
    "FileDiscovery",
    "PodDiscovery",
    "PodFileDiscovery",
    "PodTarget",
    "PoolDiscovery",
    "PoolImportDiscovery",
    "PoolName",
    "SeveralSources",
    "StaticDiscovery",
    "Target",
    "parse_targets",
]
