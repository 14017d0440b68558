"""EndpointPickerConfig: from a file to the plugins of a running picker."""

from epp.config.assemble import Assembly, assemble
from epp.config.load import load_file, load_text
from epp.config.model import EndpointPickerConfig, default_config

__all__ = [
    "Assembly",
    "EndpointPickerConfig",
    "assemble",
    "default_config",
    "load_file",
    "load_text",
]
