"""The multi-cycle scheduler: profiles run over one snapshot until the profile picker has no more to ask for."""

from epp.scheduling.observer import SchedulingObserver
from epp.scheduling.profile import Profile, WeightedScorer
from epp.scheduling.scheduler import Scheduler

__all__ = ["Profile", "Scheduler", "SchedulingObserver", "WeightedScorer"]
