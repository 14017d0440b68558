# SPDX-License-Identifier: Apache-2.0
"""Who sends a request: by API key, then by namespace, then by fairness id."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.admission.tenants import Tenants
from epp.framework import Request
from epp.framework.errors import UnauthorizedError
from epp.framework.quotas import TENANT, Tenant
from epp.framework.request import AGENT_IDENTITY, DEFAULT_FLOW, Headers
from tests.support.tenants import build_tenants, sha256

FAIRNESS, OLD_FAIRNESS = "x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id"
NAMESPACE = "x-namespace"


def tenant_of(plugin: Tenants, *fields: tuple[str, str], agent: str = "") -> Tenant:
    request = Request("r", headers=Headers(fields))
    if agent:
        request.put(AGENT_IDENTITY, agent)
    plugin.request_headers(request)
    found = request.get(TENANT)
    assert found is not None
    return found


THREE = {
    "tenants": [
        {"name": "by-key", "apiKeys": [sha256("key-1"), sha256("key-2")], "qos": "high"},
        {"name": "by-namespace", "namespaces": ["ns-1", "ns-2"], "priority": 7, "highestPriority": 8},
        {"name": "by-id", "fairnessIds": ["id-1", "by-id"], "qos": "low"},
    ],
    "namespaceHeader": NAMESPACE,
}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([], DEFAULT_FLOW),
        ([("authorization", "Bearer key-1")], "by-key"),
        ([("authorization", "bearer   key-2 ")], "by-key"),
        ([("Authorization", "BEARER key-2")], "by-key"),
        ([("x-api-key", "key-1")], "by-key"),
        ([("x-api-key", "Bearer key-1")], "by-key"),
        ([("api-key", "key-1")], "by-key"),  # as clients of Azure send it
        ([("authorization", "key-1")], DEFAULT_FLOW),
        ([("authorization", "Basic key-1")], DEFAULT_FLOW),
        ([("authorization", sha256("key-1"))], DEFAULT_FLOW),
        ([("x-api-key", sha256("key-1"))], DEFAULT_FLOW),  # who knows a digest does not know the key
        ([("x-api-key", "KEY-1")], DEFAULT_FLOW),
        ([("x-api-key", "")], DEFAULT_FLOW),
        ([("authorization", "Bearer ")], DEFAULT_FLOW),
        ([("authorization", "Bearer for-the-server"), ("x-api-key", "key-1")], "by-key"),
        ([("x-api-key", "unknown"), ("x-api-key", "key-1")], DEFAULT_FLOW),  # the first of a repeated header counts
        ([("x-api-key", "key-1"), ("x-api-key", "unknown")], "by-key"),
        ([(NAMESPACE, "ns-2")], "by-namespace"),
        ([(NAMESPACE, "ns-3")], DEFAULT_FLOW),
        ([(NAMESPACE, "ns-1"), ("x-api-key", "key-1")], "by-key"),
        ([(NAMESPACE, "ns-1"), ("x-api-key", "unknown")], "by-namespace"),
        ([(FAIRNESS, "id-1")], "by-id"),
        ([(OLD_FAIRNESS, "id-1")], "by-id"),
        ([(FAIRNESS, "by-id")], "by-id"),
        ([(FAIRNESS, "own")], "own"),
        ([(FAIRNESS, "by-key")], DEFAULT_FLOW),  # the name of a tenant is not free for others
        ([(FAIRNESS, "id-1"), (NAMESPACE, "ns-1")], "by-namespace"),
        ([(FAIRNESS, "id-1"), ("x-api-key", "key-1")], "by-key"),
    ],
)
def test_api_key_counts_before_the_namespace_and_that_before_the_fairness_id(fields, expected):
    assert tenant_of(build_tenants(**THREE), *fields).name == expected


def test_agent_identity_is_a_fairness_id_where_no_header_is():
    plugin = build_tenants(**THREE)
    assert tenant_of(plugin, agent="session").name == "session"
    assert tenant_of(plugin, agent="id-1").name == "by-id"
    assert tenant_of(plugin, agent="by-key").name == DEFAULT_FLOW
    assert tenant_of(plugin, (FAIRNESS, "own"), agent="id-1").name == "own"


def test_tenant_has_the_priority_that_is_given_or_that_of_its_quality_of_service():
    plugin = build_tenants(**THREE)
    assert tenant_of(plugin, ("x-api-key", "key-1")) == Tenant(name="by-key", priority=10, qos="high")
    assert tenant_of(plugin, (NAMESPACE, "ns-1")) == Tenant(name="by-namespace", priority=7, highest_priority=8)
    assert tenant_of(plugin, (FAIRNESS, "id-1")) == Tenant(name="by-id", priority=-1, qos="low")
    assert tenant_of(plugin, (FAIRNESS, "own")) == Tenant(name="own")


def test_tf_13_classes_have_the_priorities_that_the_operator_gives_them():
    classes = [{"name": qos, "fairnessIds": [qos], "qos": qos} for qos in ("low", "medium", "high", "critical")]
    plugin = build_tenants(tenants=classes, qosPriorities={"low": -20, "critical": 1000})
    assert [tenant_of(plugin, (FAIRNESS, each["name"])).priority for each in classes] == [-20, 0, 10, 1000]
    both = build_tenants(tenants=[{"name": "a", "fairnessIds": ["a"], "qos": "low", "priority": 3}])
    assert tenant_of(both, (FAIRNESS, "a")) == Tenant(name="a", priority=3, qos="low")


def test_default_is_for_requests_of_no_tenant():
    given = {**THREE, "default": {"qos": "low", "highestPriority": 5}}
    found = tenant_of(build_tenants(**given), (FAIRNESS, "own"))
    assert found == Tenant(name="own", priority=-1, highest_priority=5, qos="low")
    together = build_tenants(**{**given, "default": {"name": "others", "priority": -3}})
    assert tenant_of(together, (FAIRNESS, "own")) == tenant_of(together) == Tenant(name="others", priority=-3)


def refusal_of(plugin: Tenants, *fields: tuple[str, str]) -> str:
    """Return the message of the refusal; empty where the request passes."""
    try:
        tenant_of(plugin, *fields)
    except UnauthorizedError as error:
        return error.message
    return ""


REFUSING = {**THREE, "unknown": "Refuse"}
UNKNOWN, MISSING = "the API key of this request is unknown: send a valid one", "this request has no API key"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([("x-api-key", "key-1")], ""),
        ([(NAMESPACE, "ns-1")], ""),  # the gateway's word
        ([], MISSING),
        ([(FAIRNESS, "id-1")], MISSING),  # the client's word
        ([("authorization", "Basic a2V5LTE=")], MISSING),
        ([("x-api-key", "key-3")], UNKNOWN),
        ([("x-api-key", "key-3"), (NAMESPACE, "ns-1")], UNKNOWN),
        ([("x-api-key", "key-3"), ("api-key", "key-1")], ""),
        ([("x-api-key", "k" * 4097)], UNKNOWN),
    ],
)
def test_request_without_a_known_key_is_refused_where_the_operator_wants_that(fields, expected):
    found = refusal_of(build_tenants(**REFUSING), *fields)
    assert found.startswith(expected)
    assert bool(found) is bool(expected)


def test_without_any_keys_a_fairness_id_is_enough_to_be_known():
    by_id = {"name": "a", "fairnessIds": ["a"]}
    plugin = build_tenants(tenants=[by_id], unknown="Refuse")
    assert refusal_of(plugin, (FAIRNESS, "a"), ("authorization", "Bearer for-the-server")) == ""
    assert "belongs to no known client" in refusal_of(plugin, (FAIRNESS, "b"))
    assert plugin.samples[-1].value == 0  # keys that nobody asked for are not unknown


def test_empty_file_of_keys_lets_nobody_in(tmp_path: Path):
    (tmp_path / "keys.yaml").write_text("{}")
    given = {"tenants": [{"name": "a", "fairnessIds": ["a"]}], "unknown": "Refuse"}
    plugin = build_tenants(**given, apiKeyFile=str(tmp_path / "keys.yaml"))
    assert refusal_of(plugin, (FAIRNESS, "a")).startswith(MISSING)


def test_header_for_the_key_is_named_in_the_refusal_as_it_is_to_be_sent():
    assert refusal_of(build_tenants(**REFUSING)).endswith("send the header 'authorization' with 'Bearer' and the key")
    other = build_tenants(**REFUSING, apiKeyHeaders=["X-Token"])
    assert refusal_of(other).endswith("send the header 'x-token' with the key")


def test_requests_are_counted_by_what_identified_them():
    plugin = build_tenants(**REFUSING)
    for fields in ([("x-api-key", "key-1")], [("x-api-key", "key-2")], [(NAMESPACE, "ns-1")], [("x-api-key", "no")]):
        refusal_of(plugin, *fields)
    counts = {sample.labels: sample.value for sample in plugin.samples}
    assert counts == {("api-key",): 2, ("namespace",): 1, ("fairness-id",): 0, ("nothing",): 0, (): 1}


def test_key_header_reaches_the_model_server_unless_it_is_to_be_removed():
    assert build_tenants(**THREE).sets_headers == ()
    assert build_tenants(**THREE, removeApiKey=True, apiKeyHeaders=["X-Key"]).sets_headers == ("x-key",)


names = st.sampled_from(["a", "b", "c", DEFAULT_FLOW, "", "key-a", "ns-a", "id-a", "id-b"])
keys = st.sampled_from(["key-a", "key-b", "nobody", "", "a", sha256("key-a")])
values = st.one_of(keys, keys.map("Bearer {}".format), st.text(max_size=8))


@given(
    fields=st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["authorization", "x-api-key", "api-key"]), values),
            st.tuples(st.sampled_from([FAIRNESS, OLD_FAIRNESS, NAMESPACE]), st.one_of(names, st.text(max_size=8))),
        ),
        max_size=6,
    ),
    refuse=st.booleans(),
    namespace=st.booleans(),
)
def test_nothing_but_its_own_marks_makes_a_request_that_of_a_tenant(fields, refuse, namespace):
    plugin = build_tenants(
        tenants=[
            {"name": "a", "apiKeys": [sha256("key-a")], "namespaces": ["ns-a"], "fairnessIds": ["id-a"]},
            {"name": "b", "apiKeys": [sha256("key-b")], "fairnessIds": ["id-b"]},
            {"name": "c", "namespaces": ["c"]},
        ],
        namespaceHeader=NAMESPACE if namespace else "",
        unknown="Refuse" if refuse else "Allow",
    )
    first = dict(reversed([(name, value) for name, value in fields]))
    shown = [first.get(name, "").strip() for name in ("authorization", "x-api-key", "api-key")]
    spoken = [text[7:].strip() if text.lower().startswith("bearer ") else text for text in shown]
    if not shown[0].lower().startswith("bearer "):
        spoken[0] = ""
    by_key = next(({"key-a": "a", "key-b": "b"}[key] for key in spoken if key in {"key-a", "key-b"}), None)
    by_namespace = {"ns-a": "a", "c": "c"}.get(first.get(NAMESPACE, "")) if namespace else None
    own = next((first[name] for name in (FAIRNESS, OLD_FAIRNESS) if name in first), "") or DEFAULT_FLOW
    by_id = {"id-a": "a", "id-b": "b"}.get(own)
    message = refusal_of(plugin, *fields)
    if message:
        assert refuse
        assert by_key is None
        assert by_namespace is None or any(spoken)
        return
    expected = by_key or by_namespace or by_id or (DEFAULT_FLOW if own in {"a", "b", "c"} else own)
    assert tenant_of(plugin, *fields).name == expected
    assert not refuse or by_key or by_namespace
