# SPDX-License-Identifier: Apache-2.0
"""Explanation of a routing decision, computed on demand from the scheduling result."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from epp.admission.flow_control.settings import QUEUEING_OUTCOME
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.arrays import Floats
from epp.framework.candidates import Candidates
from epp.framework.endpoint import Endpoint
from epp.framework.headers import OBJECTIVE
from epp.framework.messages import printable
from epp.framework.request import CACHED_TOKENS_PREDICTED, PREFIX_MATCH, PROMPT_TOKENS, Request
from epp.framework.result import FilterTrace, ProfileResult, SchedulingResult
from epp.framework.snapshot import ACCELERATOR

_MOST_NAME = 32
_MOST_WHY = 160
_EQUAL = 1e-9


@dataclass(frozen=True, slots=True)
class Decision:
    """A request and its scheduling result, by reference."""

    request: Request
    result: SchedulingResult

    @property
    def endpoint(self) -> Endpoint:
        return self.result.targets[0]

    @property
    def cached_share(self) -> float | None:
        """Expected share of the prompt in the endpoint's KV cache; None if unknown."""
        predicted, tokens = self.request.get(CACHED_TOKENS_PREDICTED), self.request.prompt_tokens
        if predicted is not None and tokens:
            return min(1.0, predicted / tokens)
        match = self.request.get(PREFIX_MATCH)
        if match is None or not match.total_blocks:
            return None
        return float(match.matched_blocks[self.result.primary.slot]) / match.total_blocks

    @property
    def accelerator(self) -> str:
        """Class, or else model, of the endpoint's accelerator; empty if unknown."""
        tag = self.tag
        return tag.primary_class or tag.model

    @property
    def cost_per_hour(self) -> float | None:
        return self.tag.cost_per_hour()

    @property
    def tag(self) -> AcceleratorTag:
        primary = self.result.primary
        return primary.candidates.snapshot.records(ACCELERATOR).values[primary.slot]

    @property
    def unknown_objective(self) -> bool:
        """Whether the request names an objective that the pool does not have: its priority is 0."""
        return not self.request.objective and bool(self.request.headers.first_of(*OBJECTIVE))

    def scores(self, most: int = 2) -> dict[str, float]:
        """Scores of the endpoint by scorer, farthest from the candidates' mean first; empty if all scores are equal."""
        leads: list[tuple[float, str, float]] = []
        picked = self.result.primary.picked[0]
        for trace in self.result.primary.scores:
            score = float(trace.scores[picked])
            lead = trace.weight * (score - float(np.add.reduce(trace.scores)) / len(trace.scores))
            if abs(lead) > _EQUAL:
                leads.append((lead, trace.plugin, score))
        leads.sort(key=lambda found: -found[0])
        return {name: score for _, name, score in leads[:most]}

    def why(self, served: Endpoint | None = None, scores: Mapping[str, float] | None = None) -> str:
        """Return a short reason in ASCII, without text from the client.

        `served` is the endpoint that served the request, possibly a fallback. `scores` is the result of the method
        `scores`, if the caller has it.
        """
        primary = self.result.primary
        choice = self._choice(primary, self.scores() if scores is None else scores)
        reasons = [f"{printable(primary.profile, _MOST_NAME)}: {choice}"]
        cached = self.cached_share
        if cached is not None:
            reasons.append(f"{cached:.0%} cached")
        tokens = self.request.get(PROMPT_TOKENS)
        if tokens is not None and tokens.no_ids:
            reasons.append(f"no token ids: {printable(tokens.no_ids, _MOST_NAME)}")
        reasons.extend(self._others())
        queueing = self.request.get(QUEUEING_OUTCOME)
        if queueing is not None and queueing.waited:
            reasons.append(f"queued {queueing.seconds:.3f} s")
        if served is not None and served.name != self.endpoint.name:
            reasons.append(f"fallback from {printable(self.endpoint.name, _MOST_NAME)}")
        elif self.accelerator:
            reasons.append(f"on {printable(self.accelerator, _MOST_NAME)}")
        if self.request.rewritten_by:
            reasons.append(f"model chosen by {printable(self.request.rewritten_by, _MOST_NAME)}")
        if self.unknown_objective:
            reasons.append("unknown objective")
        text = printable("; ".join(reasons), _MOST_WHY)
        return text if text.isascii() else printable(text.encode("ascii", "backslashreplace").decode(), _MOST_WHY)

    def _choice(self, primary: ProfileResult, scores: Mapping[str, float]) -> str:
        left = len(primary.candidates)
        narrowest = max(primary.filters, key=_dropped, default=None)
        by = ""
        if narrowest is not None and _dropped(narrowest):
            by = f" of {primary.filters[0].before} after {printable(narrowest.plugin, _MOST_NAME)}"
        if left == 1:
            return f"the only one{by or ' there is'}"
        if not scores:
            return f"equal scores of {left}{by}"
        named = ", ".join(f"{printable(name, _MOST_NAME)} {score:.2f}" for name, score in scores.items())
        total, best = float(primary.totals[primary.picked[0]]), float(primary.totals.max())
        rank = "best" if total >= best - _EQUAL else "not the best"
        return f"{named}, {rank} of {left}{by}"

    def _others(self) -> Iterator[str]:
        """Yield the picks of the other profiles, such as the prefill endpoint."""
        for name, leg in self.result.profiles.items():
            if name == self.result.primary.profile:
                continue
            picked = "none" if leg is None else printable(leg.targets[0].name, _MOST_NAME)
            yield f"{printable(name, _MOST_NAME)} {picked}"


def top_values(candidates: Candidates, values: Floats, most: int = 3) -> dict[str, float]:
    """Return the largest values by endpoint, in descending order, without a loop over the candidates."""
    count = min(most, len(values))
    positions = np.argpartition(-values, count - 1)[:count]
    ordered = positions[np.argsort(-values[positions], kind="stable")]
    return {candidates[int(position)].name: float(values[position]) for position in ordered}


def _dropped(trace: FilterTrace) -> int:
    return trace.before - trace.after
