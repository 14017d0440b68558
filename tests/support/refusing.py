# SPDX-License-Identifier: Apache-2.0
"""Plugins that refuse, or fail on, every request: `tests.support.refusing:Name` in a configuration."""

import numpy as np

from epp.framework import Admitter, Aggregator, Candidates, Filter, ProfilePicker, Request, Scorer, Screener
from epp.framework.arrays import Floats, Mask
from epp.framework.refusals import SheddableDroppedError


class KeepsNone(Filter):
    plugin_type = "keeps-none"

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        return np.zeros(len(candidates), dtype=np.bool_)


class ScreensAll(Screener):
    plugin_type = "screens-all"

    def screen(self, request: Request, candidates: Candidates) -> Mask:
        return np.zeros(len(candidates), dtype=np.bool_)


class Sheds(Admitter):
    plugin_type = "sheds"

    def admit(self, request: Request, candidates: Candidates) -> None:
        raise SheddableDroppedError


class BrokenFilter(Filter):
    plugin_type = "broken-filter"

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        raise KeyError("inside")


class Chatty(Scorer):
    """Its errors quote the prompt."""

    plugin_type = "chatty"

    def score(self, request: Request, candidates: Candidates) -> Floats:
        raise ValueError(request.body.prompt.decode())


class BrokenProfiles(ProfilePicker, Aggregator):
    """Nothing catches what a profile picker raises, but the session."""

    plugin_type = "broken-profiles"

    def pick_profiles(self, request, profiles, results):
        raise KeyError("inside")

    def aggregate(self, request, results):
        raise KeyError("inside")
