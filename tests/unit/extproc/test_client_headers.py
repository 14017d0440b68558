# SPDX-License-Identifier: Apache-2.0
"""Headers of clients: control headers never reach endpoints, and operators can have groups of headers ignored."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.extproc.exchange import GatewayTraits
from epp.extproc.headers import GROUPS, IgnoredHeaders, group_of
from epp.extproc.wire import HttpHeaders, ProcessingRequest
from epp.framework import headers
from epp.routing.director import DirectorObserver
from tests.support.exchanges import header_map, new_bench, request_headers

BENCH = new_bench()
OWN = {":method": "POST", ":path": "/v1/models", "x-request-id": "r-1"}
NAMES = st.sampled_from(
    [*(name for group in GROUPS.values() for name in group.names), *sorted(headers.OBEYED_BY_ENDPOINTS), "x-my-tag"]
)
ALL = IgnoredHeaders.parse(["all"])


@st.composite
def fields(draw):
    """Headers in any case, with `_` for some `-`."""
    spelled = {}
    for name in draw(st.lists(NAMES, max_size=6)):
        characters = [draw(st.sampled_from([c, c.upper(), "_" if c == "-" else c])) for c in name]
        spelled["".join(characters)] = draw(st.text(max_size=4))
    return spelled


def at_endpoint(sent, *, traits=None, **options):
    """Return the headers that reach the endpoint, as a gateway applies the picker's answer, by lower-case name."""
    session = BENCH.session(traits=traits, **options)
    headers_sent = HttpHeaders(headers=header_map({**OWN, **sent}), end_of_stream=True)
    (reply,) = session.receive(ProcessingRequest(request_headers=headers_sent))
    session.close()
    mutation = reply.request_headers.response.header_mutation
    left = {name.lower(): value for name, value in {**OWN, **sent}.items()}
    for name in mutation.remove_headers:
        left.pop(name, None)
    return left | {field.header.key: field.header.raw_value.decode() for field in mutation.set_headers}


@given(fields())
def test_no_spelling_of_a_control_name_reaches_the_endpoint_and_all_else_does_unchanged(sent):
    arrived = at_endpoint(sent)
    destination = arrived.pop("x-gateway-destination-endpoint")
    assert destination not in sent.values()
    lower = {name.lower(): value for name, value in sent.items()}
    expected = OWN | {name: value for name, value in lower.items() if not headers.CONTROL.has(name)}
    assert arrived == expected


@given(fields())
def test_headers_that_are_ignored_do_not_reach_the_endpoint_either(sent):
    arrived = at_endpoint(sent, ignored_headers=ALL)
    assert arrived.keys() - {"x-my-tag", "x_my_tag", "x-my_tag", "x_my-tag"} <= {
        *(":method", ":path", "x-request-id", "x-gateway-destination-endpoint")
    }
    assert arrived["x-request-id"] not in {"r-1", *sent.values()}  # another is made up


class Seen(DirectorObserver):
    """Keeps what every plugin is shown."""

    def __init__(self):
        self.headers = []

    def routed(self, request, *_):
        self.headers.append(request.headers)


def seen_by_plugins(sent, *, traits=None, ignored=ALL):
    seen = Seen()
    session = new_bench(observe=lambda _: seen).session(traits=traits, ignored_headers=ignored)
    session.receive(request_headers("/v1/models", end=True, **sent))
    session.close()
    (found,) = seen.headers
    return dict(found)


@pytest.mark.parametrize("name", [name for group in GROUPS.values() for name in group.names])
def test_plugins_never_see_what_is_ignored(name):
    name = name + "class" if name.endswith("-") else name
    assert name in seen_by_plugins({name: "a"}, ignored=None)
    seen = seen_by_plugins({name: "a", "cookie": "b"})
    assert seen == {":method": "POST", ":path": "/v1/models", "cookie": "b"}


def test_one_group_alone_is_ignored():
    sent = {"x-llm-d-inference-objective": "urgent", "x-llm-d-inference-fairness-id": "me", "x-mine": "1"}
    seen = seen_by_plugins(sent, ignored=IgnoredHeaders.parse(["objective", "header:X-Mine"]))
    assert "x-llm-d-inference-objective" not in seen
    assert "x-mine" not in seen
    assert seen["x-llm-d-inference-fairness-id"] == "me"


@pytest.mark.parametrize(
    ("host", "trusted"),
    [
        ("ipv4:10.1.2.3", True),
        ("ipv4:10.2.2.3", False),
        ("ipv6:[::ffff:10.1.2.3]", True),
        ("ipv6:%5Bfd00::7%5D", True),  # as grpcio writes it
        ("ipv6:[fd00::7%25eth0]", True),
        ("ipv6:[fd01::7]", False),
        ("unix", False),
        ("", False),
    ],
)
def test_headers_count_from_gateways_of_trusted_networks(host, trusted):
    ignored = ALL.except_from(["10.1.0.0/16", "fd00::/64"])
    for _ in range(2):  # the second time, by what was found before
        seen = seen_by_plugins({"x-session-id": "s"}, traits=GatewayTraits(host), ignored=ignored)
        assert ("x-session-id" in seen) is trusted


def test_gateways_are_remembered_to_a_limit():
    ignored = ALL.except_from(["10.0.0.0/8"])
    hosts = [f"ipv4:{net}.0.{n // 256}.{n % 256}" for n in range(3000) for net in (10, 11)]
    assert all(ignored.trusts(host) is host.startswith("ipv4:10.") for host in hosts)
    assert ignored.trusts.cache_info().currsize <= 1024


def test_headers_of_a_request_refused_for_their_size_are_left_out_too(bench):
    session = bench.session(ignored_headers=ALL)
    session.receive(request_headers(**{f"x-{number}": "" for number in range(1001)}))
    session.close()
    assert bench.endings.refusals == ["HeadersTooLargeError"]


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["objectives"], "'objectives' is not a group of headers: write model-rewrite, objective, "),
        (["header:"], "header: cannot be ignored"),
        (["header::path"], "header::path cannot be ignored"),
        (["header:content-length"], "header:content-length cannot be ignored"),
    ],
)
def test_what_is_no_group_is_refused(names, problem):
    with pytest.raises(ValueError, match=problem):
        IgnoredHeaders.parse(names)


@pytest.mark.parametrize("network", ["10.0.0.0/33", "gateway", "10.0.0.1/8", ""])
def test_what_is_no_network_is_refused(network):
    with pytest.raises(ValueError, match=r"is not a network: .*; write one like 10\.0\.0\.0/8"):
        ALL.except_from([network])


def test_every_header_from_clients_for_the_picker_has_a_group_but_credentials():
    assert group_of("EPP-Profile") == "profile"
    assert group_of(headers.ACCELERATOR_PREFIX) == "accelerator"
    assert {group_of(name) for name in (*headers.OBJECTIVE, *headers.AGENT_SESSIONS)} == {"objective", "session"}
    assert group_of(headers.AUTHORIZATION) == ""


def test_group_names_are_those_of_the_flag():
    from epp.cli.picker_flags import PickerFlags  # noqa: PLC0415  its fields alone
    from epp.runtime.flags import FLAG  # noqa: PLC0415

    text = PickerFlags.__dataclass_fields__["ignore_client_headers"].metadata[FLAG].text
    assert all(name in text for name in GROUPS)
