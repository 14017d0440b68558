"""The multi-cycle scheduler: profiles run over one snapshot until the profile picker has no more to ask for."""

from epp.scheduling.observer import SchedulingObserver
from epp.scheduling.profile import OnError, Profile, ProfileFilter, WeightedScorer
from epp.scheduling.scheduler import Scheduler

__all__ = ["OnError", "Profile", "ProfileFilter", "Scheduler", "SchedulingObserver", "WeightedScorer"]
