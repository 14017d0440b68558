# SPDX-License-Identifier: Apache-2.0
"""Headers and metadata keys of the protocol, and the headers that are removed from requests of clients.

Names are in lower case, as in HTTP/2 and Envoy. A tuple has the current name first, then deprecated ones, as
`Headers.first_of` reads it.
"""

import re
from collections.abc import Collection, Iterable

_MOST_SEARCHED = 4096
_SEPARATOR = "[^a-z0-9\n]"
_NOT_IN_WORDS = re.compile("[^a-z0-9]")


class Spellings:
    """Set of names and prefixes of names, with any separators between words."""

    def __init__(self, names: Iterable[str] = (), beginnings: Iterable[str] = ()) -> None:
        """Compile lower-case names, and prefixes (`beginnings`) of further names."""
        self.names = frozenset(names)
        self.beginnings = frozenset(beginnings)
        spelled = [_spelled(name) for name in sorted(self.names)]
        begun = [_spelled(beginning) for beginning in sorted(self.beginnings)]
        self._search = re.compile("|".join((*begun, *spelled)) or "(?!)").search
        """Search without boundaries of names, which is faster."""
        self.has = re.compile("|".join((*(f"{each}.*" for each in begun), *spelled)) or "(?!)", re.DOTALL).fullmatch
        """Match a lower-case name."""

    def among(self, names: Collection[str]) -> list[str]:
        """Return the matching names among these lower-case names.

        In the usual case of no match, one search is faster than a loop. Long input takes the loop, because the search
        could take long on names that clients choose.
        """
        text = "\n".join(names)
        if len(text) <= _MOST_SEARCHED and self._search(text) is None:
            return []
        has = self.has
        return [name for name in names if has(name)]

    def beside(self, names: Iterable[str]) -> "Spellings":
        return Spellings(self.names.union(names), self.beginnings)


def _spelled(name: str) -> str:
    return _SEPARATOR.join(map(re.escape, _NOT_IN_WORDS.split(name)))


# Between the gateway and the picker.

DESTINATION = "x-gateway-destination-endpoint"
"""`ip:port` of the picked endpoint, then its fallbacks, comma-separated; a request header, and a metadata key."""
DESTINATION_SERVED = "x-gateway-destination-endpoint-served"
"""`ip:port` of the endpoint that the gateway used; a metadata key."""
ENDPOINT_SCORES = "x-gateway-destination-endpoint-scores"
"""Score of each candidate by `ip:port`; a metadata key."""
ENDPOINT_ACCELERATOR = "x-gateway-destination-endpoint-accelerator"
"""Class, or else model, of the accelerator of the picked endpoint; a metadata key, sent with the scores."""
ENDPOINT_COST = "x-gateway-destination-endpoint-cost-per-hour"
"""Price of the picked endpoint in US dollars an hour; a metadata key, sent with the scores."""
ENDPOINT_REASON = "x-gateway-destination-endpoint-reason"
"""Reason for the pick, in a few words; a metadata key, sent with the scores."""
DESTINATION_NAMESPACE = "envoy.lb"
"""Metadata namespace of these six keys."""
SUBSET = "x-gateway-destination-endpoint-subset"
"""`ip:port` of the endpoints among which to pick; a metadata key."""
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
"""Metadata namespace of the subset."""
ATTEMPT_COUNT = "x-envoy-attempt-count"
"""Number of the attempt, from a gateway that retries requests.

A retry supersedes an earlier attempt with the same id, path, flow, model and prompt if that has no response yet: the
earlier attempt ends with 503, and its load no longer counts. Without this header, requests with the same id are
independent, because clients choose ids and many use one id for all requests of a trace.
"""
TRACE_CONTEXT = ("traceparent", "tracestate", "baggage")
"""W3C trace context of the request; with tracing, it is read and sent to the endpoint."""
UPSTREAM_SERVICE_TIME = "x-envoy-upstream-service-time"
"""Milliseconds until the endpoint responded; a response header that Envoy adds."""

# From the client, for the picker.

FAIRNESS_ID = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
"""Flow of the request."""
OBJECTIVE = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
"""Name of the InferenceObjective that gives the request its priority."""
MODEL_REWRITE = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")
"""Model to request from the endpoint instead of the one in the body."""
SLO_TTFT_MS = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
"""Target for the time to the first token, in milliseconds."""
SLO_TPOT_MS = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")
"""Target for the time of each further token, in milliseconds."""
VIDEO_FPS = "x-llm-d-video-fps"
"""Frames per second of the request's videos."""
VIDEO_DURATION = "x-llm-d-video-duration-seconds"
"""Length of the request's videos, in seconds."""
VIDEO_RESOLUTION = "x-llm-d-video-resolution"
"""`WIDTHxHEIGHT` of the request's videos, in pixels."""
ACCELERATOR_PREFIX = "x-epp-accelerator-"
"""Prefix of headers that select hardware."""
PROFILE = "EPP-Profile"
"""Scheduling profile to run (default name of the header); matched in lower case."""
SESSION_ID = "x-session-id"
"""Conversation of the request (default name of the header)."""
AGENT_SESSIONS = ("x-claude-code-session-id", "x-session-affinity", "session-id", "session_id")
"""Conversation of a request of Claude Code, OpenCode, Codex and older versions of Codex."""
AUTHORIZATION = "authorization"
"""Credentials; an API key follows `Bearer`."""
API_KEYS = (AUTHORIZATION, "x-api-key", "api-key")
"""API key in requests of OpenAI, Anthropic and Azure clients."""
DECISION_RECORD = "x-gateway-decision-record"
"""`true` to record the decision; accepted only from gateways in `--trusted-gateways`."""
PREFER = "prefer"
"""Preferences of RFC 7240; with `if-available`, the request fails unless an endpoint holds its KV cache."""
ENDPOINT_SELECTION = "test-epp-endpoint-selection"
"""Endpoints among which to pick; for conformance tests."""

# Between the client and the picker, both ways.

REQUEST_ID = "x-request-id"
"""Id of the request in logs; generated if the request has none."""
SESSION_TOKEN = "x-session-token"  # noqa: S105  the name of a header
"""Encoded endpoint that served the session last (default name of the header)."""

# From the picker, for the client.

DROPPED_REASON = "x-llm-d-request-dropped-reason"
"""Reason for which the picker refused the request."""
WENT_INTO_RESPONSE_HEADERS = "x-went-into-resp-headers"
"""`true` on each response whose headers the picker processed."""
SERVED_ENDPOINT = "x-epp-endpoint"
"""`name=host:port` of the endpoint that served the request, if the operator allows it."""
DECISION_REASON = "x-epp-reason"
"""Reason for the pick, in a few words, if the operator allows it."""
CONFORMANCE_SERVED = "x-conformance-test-served-endpoint"
"""`ip:port` of the endpoint that the gateway used; for conformance tests."""

# From the picker, for the endpoint and its sidecar.

PREFILLER = "x-prefiller-host-port"
"""`ip:port` of the endpoint that computes the prompt."""
ENCODERS = "x-encoder-hosts-ports"
"""`ip:port` of the endpoints that encode media items, comma-separated."""
DATA_PARALLEL = "x-data-parallel-host-port"
"""`ip:port` of the data-parallel rank, if the destination is another port of its pod."""
DATA_PARALLEL_RANK = "x-data-parallel-rank"
"""Number of the data-parallel rank. The picker never sets it, because each rank is an endpoint."""
KV_CACHE_SOURCE = "x-kv-cache-source-host-port"
"""`ip:port` of the endpoint whose KV cache holds most of the prompt."""

# HTTP headers.

RETRY_AFTER = "retry-after"
"""Seconds after which a refused request may succeed; a response header."""
CONTENT_LENGTH = "content-length"
"""Bytes of the body."""
METHOD = ":method"
"""Method of the request."""
PATHS = (":path", "x-original-path", "x-forwarded-path")
"""Path of the request, then headers with the original path from gateways that rewrite it."""

OBEYED_BY_ENDPOINTS = frozenset({PREFILLER, ENCODERS, DATA_PARALLEL, DATA_PARALLEL_RANK, KV_CACHE_SOURCE})
"""Headers that an endpoint or its sidecar trusts from any sender."""
RESERVED = frozenset({DESTINATION, REQUEST_ID, CONTENT_LENGTH})
"""Request headers that only the picker itself sets."""

ONLY_OURS = frozenset({SERVED_ENDPOINT, DECISION_REASON})
"""Response headers that are removed if a model server sets them."""

CONTROL = Spellings(OBEYED_BY_ENDPOINTS | {*SLO_TTFT_MS, *SLO_TPOT_MS}, ("x-llm-d-", "x-gateway-", "x-epp-"))
"""Headers for the picker or a sidecar, in any spelling; those of a client must not reach the endpoint."""
