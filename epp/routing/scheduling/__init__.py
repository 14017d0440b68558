# SPDX-License-Identifier: Apache-2.0
"""The multi-cycle scheduler: runs profiles over one snapshot until the profile picker asks for no more."""

from epp.routing.scheduling.profile import OnStale, Profile, ProfileFilter, Staleness, WeightedScorer
from epp.routing.scheduling.scheduler import Cycle, Scheduler

__all__ = [
    "Cycle",
    "OnStale",
    "Profile",
    "ProfileFilter",
    "Scheduler",
    "Staleness",
    "WeightedScorer",
]
