# SPDX-License-Identifier: Apache-2.0
"""The pages of the admin port, on a running configuration."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from aiohttp import web

from epp.admin import (
    LoopCalls,
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
from epp.app.running import RunningConfig
from epp.config import Assembly, Builder, ConfigState, assemble, load_text
from epp.config.lint import texts_in
from epp.explain.recorder import Recorder
from epp.framework import Clock
from epp.framework.cluster import ObjectReader
from epp.framework.files import only_files


def admin_routes(
    running: RunningConfig,
    *,
    pool_name: str,
    clock: Clock,
    config: Callable[[], ConfigState],
    recorder: Recorder | None,
    picks: Callable[[], Mapping[str, int]],
    build: Callable[[str], Assembly],
) -> Sequence[web.RouteDef]:
    """Return the routes for the event loop that runs now.

    `config` tells which configuration is in effect, `picks` how often each endpoint was picked. `build` makes another
    configuration of its text, in a thread.
    """
    loop = LoopCalls(asyncio.get_running_loop())
    picker = PickerView(
        loop=loop,
        pool=pool_name,
        director=running.director,
        snapshot=running.store.snapshot,
        clock=clock,
        assembly=lambda: running.assembly,
        config=config,
        states=lambda: running.endpoint_states,
        picks=picks,
        build=build,
    )
    return (
        *page_routes(),
        *quota_routes(loop, lambda: running.director.quotas, lambda: running.tenants),
        *(() if recorder is None else decision_routes(loop, recorder)),
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
