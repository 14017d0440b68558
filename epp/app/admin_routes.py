# SPDX-License-Identifier: Apache-2.0
"""The pages of the admin port, on a running configuration."""

from collections.abc import Sequence

from aiohttp import web

from epp.admin import (
    PickerView,
    allocation_routes,
    config_routes,
    decision_routes,
    endpoint_routes,
    page_routes,
    placement_routes,
    quota_routes,
    simulation_routes,
)
from epp.config import Assembly, Builder, assemble, load_text
from epp.config.lint import texts_in
from epp.explain.recorder import Recorder
from epp.framework.cluster import ObjectReader
from epp.framework.files import only_files


def admin_routes(picker: PickerView, recorder: Recorder | None) -> Sequence[web.RouteDef]:
    """Return all routes; those of decisions only with a recorder."""
    return (
        *page_routes(),
        *quota_routes(picker.loop, lambda: picker.director.quotas, picker.tenants),
        *(() if recorder is None else decision_routes(picker.loop, recorder)),
        *simulation_routes(picker),
        *placement_routes(picker),
        *endpoint_routes(picker),
        *allocation_routes(picker),
        *config_routes(picker),
    )


def on_trial(text: str, builder: Builder, in_effect: Assembly, object_paths: Sequence[str]) -> Assembly:
    """Return a configuration, assembled from its text, that does not observe, follow or collect anything.

    It may only name the files that the configuration in effect names: errors quote the content of files. Raises
    ConfigurationError.
    """
    named = (value for plugin in in_effect.loaded.model.plugins for value in texts_in(plugin.parameters))
    with only_files(tuple(named), below=object_paths):
        assembly = assemble(load_text(text, "config"), builder)
        for plugin in assembly.plugins:
            if isinstance(plugin, ObjectReader) and plugin is not builder.previous.get(plugin.name):
                plugin.read_files(object_paths)
    return assembly
