# SPDX-License-Identifier: Apache-2.0
"""The multi-cycle scheduler: runs profiles over one snapshot until the profile picker asks for no more."""

from epp.scheduling.cycle import Cycle
from epp.scheduling.guard import Failure, Guard, PluginObserver, SchedulingObserver
from epp.scheduling.profile import OnStale, Profile, ProfileFilter, Staleness, WeightedScorer
from epp.scheduling.scheduler import Scheduler

__all__ = [
    "Cycle",
    "Failure",
    "Guard",
    "OnStale",
    "PluginObserver",
    "Profile",
    "ProfileFilter",
    "Scheduler",
    "SchedulingObserver",
    "Staleness",
    "WeightedScorer",
]
