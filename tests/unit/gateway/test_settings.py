# SPDX-License-Identifier: Apache-2.0
"""What settings accept, and what they say when they do not."""

import pytest

from epp.lab.gateway.settings import Bodies, ClusterType, FailureMode, GatewaySettings, SettingsError

OVERRIDE_HOST = {"cluster_type": ClusterType.OVERRIDE_HOST}
FAIL_OPEN = {"failure_mode": FailureMode.FAIL_OPEN}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (FAIL_OPEN, "failure_mode: FailOpen does not work with cluster type original-dst"),
        ({**FAIL_OPEN, **OVERRIDE_HOST, "body_mode": Bodies.FULL_DUPLEX}, "body_mode: full-duplex bodies are lost"),
        ({"retry_on_reset": True}, "retry_on_reset: has no effect with cluster type auto"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(values, says):
    with pytest.raises(SettingsError) as caught:
        GatewaySettings(**values)
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize(
    ("values", "bodies"),
    [
        ({}, ("FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED")),
        ({"body_mode": Bodies.BUFFERED}, ("BUFFERED", "NONE")),
        ({**FAIL_OPEN, **OVERRIDE_HOST}, ("BUFFERED", "STREAMED")),
        ({"body_mode": Bodies.BUFFERED, "modes": {"response_body_mode": "STREAMED"}}, ("BUFFERED", "STREAMED")),
    ],
)
def test_failure_mode_and_body_mode_choose_the_modes_that_are_not_given(values, bodies):
    modes = GatewaySettings(**values).processing_mode
    assert (modes["request_body_mode"], modes["response_body_mode"]) == bodies
    assert modes["request_header_mode"] == modes["response_trailer_mode"] == "SEND"


@pytest.mark.parametrize(("mode", "seconds"), [(FailureMode.FAIL_OPEN, 10.0), (FailureMode.FAIL_CLOSE, 1000.0)])
def test_patience_with_a_picker_that_does_not_ask_for_more(mode, seconds):
    settings = {"failure_mode": mode, **OVERRIDE_HOST}
    assert GatewaySettings(**settings).message_timeout == seconds
    assert GatewaySettings(**settings, message_timeout_seconds=5.0).message_timeout == 5.0
