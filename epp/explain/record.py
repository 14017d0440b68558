# SPDX-License-Identifier: Apache-2.0
"""The record of one decision, as JSON; the same fields are a message in `proto/decision.proto`.

Lists of endpoints are bounded, each with the number of further endpoints. No field contains text of a prompt.
"""

from typing import Literal

import msgspec

VERSION = 1
"""Incremented with each incompatible change; new fields are compatible."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A part of a record; unknown and inapplicable values are left out."""


class Asked(_Part, frozen=True, kw_only=True):
    """The request, and the decisions of policies on it."""

    path: str = ""
    model: str = ""
    target_model: str = ""
    """Set if a rewrite chose another model."""
    rewrite: str = ""
    """The rule that chose the target model."""
    objective: str = ""
    priority: int = 0
    fairness_id: str = ""
    tenant: str = ""
    size_bytes: int = 0
    """Size of the body."""
    streaming: bool = False
    subset: tuple[str, ...] = ()
    """Addresses that the gateway allows; empty for all."""
    subset_more: int = 0
    seed: str = ""
    """Seed of the random numbers, in hexadecimal digits."""
    prompt_tokens: int = 0
    """Number of tokens in the prompt, or an estimate from its length."""
    ttft_slo: float | None = None
    """Target for the seconds to the first token, from a header."""
    tpot_slo: float | None = None
    """Target for the seconds between two tokens, from a header."""


class Seen(_Part, frozen=True, kw_only=True):
    """The snapshot of the decision, and the number of endpoints left before any profile ran."""

    generation: int = 0
    age_seconds: float = 0.0
    """Time between the last change in the snapshot and the decision."""
    endpoints: int = 0
    available: int = 0
    """Number of endpoints that can be reached and are not excluded."""
    eligible: int = 0
    """Number of available endpoints in the subset of the gateway."""
    screened: int = 0
    """Number of eligible endpoints after screeners, quotas and flow control."""


class Drop(_Part, frozen=True, kw_only=True):
    endpoint: str
    reason: str = ""


class FilterStep(_Part, frozen=True, kw_only=True):
    """One filter of a profile; filters are in execution order."""

    plugin: str
    before: int
    after: int
    problem: str = ""
    """Reason that its result was not used: it failed, or kept no endpoint and fell back."""
    kept: tuple[str, ...] = ()
    kept_more: int = 0
    dropped: tuple[Drop, ...] = ()
    dropped_more: int = 0


class ScorerStep(_Part, frozen=True, kw_only=True):
    plugin: str
    weight: float
    problem: str = ""
    """Error of a failed scorer, which gave all candidates 0."""
    zero_means: str = ""
    """Meaning of a score of 0."""


class CandidateScore(_Part, frozen=True, kw_only=True):
    """A candidate that passed the filters."""

    endpoint: str
    total: float
    """Sum of the contributions."""
    scores: tuple[float, ...] = ()
    """Score of each scorer in [0, 1], in order of the scorers."""
    contributions: tuple[float, ...] = ()
    """Weight times score."""
    rank: int | None = None
    """0 for the picked endpoint, 1 for its first fallback and so on; None if it was not picked."""
    accelerator: str = ""
    """Accelerator class, or else model."""
    cost_per_hour: float | None = None
    """Dollars per hour."""
    in_flight: int | None = None
    """Number of requests of this picker in flight at the endpoint."""
    waiting: float | None = None
    """Number of requests in the queue of the endpoint, as last reported."""
    running: float | None = None
    kv_usage: float | None = None
    network_seconds: float | None = None
    """Round trip to the cluster of the endpoint, 0 for the local one; None if unknown or if all are local."""


class Failure(_Part, frozen=True, kw_only=True):
    """Error of a profile, or of the request."""

    type: str
    """The class of the error."""
    code: str = ""
    """Code in metrics."""
    status: int = 0
    reason: str = ""
    """Reason in the response to the client."""
    message: str = ""
    detail: str = ""
    """Details for operators only."""


class ProfileRun(_Part, frozen=True, kw_only=True):
    """One run of a profile; runs are in execution order."""

    name: str
    primary: bool = False
    failure: Failure | None = None
    considered: int = 0
    """Number of candidates before the filters."""
    filters: tuple[FilterStep, ...] = ()
    scorers: tuple[ScorerStep, ...] = ()
    candidates: tuple[CandidateScore, ...] = ()
    """Picked candidates in order, then the best others."""
    candidates_more: int = 0
    picker: str = ""


class Pick(_Part, frozen=True, kw_only=True):
    endpoint: str
    address: str
    fallbacks: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    """Addresses given to the gateway: the endpoint, then its fallbacks."""
    headers: tuple[str, ...] = ()
    """Names of the headers that were set for the endpoint."""
    aggregator: str = ""
    accelerator: str = ""
    """Accelerator class, or else model."""
    accelerator_model: str = ""
    policy: str = ""
    """Policy that selected the accelerator class."""
    cost_per_hour: float | None = None
    """Dollars per hour of the whole endpoint."""
    cached_share: float | None = None


class Ending(_Part, frozen=True, kw_only=True):
    cause: str
    status: int = 0
    served_endpoint: str = ""
    served_address: str = ""
    is_fallback: bool = False
    response_bytes: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    predicted_cached_tokens: int | None = None
    """Cached tokens of the prompt before the pick, from the KV events of the picked endpoint."""


class Timings(_Part, frozen=True, kw_only=True):
    """Durations in seconds."""

    queue: float = 0.0
    queue_outcome: str = ""
    scheduling: float = 0.0
    first_byte: float | None = None
    """Seconds from the complete request to the first byte of the response."""
    total: float | None = None
    """Seconds from the complete request to the end of the response, or to the refusal."""
    decision: float = 0.0
    """Seconds from the complete request to `at`, if it was routed."""


class ShadowRun(_Part, frozen=True, kw_only=True):
    profile: str
    endpoint: str = ""
    agrees: bool = False
    score_gap: float | None = None
    """Total score of the shadow pick minus that of the real pick, by the scorers of the shadow profile."""
    accelerator: str = ""
    cost_per_hour: float | None = None
    seconds: float = 0.0
    problem: str = ""
    """Reason for a missing pick."""


class Prefix(_Part, frozen=True, kw_only=True):
    """Identity of the prompt without its text: keyed hashes, comparable only within one run of one process."""

    block_tokens: int = 0
    """Number of tokens in a block, or an estimate from bytes if the picker has no tokens of the prompt."""
    blocks: tuple[int, ...] = ()
    """Hash of model, cache salt and prompt up to the end of each full block; only the first blocks."""
    session: str = ""
    """Hash of the session id, if a plugin knows it."""


class DecisionRecord(_Part, frozen=True, kw_only=True):
    version: int
    id: str
    kind: Literal["routed", "refused", "simulated"]
    request_id: str = ""
    at: str
    """Time in UTC, in the format of RFC 3339."""
    recorded_for: str = ""
    """Reason for recording it: `sampled`, `asked`, `failed`."""
    config_generation: int = 0
    asked: Asked
    seen: Seen | None = None
    profiles: tuple[ProfileRun, ...] = ()
    pick: Pick | None = None
    failure: Failure | None = None
    ending: Ending | None = None
    """None until the response has ended."""
    timings: Timings = msgspec.field(default_factory=Timings)
    shadows: tuple[ShadowRun, ...] = ()
    why: str = ""
    """Summary of the decision."""
    prefix: Prefix | None = None
    """Set only with `--decision-file-prefixes`."""
