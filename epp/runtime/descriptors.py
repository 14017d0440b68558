# SPDX-License-Identifier: Apache-2.0
"""File descriptors of this process: their limit, and the share of it that polling leaves to everything else."""

import contextlib
import errno
import sys

_RESERVE = 256
"""For connections of gateways and scrapers, and for files; half of a limit that is lower than twice that."""
_BRIEF_SHARE = 8
_PORT_SHARE = 8
_OWN = 32
"""Listeners, pipes and the like that a picker opens at its start."""
NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})
"""Error numbers for no descriptor left."""


def raise_limit() -> None:
    """Raise the soft limit to the hard limit, if the platform allows it."""
    if sys.platform != "win32":
        import resource  # noqa: PLC0415  not to be had on Windows

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def limit() -> int | None:
    """Return how many descriptors this process may have; None for no limit."""
    if sys.platform == "win32":
        return None
    import resource  # noqa: PLC0415  not to be had on Windows

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def share_of_limit(wanted: int) -> int:
    """Return how many connections a port may have that is not for requests: as wanted, an eighth of all at most."""
    most = limit()
    return wanted if most is None else max(min(wanted, most // _PORT_SHARE), 1)


def gateway_connections(wanted: int) -> int:
    """Return how many connections gateways may have: as wanted, half of all at most.

    With more, a new connection would find no descriptor before an idle one is made to give way.
    """
    most = limit()
    return wanted if most is None else max(min(wanted, most // 2), 1)


def shortage(connections: int) -> str | None:
    """Say what is missing to keep so many connections open for polling; None where nothing is."""
    most, bound = limit(), polling_bound(kept=True)
    if most is None or bound is None or connections <= bound - _OWN:
        return None
    remedy = connections + _RESERVE + _RESERVE // _BRIEF_SHARE + _OWN
    return (
        f"polling needs {connections} connections, the limit of {most} file descriptors leaves {max(bound - _OWN, 0)}, "
        f"with {_reserve(most)} kept for listeners and files: endpoints without a connection are polled in turns, less "
        f"often; raise the limit to {remedy} or more (ulimit -n, LimitNOFILE of a systemd unit)"
    )


def polling_bound(*, kept: bool) -> int | None:
    """Return the number that the descriptors of polling stay below; None for no limit.

    A new descriptor has the lowest number that is free, so all from the bound on are left to others. The bound is lower
    for connections that are `kept`: endpoints for which there is none share the rest in turns.
    """
    most = limit()
    if most is None:
        return None
    reserve = _reserve(most)
    return most - reserve - (reserve // _BRIEF_SHARE if kept else 0)


def _reserve(most: int) -> int:
    return min(_RESERVE, most // 2)
