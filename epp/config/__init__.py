# SPDX-License-Identifier: Apache-2.0
"""EndpointPickerConfig: from a file to the plugins of a running picker."""

from epp.config.assemble import Assembly, assemble
from epp.config.document import InvalidConfigError, Problem
from epp.config.follow import ConfigFollower, ConfigObserver, ConfigState
from epp.config.instances import Builder
from epp.config.load import LoadedConfig, default_config, load_file, load_text

__all__ = [
    "Assembly",
    "Builder",
    "ConfigFollower",
    "ConfigObserver",
    "ConfigState",
    "InvalidConfigError",
    "LoadedConfig",
    "Problem",
    "assemble",
    "default_config",
    "load_file",
    "load_text",
]
