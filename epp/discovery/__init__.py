"""Who is in the pool: endpoints from the command line or from a file."""

from epp.discovery.file import FileDiscovery
from epp.discovery.static import StaticDiscovery, parse_targets
from epp.discovery.target import Target

__all__ = ["FileDiscovery", "StaticDiscovery", "Target", "parse_targets"]
