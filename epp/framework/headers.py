# SPDX-License-Identifier: Apache-2.0
"""Headers and metadata keys of the protocol, and the headers that are removed from requests of clients.

Names are lower-case, as HTTP/2 and Envoy have them. A tuple holds the current name first, then the deprecated ones:
`Headers.first_of` reads it.
"""

import re
from collections.abc import Collection, Iterable

_MOST_SEARCHED = 4096
_SEPARATOR = "[^a-z0-9\n]"
_NOT_IN_WORDS = re.compile("[^a-z0-9]")


class Spellings:
    """Some names, and beginnings of names, whatever stands between their words."""

    def __init__(self, names: Iterable[str] = (), beginnings: Iterable[str] = ()) -> None:
        """Take lower-case names, and `beginnings` as prefixes of further names."""
        self.names = frozenset(names)
        self.beginnings = frozenset(beginnings)
        spelled = [_spelled(name) for name in sorted(self.names)]
        begun = [_spelled(beginning) for beginning in sorted(self.beginnings)]
        self._search = re.compile("|".join((*begun, *spelled)) or "(?!)").search
        """Faster than one that knows where names begin and end."""
        self.has = re.compile("|".join((*(f"{each}.*" for each in begun), *spelled)) or "(?!)", re.DOTALL).fullmatch
        """Tell whether a lower-case name is one of them."""

    def among(self, names: Collection[str]) -> list[str]:
        """Return the matching names among these lower-case names.

        One search is faster than a loop in the usual case of no match. Long input takes the loop: the search could
        take long on names that clients choose.
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
"""`ip:port` of the endpoint picked, then its fallbacks, comma-separated; a request header, and a metadata key."""
DESTINATION_SERVED = "x-gateway-destination-endpoint-served"
"""`ip:port` of the endpoint that the gateway used; a metadata key."""
ENDPOINT_SCORES = "x-gateway-destination-endpoint-scores"
"""Score of each candidate by `ip:port`; a metadata key."""
ENDPOINT_ACCELERATOR = "x-gateway-destination-endpoint-accelerator"
"""Class, or else model, of the accelerator of the endpoint picked; a metadata key, sent with the scores."""
ENDPOINT_COST = "x-gateway-destination-endpoint-cost-per-hour"
"""Price of the endpoint picked in US dollars an hour; a metadata key, sent with the scores."""
ENDPOINT_REASON = "x-gateway-destination-endpoint-reason"
"""Why it was picked, in a few words; a metadata key, sent with the scores."""
DESTINATION_NAMESPACE = "envoy.lb"
"""Metadata namespace of these six."""
SUBSET = "x-gateway-destination-endpoint-subset"
"""The `ip:port` among which to pick; a metadata key."""
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
"""Metadata namespace of the subset."""
ATTEMPT_COUNT = "x-envoy-attempt-count"
"""Which attempt at the request this is, from a gateway in front that sends requests again.

An attempt after the first, with the id, path, flow, model and prompt of an earlier one that nothing has answered,
supersedes that: it is ended with 503, and its load counts no more. Without this header, requests of one id are
independent: clients choose ids, and many use one for all requests of a trace.
"""
TRACE_CONTEXT = ("traceparent", "tracestate", "baggage")
"""The trace that the request belongs to, as W3C has it: read where requests are traced, and told to the endpoint."""
UPSTREAM_SERVICE_TIME = "x-envoy-upstream-service-time"
"""Milliseconds that an endpoint took to answer; a response header that Envoy adds to what endpoints answer."""

# From the client, for the picker.

FAIRNESS_ID = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
"""The flow that the request belongs to."""
OBJECTIVE = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
"""Name of the InferenceObjective that gives the request its priority."""
MODEL_REWRITE = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")
"""The model to ask the endpoint for, in place of the one in the body."""
SLO_TTFT_MS = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
"""Longest time to the first token, in milliseconds."""
SLO_TPOT_MS = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")
"""Longest time for each further token, in milliseconds."""
VIDEO_FPS = "x-llm-d-video-fps"
"""Frames of a second of the request's videos."""
VIDEO_DURATION = "x-llm-d-video-duration-seconds"
"""Length of the request's videos, in seconds."""
VIDEO_RESOLUTION = "x-llm-d-video-resolution"
"""`WIDTHxHEIGHT` of the request's videos, in pixels."""
ACCELERATOR_PREFIX = "x-epp-accelerator-"
"""Beginning of the names that ask for hardware."""
PROFILE = "EPP-Profile"
"""The scheduling profile to run, by default; matched in lower case."""
SESSION_ID = "x-session-id"
"""The conversation that the request belongs to, by default."""
AGENT_SESSIONS = ("x-claude-code-session-id", "x-session-affinity", "session-id", "session_id")
"""The conversation, as Claude Code, OpenCode, Codex and older versions of Codex name it."""
AUTHORIZATION = "authorization"
"""Credentials; an API key follows `Bearer`."""
API_KEYS = (AUTHORIZATION, "x-api-key", "api-key")
"""The API key of the client, as clients of OpenAI, Anthropic and Azure send it."""
DECISION_RECORD = "x-gateway-decision-record"
"""`true` to have the decision recorded; it counts only from gateways of `--trusted-gateways`."""
PREFER = "prefer"
"""Preferences of RFC 7240; with `if-available`, the request is for an endpoint that holds its KV cache, or for none."""
ENDPOINT_SELECTION = "test-epp-endpoint-selection"
"""The endpoints among which to pick; for conformance tests."""

# Between the client and the picker, both ways.

REQUEST_ID = "x-request-id"
"""Names the request in logs; made up where a request has none."""
SESSION_TOKEN = "x-session-token"  # noqa: S105  the name of a header
"""The endpoint that served the session last, encoded; the default name."""

# From the picker, for the client.

DROPPED_REASON = "x-llm-d-request-dropped-reason"
"""Why the picker refused the request."""
WENT_INTO_RESPONSE_HEADERS = "x-went-into-resp-headers"
"""`true` on each response whose headers the picker saw."""
SERVED_ENDPOINT = "x-epp-endpoint"
"""`name=host:port` of the endpoint that served, where the operator lets responses tell."""
DECISION_REASON = "x-epp-reason"
"""Why it was picked, in a few words; the same."""
CONFORMANCE_SERVED = "x-conformance-test-served-endpoint"
"""`ip:port` of the endpoint that the gateway used; for conformance tests."""

# From the picker, for the endpoint and its sidecar.

PREFILLER = "x-prefiller-host-port"
"""`ip:port` of the one endpoint that computes the prompt."""
ENCODERS = "x-encoder-hosts-ports"
"""`ip:port` of the endpoints that encode media items, comma-separated."""
DATA_PARALLEL = "x-data-parallel-host-port"
"""`ip:port` of the data-parallel rank, where the destination is another port of its pod."""
DATA_PARALLEL_RANK = "x-data-parallel-rank"
"""Number of the data-parallel rank. The picker never sets it: it picks ranks as endpoints."""
KV_CACHE_SOURCE = "x-kv-cache-source-host-port"
"""`ip:port` of the endpoint whose KV cache holds most of the prompt."""

# HTTP's own.

RETRY_AFTER = "retry-after"
"""Seconds after which a refused request may succeed, where waiting helps; a response header."""
CONTENT_LENGTH = "content-length"
"""Bytes of the body."""
METHOD = ":method"
"""The method of the request."""
PATHS = (":path", "x-original-path", "x-forwarded-path")
"""The path of the request, then what gateways call it that have rewritten it."""

OBEYED_BY_ENDPOINTS = frozenset({PREFILLER, ENCODERS, DATA_PARALLEL, DATA_PARALLEL_RANK, KV_CACHE_SOURCE})
"""Names that an endpoint or its sidecar trusts, wherever they come from."""
RESERVED = frozenset({DESTINATION, REQUEST_ID, CONTENT_LENGTH})
"""Request headers that the picker sets by itself."""

ONLY_OURS = frozenset({SERVED_ENDPOINT, DECISION_REASON})
"""Response headers that a model server's own must not pass for."""

CONTROL = Spellings(OBEYED_BY_ENDPOINTS | {*SLO_TTFT_MS, *SLO_TPOT_MS}, ("x-llm-d-", "x-gateway-", "x-epp-"))
"""Names that speak to the picker or to a sidecar: a client's must not reach the endpoint, however they are spelled."""
