"""What settings accept, and what they say when they do not."""

import ipaddress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.gateway import BodyMode, ClusterType, FailureMode, GatewaySettings, PipeAddress, SettingsError, TcpAddress
from epp.gateway.settings import parse_address


@given(st.ip_addresses(), st.integers(0, 65_535))
def test_an_address_reads_back_as_it_prints(ip, port):
    if isinstance(ip, ipaddress.IPv6Address) and ip.scope_id:
        return
    address = TcpAddress(str(ip), port)
    assert parse_address(str(address), setting="any") == address


def test_address_forms():
    assert parse_address("127.0.0.1:9002", setting="any") == TcpAddress("127.0.0.1", 9002)
    assert parse_address("[::1]:9002", setting="any") == TcpAddress("::1", 9002)
    assert parse_address("localhost:9002", setting="any") == TcpAddress("127.0.0.1", 9002)
    assert parse_address("unix:/run/epp.sock", setting="any") == PipeAddress("/run/epp.sock")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"picker_address": "9002"}, "picker_address: '9002' is neither ip:port nor unix:/absolute/path"),
        ({"picker_address": "picker.svc:9002"}, "picker_address: 'picker.svc' is not an IP address"),
        ({"picker_address": "unix:epp.sock"}, "needs an absolute path"),
        ({"picker_address": "unix:/" + "x" * 107}, "longer than 107 bytes"),
        ({"picker_address": "127.0.0.1:8080"}, "both 127.0.0.1:8080"),
        ({"listen_host": "localhost"}, "listen_host: write '127.0.0.1'"),
        ({"listen_port": 65_536}, "port 65536 is not between 0 and 65535"),
        ({"admin_address": "0.0.0.0:9901"}, "not loopback"),
        ({"admin_address": "127.0.0.1:0"}, "port 0"),
        ({"concurrency": 0}, "concurrency must be greater than 0"),
        ({"message_timeout_seconds": 0.0}, "message_timeout_seconds must be greater than 0"),
        ({"eds_file": Path("endpoints.json")}, "eds_file: 'endpoints.json' is not an absolute path"),
        ({"failure_mode": FailureMode.FAIL_OPEN}, "choose cluster type override-host"),
        (
            {
                "failure_mode": FailureMode.FAIL_OPEN,
                "cluster_type": ClusterType.OVERRIDE_HOST,
                "response_body_mode": BodyMode.FULL_DUPLEX_STREAMED,
            },
            "choose BUFFERED and STREAMED",
        ),
    ],
)
def test_unusable_setting_is_named(values, says):
    with pytest.raises(SettingsError) as caught:
        GatewaySettings(**values)
    assert says in str(caught.value)


def test_failure_mode_chooses_the_body_modes_that_nobody_chose():
    closed = GatewaySettings(request_body_mode=BodyMode.BUFFERED)
    assert closed.body_modes == (BodyMode.BUFFERED, BodyMode.FULL_DUPLEX_STREAMED)
    opened = GatewaySettings(
        failure_mode=FailureMode.FAIL_OPEN,
        cluster_type=ClusterType.OVERRIDE_HOST,
        response_body_mode=BodyMode.NONE,
    )
    assert opened.body_modes == (BodyMode.BUFFERED, BodyMode.NONE)
