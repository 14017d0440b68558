# SPDX-License-Identifier: Apache-2.0
"""Sources of endpoints: the command line or a file."""

from epp.discovery.endpoint_list import parse_targets
from epp.discovery.file import FileDiscovery
from epp.discovery.static import StaticDiscovery
from epp.discovery.targets import Target

__all__ = ["FileDiscovery", "StaticDiscovery", "Target", "parse_targets"]
