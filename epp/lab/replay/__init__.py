# SPDX-License-Identifier: Apache-2.0
"""Replay of a trace: the picker under a virtual clock, in front of simulated engines."""

from epp.lab.replay.fleet import Fleet, ReplayOptions, Server, load_fleet
from epp.lab.replay.jobs import replay
from epp.lab.replay.outcome import Outcome, Status
from epp.lab.replay.summary import Summary, Targets, groups, summarise

__all__ = [
    "Fleet",
    "Outcome",
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
