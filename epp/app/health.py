# SPDX-License-Identifier: Apache-2.0
"""Parts of `/healthz`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from epp.explain.storage import DecisionFile
from epp.extproc.budgets import Budgets
from epp.framework.plugin_status import HasInputs
from epp.routing.director.overload import QueueStatus
from epp.telemetry.endpoints import MAX_ROWS, EndpointState


def of_endpoints(states: Sequence[EndpointState]) -> Mapping[str, object]:
    """Return the number of endpoints, how many are reachable, and some that need attention."""
    unreachable = [state for state in states if not state.used]
    return {
        "endpoints": len(states),
        "reachable": len(states) - len(unreachable),
        "unreachable": [state.as_fields() for state in unreachable[:MAX_ROWS]],
        "attention": [state.as_fields() for state in states if state.used and state.needs_attention][:MAX_ROWS],
    }


def news(
    *,
    line: QueueStatus | None,
    now: float,
    budgets: Budgets,
    alerts: Sequence[Mapping[str, object]],
    file: DecisionFile | None,
    shadows: Sequence[Mapping[str, str]],
) -> Mapping[str, object]:
    """Return the parts that are there only while they have something to tell.

    These are the waiting requests of flow control, budgets that had no room for something, limits of quotas that are
    almost used up, decision records that are not written, and shadow profiles that do not run any more.
    """
    found: dict[str, object] = {}
    if line is not None:
        longest = 0.0 if line.since is None else max(0.0, now - line.since)
        found["queued"] = {"requests": line.requests, "bytes": line.size_bytes, "longest_seconds": round(longest, 1)}
    if spent := [each for each in budgets if each.refusals]:
        found["budgets_used_up"] = {
            each.name: {"used": each.used, "limit": each.limit, "refusals": each.refusals} for each in spent
        }
    if alerts:
        found |= {"quota_alerts": alerts[:MAX_ROWS], "quotas_almost_used_up": len(alerts)}
    if file is not None and file.problem:
        found["decision_file"] = {"problem": file.problem, "lost": file.lost}
    if shadows:
        found["shadow_profiles_disabled"] = shadows
    return found


def of_inputs(owners: Sequence[HasInputs]) -> Mapping[str, object]:
    """Return what of files and objects is not in effect."""
    return {
        "not_in_effect": [
            {"plugin": owner.name, **asdict(problem)} for owner in owners for problem in owner.inputs.problems
        ],
        "ignored_values": [
            {"plugin": owner.name, **asdict(value)} for owner in owners for value in owner.inputs.ignored[:MAX_ROWS]
        ],
    }
