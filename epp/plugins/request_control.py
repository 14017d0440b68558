# SPDX-License-Identifier: Apache-2.0
"""Sessions of requests, admission by load, reported values, conformance tests, and data sources for notifications."""

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from math import exp, isfinite, log
from typing import Any

import numpy as np

from epp.framework import (
    AGENT_IDENTITY,
    KV_USAGE,
    SESSION_ID,
    WAITING,
    Admitter,
    Candidates,
    Filter,
    Headers,
    Mask,
    Metadata,
    MetadataValue,
    Name,
    Parameters,
    Positive,
    Producer,
    Request,
    RequestHeaders,
    Response,
    ResponseHeaders,
    ResponseReporter,
    Usage,
    headers,
)
from epp.framework.arrays import any_true, everyone
from epp.framework.candidates import Subset
from epp.framework.cluster_objects import ObjectKind, ObjectNotifications
from epp.framework.datalayer import EndpointNotifications
from epp.framework.headers import CONFORMANCE_SERVED, DESTINATION_NAMESPACE, ENDPOINT_SELECTION
from epp.framework.messages import install_command
from epp.framework.plugin import Stability
from epp.framework.refusals import SheddableDroppedError
from epp.framework.session_affinity import SessionAffinity, SessionAffinityParameters


class SessionIdParameters(Parameters, frozen=True):
    """Source of the session id: a header or a cookie."""

    header_name: str = ""
    """Name of the request header; `x-session-id` if neither is given."""
    cookie_name: str = ""
    """Name of the cookie, case-sensitive."""

    def __post_init__(self) -> None:
        if self.header_name and self.cookie_name:
            raise ValueError(
                f"headerName is {self.header_name!r} and cookieName is {self.cookie_name!r}; leave one of them out"
            )


class SessionIdProducer(Producer[SessionIdParameters]):
    """Publishes the value of a header or cookie, unless it is empty, as the request's session id."""

    plugin_type = "session-id-producer"

    def setup(self) -> None:
        self._key = SESSION_ID.produced_by(self.name)
        self._header = (self.parameters.header_name or headers.SESSION_ID).lower()
        self.writes = (self._key,)

    def produce(self, request: Request, candidates: Candidates) -> None:
        wanted = self.parameters.cookie_name
        session = cookie(request.headers, wanted) if wanted else request.headers.get(self._header)
        if session:
            request.put(self._key, session)


def cookie(fields: Headers, name: str) -> str:
    """Return the first non-empty value of a cookie, without quotes; empty if there is none.

    Cookies may come in several fields; malformed ones are skipped.
    """
    for field, value in fields.fields():
        if field == "cookie":
            for pair in value.split(";"):
                found, _, content = pair.partition("=")
                if found.strip() == name and (unquoted := content.strip().strip('"')):
                    return unquoted
    return ""


class AgentIdentityParameters(Parameters, frozen=True):
    """Further headers that identify an agent."""

    additional_session_headers: tuple[Name, ...] = ()
    """Headers of other agents; tried in this order, before the known ones."""


class AgentIdentity(RequestHeaders[AgentIdentityParameters]):
    """Publishes the first known session header that is not empty as the request's agent identity.

    The headers are, in this order: `additionalSessionHeaders`, `x-claude-code-session-id`, `x-session-affinity`,
    `session-id`, `session_id`. It is also the fairness id of a request without a fairness header.
    """

    plugin_type = "agent-identity"
    writes = (AGENT_IDENTITY,)

    def setup(self) -> None:
        self._headers = (*map(str.lower, self.parameters.additional_session_headers), *headers.AGENT_SESSIONS)

    def request_headers(self, request: Request) -> None:
        for name in self._headers:
            identity = request.headers.get(name)
            if identity:
                request.put(AGENT_IDENTITY, identity)
                return


class SessionAffinityFilterParameters(SessionAffinityParameters, frozen=True):
    """Recognition of sessions."""

    fallback_on_empty: bool = False
    """Without effect: this filter always keeps an endpoint."""


class SessionAffinityFilter(SessionAffinity[SessionAffinityFilterParameters], Filter[Any]):
    """Keeps the endpoint that last served the request's session, or all endpoints if it is not a candidate.

    With tokens, the response header is the base64 of `namespace/name` of the endpoint that served the request, which
    may be a fallback. With session ids, a session belongs to the endpoint chosen last, and the response gets no header.
    A malformed token is ignored.
    """

    plugin_type = "session-affinity-filter"
    may_empty = False
    drop_means = "did not serve this session last"

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        bound = self.bound(request, candidates)
        return bound if any_true(bound) else everyone(len(candidates))


class MultiClusterSessionAffinityFilter(SessionAffinityFilter):
    """Keeps the cluster that last served the request's session, as `session-affinity-filter` does for endpoints."""

    plugin_type = "multicluster-session-affinity-filter"
    stability = Stability.ALPHA


class ProbabilisticAdmitterParameters(Parameters, frozen=True):
    """Thresholds of a full engine, and the shape of the probability."""

    queue_depth_threshold: Positive = 5.0
    """Requests in an engine's queue at which it is full."""
    kv_cache_util_threshold: Positive = 0.8
    """Share of an engine's KV cache in use, 0..1, at which it is full."""
    power: Positive = 5.0
    """Steepness: with a higher value, the probability rises later and more abruptly."""
    k: Positive = 300.0
    """Factor: the probability is 1 from a saturation of `(1/k)^(1/power)`, 0.32 by default."""


class ProbabilisticAdmitter(Admitter[ProbabilisticAdmitterParameters]):
    """Refuses requests of negative priority with probability `min(saturation^power * k, 1)`.

    The saturation is the mean over the candidates of `max(waiting / queueDepthThreshold, kv / kvCacheUtilThreshold)`.
    If one value is unknown, the other counts; candidates with neither are left out. Without any metrics, all requests
    are admitted.
    """

    plugin_type = "probabilistic-admitter"
    reads = (WAITING, KV_USAGE)

    @property
    def warnings(self) -> Sequence[str]:
        threshold = self.parameters.kv_cache_util_threshold
        if threshold <= 1:
            return ()
        return (f"kvCacheUtilThreshold is {threshold:g}, above a full KV cache: write a share up to 1",)

    def admit(self, request: Request, candidates: Candidates) -> None:
        if request.priority < 0 and request.uniform(self.plugin_type) < self.probability(candidates):
            raise SheddableDroppedError

    def probability(self, candidates: Candidates) -> float:
        """Return the probability with which a sheddable request is refused."""
        fullness = np.fmax(
            candidates.values(WAITING) / self.parameters.queue_depth_threshold,
            candidates.values(KV_USAGE) / self.parameters.kv_cache_util_threshold,
        )
        known = fullness[~np.isnan(fullness)]
        saturation = float(known.mean()) if len(known) else 0.0
        if saturation <= 0:
            return 0.0
        # As logarithms: a power of a long queue may exceed the range of floats.
        return exp(min(0.0, self.parameters.power * log(saturation) + log(self.parameters.k)))


_SAMPLE = Usage(prompt_tokens=101, completion_tokens=13, cached_tokens=37)


class UsageExpression:
    """A compiled expression. Its variable `usage` has the fields of OpenAI's usage object.

    These are `prompt_tokens`, `completion_tokens`, `total_tokens` and `prompt_tokens_details.cached_tokens`. CEL does
    not convert numbers: they are doubles, as in JSON, or integers if the expression fails with doubles.
    """

    def __init__(self, source: str, *, place: str, types: tuple[type, ...] = (str, int, float, bool)) -> None:
        """Compile and test the expression; raises ValueError with the place and the expression if that fails."""
        try:
            cel = import_module("cel_expr_python.cel")
        except ImportError as error:
            raise ValueError(f"{place} needs the package cel-expr-python: {install_command('cel')}") from error
        self._label = f"{place} {source!r}"
        self._types = types
        self._error_type = cel.Type.ERROR
        environment = cel.NewEnv(variables={"usage": cel.Type.Map(cel.Type.STRING, cel.Type.DYN)})
        try:
            self._program = environment.compile(source)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]  # further lines draw the expression
            raise ValueError(f"{self._label} is not a CEL expression over `usage`: {reason}") from error
        self.value(_SAMPLE)

    def value(self, usage: Usage) -> MetadataValue:
        """Return the value; raises ValueError if evaluation fails, or for another type or an infinite number."""
        found = self._program.eval(data=_variables(usage, float))
        if found.type() == self._error_type:
            reason, found = found.plain_value(), self._program.eval(data=_variables(usage, int))
            if found.type() == self._error_type:
                raise ValueError(f"{self._label} fails: {reason}")
        value: MetadataValue = found.plain_value()
        if not isinstance(value, self._types) or (isinstance(value, float) and not isfinite(value)):
            kinds = ", ".join(kind.__name__ for kind in self._types)
            raise ValueError(f"{self._label} returns {value!r}; it must return one of: {kinds}")
        return value


def _variables(usage: Usage, number: type[int] | type[float]) -> Mapping[str, object]:
    return {
        "usage": {
            "prompt_tokens": number(usage.prompt_tokens),
            "completion_tokens": number(usage.completion_tokens),
            "total_tokens": number(usage.prompt_tokens + usage.completion_tokens),
            "prompt_tokens_details": {"cached_tokens": number(usage.cached_tokens)},
        }
    }


class AttributeKey(Parameters, frozen=True):
    """Place of the value in the dynamic metadata."""

    name: Name
    """Key within the namespace."""
    namespace: Name = DESTINATION_NAMESPACE
    """Namespace of the dynamic metadata."""


class ReportedAttribute(Parameters, frozen=True):
    """A value and its place."""

    key: AttributeKey
    """Place of the value."""
    expression: str
    """CEL expression over `usage` for the value: a string, a number or a bool."""
    condition: str = ""
    """CEL expression over `usage` that must be true to report the value; empty to report it always."""


class AttributeReporterParameters(Parameters, frozen=True):
    """The value to report."""

    attributes: tuple[ReportedAttribute, ...]
    """Exactly one entry; for several values, declare several plugins."""

    def __post_init__(self) -> None:
        if len(self.attributes) != 1:
            raise ValueError(f"attributes has {len(self.attributes)} entries; it must have exactly one")


class AttributeReporter(ResponseReporter[AttributeReporterParameters]):
    """Puts the value of `expression` into the dynamic metadata of a response that reports its usage.

    `usage` has `prompt_tokens`, `completion_tokens`, `total_tokens` and `prompt_tokens_details.cached_tokens`,
    regardless of their names in the model server's API. They are doubles (write `2.0 * usage.completion_tokens`), or
    integers if the expression fails with doubles (`usage.prompt_tokens / 2`). If the expression fails on a response,
    nothing is reported for it.
    """

    plugin_type = "request-attribute-reporter"

    def setup(self) -> None:
        attribute = self.parameters.attributes[0]
        self._key = attribute.key
        self.namespaces = (attribute.key.namespace,)
        self._expression = UsageExpression(attribute.expression, place="attributes[0].expression")
        condition = attribute.condition or "true"
        self._condition = UsageExpression(condition, place="attributes[0].condition", types=(bool,))

    def report(self, request: Request, response: Response) -> Metadata:
        usage = response.usage
        if usage is None or not self._condition.value(usage):
            return {}
        return {self._key.namespace: {self._key.name: self._expression.value(usage)}}


class HeaderBasedTestingFilter(Filter):
    """Keeps the endpoints listed in the header `test-epp-endpoint-selection`, for tests of gateways.

    The header is a comma-separated list of `IP` (all its ports) and `IP:port`; write an IPv6 address with a port in
    brackets. A malformed address matches no endpoint. Without the header, or with an empty list, no endpoint is kept.
    Clients choose endpoints themselves, so do not use it in production.
    """

    plugin_type = "header-based-testing-filter"
    drop_means = "is not listed in the header"

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        lists = [value for name, value in request.headers.fields() if name == ENDPOINT_SELECTION]
        return Subset.parse(lists).mask(candidates.snapshot, candidates.slots)


class ServedVerifier(ResponseHeaders):
    """Sets the response header `x-conformance-test-served-endpoint` to the `ip:port` that the gateway reported.

    Without a report, the value is `no served metadata` and not the picker's choice, because the test compares the two.
    For tests only.
    """

    plugin_type = "destination-endpoint-served-verifier"

    def response_headers(self, request: Request, response: Response) -> Mapping[str, str]:
        return {CONFORMANCE_SERVED: response.served_address or "no served metadata"}


class EndpointNotificationSource(EndpointNotifications):
    """Passes each endpoint that joins the pool or changes to taggers."""

    plugin_type = "endpoint-notification-source"


_VERSION = re.compile(r"[a-z0-9]{1,63}")
_KIND = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")
_GROUP = re.compile(r"[a-z0-9.-]{0,253}")


class KubernetesNotificationParameters(Parameters, frozen=True):
    """Group, version and kind of the objects, as in their `apiVersion` and `kind`."""

    version: Name
    """Version of the group, such as v1."""
    kind: Name
    """Kind of the objects, such as Node."""
    group: str = ""
    """API group, such as apps; empty for the core group of pods and nodes."""

    def __post_init__(self) -> None:
        for name, pattern, example in (("version", _VERSION, "v1"), ("kind", _KIND, "Node"), ("group", _GROUP, "apps")):
            value = getattr(self, name)
            if not pattern.fullmatch(value):
                raise ValueError(f"{name} is {value!r:.80}: write a name such as {example}")


class KubernetesNotificationSource(ObjectNotifications[KubernetesNotificationParameters]):
    """Watches the objects of one kind, for extractors that read objects.

    Objects of a kind with namespaces are read in the namespace of the pool; those of InstaSlice in all namespaces, if
    the picker may read them there. A kind that is missing is watched once it is installed and the picker may list and
    watch it. Without a Kubernetes cluster, the source has no effect.
    """

    plugin_type = "k8s-notification-source"

    @property
    def kind(self) -> ObjectKind:
        return ObjectKind(self.parameters.group, self.parameters.kind, self.parameters.version)
