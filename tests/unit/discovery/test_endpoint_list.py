# SPDX-License-Identifier: Apache-2.0
"""The list of --endpoints: what is taken, and what is said of the rest."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework.accelerators.tag import AcceleratorDeclaration
from epp.pool.discovery import Target, parse_targets


def test_list_of_addresses_names_and_hosts():
    assert parse_targets("10.0.0.1:8000, [2001:DB8::1]:8001,gpu-a=10.0.0.2:8000,vllm.example.com:80") == (
        Target("10.0.0.1:8000", "10.0.0.1", 8000),
        Target("[2001:db8::1]:8001", "2001:db8::1", 8001),
        Target("gpu-a", "10.0.0.2", 8000),
        Target("vllm.example.com:80", "vllm.example.com", 80),
    )


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("http://127.0.0.1:8000", Target("127.0.0.1:8000", "127.0.0.1", 8000)),
        ("http://127.0.0.1:8000/", Target("127.0.0.1:8000", "127.0.0.1", 8000)),
        ("HTTPS://vllm.example.com:8443/", Target("vllm.example.com:8443", "vllm.example.com", 8443, tls=True)),
        ("a=https://[::1]:8443", Target("a", "::1", 8443, tls=True)),
        ("http://vllm", Target("vllm:80", "vllm", 80)),
        ("https://[::1]", Target("[::1]:443", "::1", 443, tls=True)),
        ("127.0.0.1:8000/", Target("127.0.0.1:8000", "127.0.0.1", 8000)),
        ("8000", Target("127.0.0.1:8000", "127.0.0.1", 8000)),
        (":8000", Target("127.0.0.1:8000", "127.0.0.1", 8000)),
        ("own=8000", Target("own", "127.0.0.1", 8000)),
        ("own = 8000", Target("own", "127.0.0.1", 8000)),
        ("a=a:1;spot=true", Target("a", "a", 1, labels={"spot": "true"})),
        ("a:1;spot=true;zone=;x/y=z", Target("a:1", "a", 1, labels={"spot": "true", "zone": "", "x/y": "z"})),
        ("http://a:1/ ; spot = true", Target("a:1", "a", 1, labels={"spot": "true"})),
        (
            "a:1;accelerator=h100;spot=true",
            Target(
                "a:1", "a", 1, labels={"spot": "true"}, accelerator=AcceleratorDeclaration(accelerator_class="h100")
            ),
        ),
    ],
)
def test_address_is_taken_in_every_form_that_is_unambiguous(text, target):
    assert parse_targets(text) == (target,)


@pytest.mark.parametrize("text", ["a:1,b:2", "a:1 b:2", "a:1\nb:2\n", " a:1 ,\n  b:2,\n", "a:1,\tb:2", "a:1, b:2,"])
def test_endpoints_are_separated_by_commas_or_blanks(text):
    assert [target.name for target in parse_targets(text)] == ["a:1", "b:2"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "endpoint 1: the entry is empty: leave a comma out, or write host:port, a port or a URL"),
        ("a:1,,b:2", "endpoint 2: the entry is empty"),
        (",a:1", "endpoint 1: the entry is empty"),
        ("10.0.0.1", "endpoint 1: '10.0.0.1' has no port: write host:port or [ipv6]:port"),
        ("x=a", "endpoint 1: 'a' has no port"),
        ("a:1 x=", "endpoint 2: '' has no port"),
        ("=a:8000", "'=a:8000' has an empty name: write host:port or name=host:port"),
        ("a:0", "'0' is not a port: write a number from 1 to 65535"),
        ("65536", "'65536' is not a port: write a number from 1 to 65535"),
        ("http://a:65536", "'65536' is not a port"),
        ("a:1,[::1:8000", "endpoint 2: '[::1:8000' has one bracket without the other: write [ipv6]:port"),
        ("http://::1]:8000", "has one bracket without the other"),
        ("[::1]", "'[::1]' has no port"),
        (
            "http://127.0.0.1:8000/v1",
            "has the path '/v1', but requests keep the path that clients ask for: write http://127.0.0.1:8000",
        ),
        ("a=127.0.0.1:8000/v1", "clients ask for: write 127.0.0.1:8000"),
        ("https://a:1?x=y", "'https://a:1?x=y' has the path '?x=y'"),
        ("grpc://a:1", "'grpc://a:1' has the scheme grpc, but model servers use HTTP: write http:// or https://"),
        ("http:/a:1", "'http:/a:1' is not a URL: write http://host:port or https://host:port"),
        ("https//a:1", "'https//a:1' is not a URL"),
        ("http:8000", "'http:8000' is not a URL"),
        ("http://:8000", "'http://:8000' has no host: write http://host:port"),
        ("https://", "'https://' has no host: write https://host:port"),
        ("http://me:pass@a:1", "has a user name, but requests are sent without one: write http://a:1"),
        ("a:1;spot", "'spot' is not a label: write label=value after each semicolon"),
        ("a:1;", "'' is not a label"),
        ("a:1;=true", "'=true' is not a label"),
        ("a:1;spot=true;spot=false", "label 'spot' is repeated: leave one out"),
        ("a:1,b:2,a:1", "endpoint 3: 'a:1' is the server of endpoint 1, 'a:1': leave one out"),
        ("x=a:1,y=http://A:1/", "endpoint 2: 'y=http://A:1/' is the server of endpoint 1, 'x': leave one out"),
        ("8000,own=127.0.0.1:8000", "endpoint 2: 'own=127.0.0.1:8000' is the server of endpoint 1, '127.0.0.1:8000'"),
        ("x=a:1,x=b:1", "endpoint 2: 'x=b:1' has the name of endpoint 1, 'x': choose another"),
    ],
)
def test_bad_list_is_refused_with_entry_and_remedy(text, problem):
    with pytest.raises(ValueError, match=re.escape(problem)):
        parse_targets(text)


@given(st.text(alphabet="a1:=;,/[] \n.@?#-http", max_size=30))
def test_any_text_is_a_list_or_an_error_with_its_entry(text):
    try:
        targets = parse_targets(text)
    except ValueError as error:
        targets, problem = (), str(error)
    if targets:
        assert len({target.name for target in targets}) == len(targets)
    else:
        assert re.match(r"endpoint \d+: ", problem)
