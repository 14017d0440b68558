# SPDX-License-Identifier: Apache-2.0
"""Separates deciding profiles from shadow profiles."""

from collections.abc import Mapping
from typing import Any

from epp.config.instances import Instances
from epp.config.model import EndpointPickerConfig
from epp.framework.messages import hint_at
from epp.framework.plugin import Plugin
from epp.framework.roles import Admitter, RequestHeaders, ResponseHeaders, ResponseReporter, Screener, Shadowing
from epp.routing.scheduling import Profile

_FELT = (RequestHeaders, Screener, Admitter, ResponseHeaders, ResponseReporter)
"""Roles that run for every request wherever their plugin is named, and that clients or gateways can feel."""


def divide_profiles(
    built: Mapping[str, Profile | None], instances: Instances, *, all_known: bool
) -> tuple[dict[str, Profile | None], dict[str, Profile]]:
    """Return the profiles that decide, and the shadows; a problem is noted for a name that there is no profile of.

    Those that could not be built are None, and left out of the shadows.
    """
    plugins = instances.of(Shadowing)
    for other in plugins[1:]:
        both = f"{plugins[0].name!r} and {other.name!r}"
        instances.fail(f"two plugins name shadow profiles, {both}", *instances.path_of(other), remedy="keep one")
    if not plugins:
        return dict(built), {}
    plugin = plugins[0]
    names = plugin.shadow_profiles
    for index, name in enumerate(names):
        if name not in built and all_known:
            path = (*instances.path_of(plugin), "parameters", "profiles", index)
            instances.fail(f"no profile is named {name!r}", *path, remedy=hint_at(name, built))
    deciding = {name: profile for name, profile in built.items() if name not in names}
    if not deciding:
        problem = f"plugin {plugin.name!r} names all profiles as shadows: none is left to decide"
        remedy = "leave one out of its parameter profiles"
        instances.fail(problem, *instances.path_of(plugin), "parameters", "profiles", remedy=remedy)
        return dict([*built.items()][:1]), {}
    found = {name: profile for name in names if (profile := built.get(name)) is not None}
    return deciding, found


def check_shadows(
    config: EndpointPickerConfig, deciding: Mapping[str, Profile], shadows: Mapping[str, Profile], instances: Instances
) -> None:
    """Warn of what is there for shadows only, and what requests feel all the same."""
    if not shadows:
        return
    _check_pickers(config, deciding, shadows, instances)
    used = {plugin.name for profile in deciding.values() for plugin in _plugins_of(profile)}
    used |= {name for plugin in instances for name in plugin.references.values()}
    warned: set[str] = set()
    for profile in shadows.values():
        for plugin in _plugins_of(profile):
            felt = next((role.role.title.lower() for role in _FELT if isinstance(plugin, role)), "")
            if felt and plugin.name not in used and plugin.name not in warned:
                warned.add(plugin.name)
                instances.warn(
                    f"plugin {plugin.name!r} is named by the shadow profile {profile.name!r} alone, and takes part in "
                    f"every request all the same ({felt}): that is more than a shadow",
                    *instances.path_of(plugin),
                )


def _check_pickers(
    config: EndpointPickerConfig, deciding: Mapping[str, Profile], shadows: Mapping[str, Profile], instances: Instances
) -> None:
    """Warn of profiles that name no picker, and take the one of a shadow, as the first that the file declares."""
    named = {spec.name: {ref.plugin_ref for ref in spec.plugins} for spec in config.scheduling_profiles}
    of_shadows = {name for shadow in shadows for name in named.get(shadow, ())}
    for index, spec in enumerate(config.scheduling_profiles):
        profile = deciding.get(spec.name)
        picker = "" if profile is None else profile.picker.name
        if picker in of_shadows - named[spec.name]:
            instances.warn(
                f"profile {spec.name!r} names no picker and takes {picker!r}, which a shadow profile names: name "
                "one in both",
                "schedulingProfiles",
                index,
            )


def _plugins_of(profile: Profile) -> list[Plugin[Any]]:
    return [
        *(member.filter for member in profile.filters),
        *(member.scorer for member in profile.scorers),
        profile.picker,
    ]
