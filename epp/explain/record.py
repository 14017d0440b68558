# SPDX-License-Identifier: Apache-2.0
"""The record of one decision, as JSON; the same fields are a message in `proto/decision.proto`.

Lists of endpoints are bounded; a number beside each says how many more there were. No field holds text of a prompt.
"""

from typing import Literal

import msgspec

VERSION = 1
"""Raised with a change that readers of older records could trip over; new fields are none."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A part of a record; what is unknown, or does not apply, is left out."""


class Asked(_Part, frozen=True, kw_only=True):
    """What was asked for, and what policies made of it."""

    path: str = ""
    model: str = ""
    target_model: str = ""
    """Where a rewrite chose another one."""
    rewrite: str = ""
    """The rule that chose it."""
    objective: str = ""
    priority: int = 0
    fairness_id: str = ""
    tenant: str = ""
    size_bytes: int = 0
    """Of the body."""
    streaming: bool = False
    subset: tuple[str, ...] = ()
    """Addresses that the gateway allows, where it names some."""
    subset_more: int = 0
    seed: str = ""
    """Of the random draws, in hexadecimal digits."""


class Seen(_Part, frozen=True, kw_only=True):
    """The snapshot that was decided on, and how many endpoints were left before any profile ran."""

    generation: int = 0
    age_seconds: float = 0.0
    """Time from the last change in it to the decision."""
    endpoints: int = 0
    available: int = 0
    """Endpoints of these that can be reached and are not excluded."""
    eligible: int = 0
    """Endpoints of these in the gateway's subset."""
    screened: int = 0
    """Endpoints of these after screeners, quotas and flow control."""


class Drop(_Part, frozen=True, kw_only=True):
    """An endpoint that a filter dropped."""

    endpoint: str
    reason: str = ""


class FilterStep(_Part, frozen=True, kw_only=True):
    """One filter, in the order in which they ran."""

    plugin: str
    before: int
    after: int
    problem: str = ""
    """Why it was skipped, or kept all: it failed, or left none and falls back."""
    kept: tuple[str, ...] = ()
    kept_more: int = 0
    dropped: tuple[Drop, ...] = ()
    dropped_more: int = 0


class ScorerStep(_Part, frozen=True, kw_only=True):
    """One scorer."""

    plugin: str
    weight: float
    problem: str = ""
    """Its error, where it failed and gave all candidates 0."""
    zero_means: str = ""
    """What a score of 0 says of an endpoint."""


class CandidateScore(_Part, frozen=True, kw_only=True):
    """A candidate that passed the filters."""

    endpoint: str
    total: float
    """The sum of its contributions."""
    scores: tuple[float, ...] = ()
    """Of each scorer, in their order, in [0, 1]."""
    contributions: tuple[float, ...] = ()
    """Weight times score."""
    rank: int | None = None
    """0 for the endpoint picked, 1 for its first fallback and so on; None where it was not picked."""
    accelerator: str = ""
    """Class, or else model."""
    cost_per_hour: float | None = None
    """Dollars."""
    in_flight: int | None = None
    """Requests of this picker there, at the decision."""
    waiting: float | None = None
    """Requests in its queue, as it reported."""
    running: float | None = None
    kv_usage: float | None = None


class Failure(_Part, frozen=True, kw_only=True):
    """Why a profile, or a whole request, came to nothing."""

    type: str
    """The class of the error."""
    code: str = ""
    """As metrics have it."""
    status: int = 0
    reason: str = ""
    """The drop reason that the client is told."""
    message: str = ""
    detail: str = ""
    """For operators only."""


class ProfileRun(_Part, frozen=True, kw_only=True):
    """One profile, in the order in which they ran."""

    name: str
    primary: bool = False
    failure: Failure | None = None
    considered: int = 0
    """Candidates before its filters."""
    filters: tuple[FilterStep, ...] = ()
    scorers: tuple[ScorerStep, ...] = ()
    candidates: tuple[CandidateScore, ...] = ()
    """The picked ones in order, then the best others."""
    candidates_more: int = 0
    picker: str = ""


class Pick(_Part, frozen=True, kw_only=True):
    """Where the request was sent."""

    endpoint: str
    address: str
    fallbacks: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    """As the gateway was told: that of the endpoint, then those of the fallbacks."""
    headers: tuple[str, ...] = ()
    """Names of the headers that were set for the endpoint."""
    aggregator: str = ""
    accelerator: str = ""
    """Class, or else model."""
    accelerator_model: str = ""
    policy: str = ""
    """By which a class was selected: what was asked for, where it was asked for."""
    cost_per_hour: float | None = None
    """Dollars, of the whole endpoint."""
    cached_share: float | None = None


class Ending(_Part, frozen=True, kw_only=True):
    """How it ended."""

    cause: str
    status: int = 0
    served_endpoint: str = ""
    served_address: str = ""
    is_fallback: bool = False
    response_bytes: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None


class Timings(_Part, frozen=True, kw_only=True):
    """Seconds."""

    queue: float = 0.0
    queue_outcome: str = ""
    scheduling: float = 0.0
    first_byte: float | None = None
    """From the complete request."""
    total: float | None = None
    """From the complete request to the end of the response, or to the refusal."""


class ShadowRun(_Part, frozen=True, kw_only=True):
    """What another profile would have done."""

    profile: str
    endpoint: str = ""
    agrees: bool = False
    score_gap: float | None = None
    """Total of its pick less that of the real one, by its own scorers; 0 where they agree."""
    accelerator: str = ""
    cost_per_hour: float | None = None
    seconds: float = 0.0
    problem: str = ""
    """Why it has no pick."""


class DecisionRecord(_Part, frozen=True, kw_only=True):
    """One decision."""

    version: int
    id: str
    kind: Literal["routed", "refused", "simulated"]
    request_id: str = ""
    at: str
    """UTC, as in RFC 3339."""
    recorded_for: str = ""
    """Why it was recorded: `sampled`, `asked`, `failed`."""
    config_generation: int = 0
    asked: Asked
    seen: Seen | None = None
    profiles: tuple[ProfileRun, ...] = ()
    pick: Pick | None = None
    failure: Failure | None = None
    ending: Ending | None = None
    """None while the response is under way."""
    timings: Timings = msgspec.field(default_factory=Timings)
    shadows: tuple[ShadowRun, ...] = ()
    why: str = ""
    """In a few words."""
