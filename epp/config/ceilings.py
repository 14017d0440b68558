# SPDX-License-Identifier: Apache-2.0
"""How full endpoints may be for each priority of a configuration, before any request has come."""

from collections.abc import Mapping

from epp.admission.flow_control import FlowControlSettings
from epp.framework.errors import ConfigurationError
from epp.framework.messages import described


def ceilings_at(settings: FlowControlSettings, saturation: float) -> Mapping[int, float]:
    """Return the ceilings by priority, highest first; raises ConfigurationError where they cannot be used."""
    policy, priorities = settings.usage_limits, settings.priorities_with(0)
    try:
        found = [float(each) for each in policy.ceilings(priorities, saturation)]
    except Exception as error:  # a plugin may raise anything
        raise ConfigurationError(described(error, type(policy))) from error
    if len(found) != len(priorities):
        raise ConfigurationError(f"{len(found)} ceilings for {len(priorities)} priorities")
    return dict(zip(priorities, found, strict=True))


def fixed_ceilings(settings: FlowControlSettings) -> Mapping[int, float]:
    """Return the ceilings of a policy where they do not change with the saturation of the pool; else none."""
    try:
        idle, full = ceilings_at(settings, 0.0), ceilings_at(settings, 1.0)
    except ConfigurationError:
        return {}
    return idle if idle == full else {}
