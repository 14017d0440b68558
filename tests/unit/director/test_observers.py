# SPDX-License-Identifier: Apache-2.0
"""Several observers as one: each is told everything."""

import inspect

import pytest

from epp.routing.director import DirectorObserver, Observers

EVENTS = sorted(name for name in dir(DirectorObserver) if not name.startswith("_"))


@pytest.mark.parametrize("event", EVENTS)
def test_every_observer_is_told_of_every_event(event):
    told = []
    watching = type("Watching", (DirectorObserver,), {event: lambda self, *given: told.append((self, given))})
    first, second = watching(), watching()
    given = tuple(inspect.signature(getattr(DirectorObserver, event)).parameters)[1:]
    getattr(Observers(first, second), event)(*given)
    assert told == [(first, given), (second, given)]
