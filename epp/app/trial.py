# SPDX-License-Identifier: Apache-2.0
"""Configurations that are only tried, beside the one in effect."""

from collections.abc import Sequence

from epp.config import Assembly, Builder, assemble, load_text
from epp.config.lint import texts_in
from epp.framework.cluster import ObjectReader
from epp.framework.regular_files import only_files


def on_trial(text: str, builder: Builder, in_effect: Assembly, object_paths: Sequence[str]) -> Assembly:
    """Return what a configuration would be, from its text; nothing of it is observed, followed or collected.

    It may name no other files than the configuration in effect: whoever asks would read them in its errors. Raises
    ConfigurationError.
    """
    named = (value for plugin in in_effect.loaded.model.plugins for value in texts_in(plugin.parameters))
    with only_files(tuple(named), below=object_paths):
        assembly = assemble(load_text(text, "config"), builder)
        for plugin in assembly.plugins:
            if isinstance(plugin, ObjectReader) and plugin is not builder.previous.get(plugin.name):
                plugin.read_files(object_paths)
    return assembly
