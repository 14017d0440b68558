# SPDX-License-Identifier: Apache-2.0
"""Parts of `/healthz`. A part without news is empty."""

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


def of_waiting(line: QueueStatus | None, now: float) -> Mapping[str, object]:
    """Return the waiting requests of flow control; empty if it is off."""
    if line is None:
        return {}
    longest = 0.0 if line.since is None else max(0.0, now - line.since)
    return {"queued": {"requests": line.requests, "bytes": line.size_bytes, "longest_seconds": round(longest, 1)}}


def of_budgets(budgets: Budgets) -> Mapping[str, object]:
    """Return the budgets that had no room for something."""
    spent = {
        each.name: {"used": each.used, "limit": each.limit, "refusals": each.refusals}
        for each in budgets
        if each.refusals
    }
    return {"budgets_used_up": spent} if spent else {}


def of_quotas(alerts: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
    """Return the limits of quotas that are almost used up."""
    return {"quota_alerts": alerts[:MAX_ROWS], "quotas_almost_used_up": len(alerts)} if alerts else {}


def of_decision_file(file: DecisionFile | None) -> Mapping[str, object]:
    """Return why records of decisions are not written."""
    return {"decision_file": {"problem": file.problem, "lost": file.lost}} if file and file.problem else {}


def of_shadows(problems: Sequence[Mapping[str, str]]) -> Mapping[str, object]:
    """Return the shadow profiles that do not run any more."""
    return {"shadow_profiles_disabled": problems} if problems else {}


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
