# SPDX-License-Identifier: Apache-2.0
"""`host:port` as people write it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.runtime.addresses import HostPort, parse_host_port

ADDRESSES = st.ip_addresses().filter(lambda ip: not getattr(ip, "scope_id", None))


@given(ADDRESSES, st.integers(1, 65_535))
def test_address_reads_back_as_it_prints(ip, port):
    address = HostPort(str(ip), port)
    assert parse_host_port(str(address)) == address


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("10.0.0.1:80", "10.0.0.1"),
        ("[2001:DB8:0::1]:80", "2001:db8::1"),  # the canonical form
        ("vllm_0.pod.svc.:80", "vllm_0.pod.svc."),
    ],
)
def test_host_is_an_address_or_a_name(text, host):
    assert parse_host_port(text) == HostPort(host, 80)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "'' has no port: write host:port or [ipv6]:port"),
        ("8000", "'8000' has no port"),
        ("::1", "'::1' has no port"),
        ("::1:8000", "'::1:8000' has no port"),  # an address as a whole
        (":8000", "':8000' has no host: write host:port or [ipv6]:port"),
        ("2001:db8:0:0:0:0:0:1:80", "has no brackets around its IPv6 address: write [2001:db8:0:0:0:0:0:1]:80"),
        ("a:65536", "'65536' is not a port: write a number from 1 to 65535"),
        ("a:http", "'http' is not a port"),
        ("a:-1", "'-1' is not a port"),
        ("a:", "'' is not a port"),
        ("10.0.0.256:1", "'10.0.0.256' is not an IP address or a host name"),
        ("http://a:1", "'http://a' is not an IP address or a host name: write one, without scheme or port"),
        ("x::1", "'x:' is not an IP address"),
        ("a b:1", "'a b' is not an IP address"),
        (f"{'a' * 64}:1", "is not an IP address"),
    ],
)
def test_other_text_is_refused_with_the_remedy(text, problem):
    with pytest.raises(ValueError, match=re.escape(problem)):
        parse_host_port(text)


def test_port_0_is_for_listen_addresses():
    assert parse_host_port("127.0.0.1:0", min_port=0) == HostPort("127.0.0.1", 0)
    with pytest.raises(ValueError, match="'0' is not a port: write a number from 1 to 65535"):
        parse_host_port("127.0.0.1:0")
