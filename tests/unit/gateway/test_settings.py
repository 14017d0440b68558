# SPDX-License-Identifier: Apache-2.0
"""What settings accept, and what they say when they do not."""

from pathlib import Path

import pytest

from epp.lab.gateway.settings import (
    BodyMode,
    ClusterType,
    FailureMode,
    GatewaySettings,
    PipeAddress,
    SettingsError,
    parse_address,
)
from epp.runtime.addresses import HostPort

FAIL_OPEN = {"failure_mode": FailureMode.FAIL_OPEN, "cluster_type": ClusterType.OVERRIDE_HOST}


def test_address_forms():
    assert parse_address("127.0.0.1:9002", setting="any") == HostPort("127.0.0.1", 9002)
    assert parse_address("[::1]:9002", setting="any") == HostPort("::1", 9002)
    assert parse_address("localhost:9002", setting="any") == HostPort("127.0.0.1", 9002)
    assert parse_address("unix:/run/epp.sock", setting="any") == PipeAddress("/run/epp.sock")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"picker_address": "9002"}, "picker_address: '9002' has no port: write host:port or [ipv6]:port"),
        ({"picker_address": "picker.svc:9002"}, "picker_address: 'picker.svc:9002' is not an IP address"),
        ({"picker_address": "unix:epp.sock"}, "has no absolute path"),
        ({"picker_address": "unix:/" + "x" * 107}, "longer than 107 bytes"),
        ({"listen_host": "gateway.svc"}, "listen_host, listen_port: 'gateway.svc:8080' is not an IP address"),
        ({"listen_port": 65_536}, "'65536' is not a port: write a number from 0 to 65535"),
        ({"admin_address": "0.0.0.0:9901"}, "not loopback"),
        ({"admin_address": "127.0.0.1:0"}, "port 0"),
        ({"concurrency": 0}, "concurrency: 0 must be greater than 0"),
        ({"message_timeout_seconds": 0.0}, "message_timeout_seconds: 0.0 must be greater than 0"),
        ({"message_timeout_seconds": 3601.0}, "message_timeout_seconds: 3601.0 is more than Envoy accepts: 3600"),
        ({"eds_file": Path("endpoints.json")}, "eds_file: 'endpoints.json' is not an absolute path"),
        ({"failure_mode": FailureMode.FAIL_OPEN}, "choose cluster type override-host"),
        ({**FAIL_OPEN, "response_body_mode": BodyMode.FULL_DUPLEX_STREAMED}, "choose BUFFERED and STREAMED"),
    ],
)
def test_unusable_setting_is_named(values, says):
    with pytest.raises(SettingsError) as caught:
        GatewaySettings(**values)
    assert says in str(caught.value)


def test_failure_mode_chooses_the_body_modes_that_are_not_set():
    closed = GatewaySettings(request_body_mode=BodyMode.BUFFERED)
    assert closed.body_modes == (BodyMode.BUFFERED, BodyMode.FULL_DUPLEX_STREAMED)
    opened = GatewaySettings(**FAIL_OPEN, response_body_mode=BodyMode.NONE)
    assert opened.body_modes == (BodyMode.BUFFERED, BodyMode.NONE)


@pytest.mark.parametrize(("mode", "seconds"), [(FailureMode.FAIL_OPEN, 10.0), (FailureMode.FAIL_CLOSE, 1000.0)])
def test_patience_with_a_picker_that_does_not_ask_for_more(mode, seconds):
    settings = {"failure_mode": mode, "cluster_type": ClusterType.OVERRIDE_HOST}
    assert GatewaySettings(**settings).message_timeout == seconds
    assert GatewaySettings(**settings, message_timeout_seconds=5.0).message_timeout == 5.0
