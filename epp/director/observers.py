# SPDX-License-Identifier: Apache-2.0
"""Several observers of a director as one."""

from collections.abc import Callable, Sequence

from epp.director.director import DirectorObserver

_EVENTS = [name for name in dir(DirectorObserver) if not name.startswith("_")]


class Observers(DirectorObserver):
    """Tells each of them everything, in order.

    An event that one of them alone records reaches it without a call in between: there are many for each request.
    """

    def __init__(self, *observers: DirectorObserver) -> None:
        for event in _EVENTS:
            ignored = getattr(DirectorObserver, event)
            methods = [getattr(each, event) for each in observers if getattr(type(each), event) is not ignored]
            if methods:
                setattr(self, event, methods[0] if len(methods) == 1 else _all(methods))


def _all(methods: Sequence[Callable[..., None]]) -> Callable[..., None]:
    def tell(*arguments: object) -> None:
        for method in methods:
            method(*arguments)

    return tell
