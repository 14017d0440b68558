# SPDX-License-Identifier: Apache-2.0
"""Objectives and model rewrites of a pool, and the priority and model that they give a request."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from epp.framework.headers import MODEL_REWRITE, OBJECTIVE
from epp.framework.quotas import Tenant
from epp.framework.request import Request

_REWRITE_DRAW = "model-rewrite"


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One rule of an InferenceModelRewrite: the models among which it shares out the requests that it is for."""

    name: str
    """Name of the object."""
    generic: bool = False
    """Whether it is for any model, as opposed to one that it names."""
    models: tuple[str, ...] = ()
    """Empty for a rule that leaves the model as it is: its targets are invalid."""
    weights: tuple[int, ...] = ()
    """Share of each model, 1 or more."""
    _limits: tuple[int, ...] = field(init=False, repr=False)
    """Sums of the weights up to each model."""

    def __post_init__(self) -> None:
        """Derive the limits."""
        object.__setattr__(self, "_limits", tuple(accumulate(self.weights)))

    def model_at(self, share: float) -> str:
        """Return the model for a number in [0, 1); empty where the rule leaves the model as it is."""
        if not self.models:
            return ""
        index = bisect_right(self._limits, share * self._limits[-1])
        return self.models[min(index, len(self.models) - 1)]


@dataclass(frozen=True, slots=True)
class PoolPolicies:
    """All policies of a pool at one moment; immutable, its mappings included."""

    priorities: Mapping[str, int] = field(default_factory=dict)
    """Priority of each objective by name."""
    exact: Mapping[str, Rewrite] = field(default_factory=dict)
    """The rule for each model that a rule names."""
    generic: Rewrite | None = None
    """The rule for all other models, and for requests that name none."""

    def rewrite_of(self, model: str) -> Rewrite | None:
        """Return the rule for requests for a model; None for none."""
        return self.exact.get(model, self.generic)


NO_POLICIES = PoolPolicies()
"""No objectives, no rewrites."""


def give_priority(request: Request, policies: PoolPolicies) -> None:
    """Set the priority by the objective that the request names; 0 if it names none, or one that is unknown."""
    if not policies.priorities:
        return
    objective = request.headers.first_of(*OBJECTIVE) or ""
    priority = policies.priorities.get(objective)
    if objective and priority is not None:
        request.priority, request.objective = priority, objective


def assign_priority(request: Request, tenant: Tenant) -> None:
    """Let the tenant name the flow; its priority holds without an objective, and its highest one bounds any."""
    request.fairness_id = tenant.name
    if tenant.priority is not None and not request.objective:
        request.priority = tenant.priority
    if tenant.highest_priority is not None and request.priority > tenant.highest_priority:
        request.priority = tenant.highest_priority


def choose_model(request: Request, policies: PoolPolicies) -> Rewrite | None:
    """Set the model to ask for: by a rule for the one in the body, or else by the header; return the rule."""
    request.target_model = request.headers.first_of(*MODEL_REWRITE) or ""
    rewrite = policies.rewrite_of(request.body.model)
    model = "" if rewrite is None else rewrite.model_at(request.uniform(_REWRITE_DRAW))
    if rewrite is None or not model:
        return None
    request.target_model, request.rewritten_by = model, rewrite.name
    return rewrite
