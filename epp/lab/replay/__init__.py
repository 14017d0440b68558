# SPDX-License-Identifier: Apache-2.0
"""Replay of a trace: the picker under a virtual clock, in front of simulated engines."""

from epp.lab.replay.fleet import Fleet, Server, load_fleet
from epp.lab.replay.outcome import Outcome, Status
from epp.lab.replay.run import Progress, replay
from epp.lab.replay.settings import ReplayOptions
from epp.lab.replay.summary import Summary, Targets, groups, summarise

__all__ = [
    "Fleet",
    "Outcome",
    "Progress",
    "ReplayOptions",
    "Server",
    "Status",
    "Summary",
    "Targets",
    "groups",
    "load_fleet",
    "replay",
    "summarise",
]
