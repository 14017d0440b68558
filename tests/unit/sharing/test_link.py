# SPDX-License-Identifier: Apache-2.0
"""How a worker learns that it is one."""

import io
import pickle
import socket
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from epp.framework.errors import ConfigurationError
from epp.sharing.link import VARIABLE, ConfigInEffect, link_of_environment, number_of_environment
from epp.sharing.rings import shared_memory

CONFIG = ConfigInEffect("kind: EndpointPickerConfig\n", 3)


@pytest.fixture
def variables() -> Iterator[dict[str, str]]:
    """Those of worker 2; the main process has ended if it wrote nothing to standard input."""
    ends = [end for _ in range(2) for end in socket.socketpair()]
    yield {VARIABLE: f"2,{ends[0].detach()},{ends[2].detach()},{shared_memory(3)},0aff"}
    for end in ends:
        end.close()


def test_worker_has_the_sockets_the_key_and_the_configuration_of_the_main_process(variables, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(pickle.dumps(CONFIG))))
    link = link_of_environment(variables)
    assert link is not None
    with link.connections, link._sock:
        assert (link.number, link.key, link.config) == (2, b"\x0a\xff", CONFIG)
    assert number_of_environment(variables) == "2"


def test_process_that_is_started_by_hand_is_no_worker():
    assert link_of_environment({}) is None
    with pytest.raises(ConfigurationError, match="only epp may set it, for its workers: unset it"):
        link_of_environment({VARIABLE: "1,997,998,999,aa"})


def test_worker_whose_main_process_has_ended_says_so(variables, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO()))
    with pytest.raises(ConfigurationError, match="has ended"):
        link_of_environment(variables)
