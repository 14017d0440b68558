# SPDX-License-Identifier: Apache-2.0
"""The address of --listen, as people write it."""

import pytest

from epp.cli.gateway import read_listen
from epp.framework import ConfigurationError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("8081", ("127.0.0.1", 8081)),
        (":8081", ("127.0.0.1", 8081)),
        ("0.0.0.0:8081", ("0.0.0.0", 8081)),  # noqa: S104  the point of the flag
        ("[::1]:0", ("::1", 0)),
    ],
)
def test_port_alone_is_one_of_this_machine(text, address):
    found = read_listen(text)
    assert (found.host, found.port) == address


@pytest.mark.parametrize("text", ["", ":", "127.0.0.1", "127.0.0.1:99999"])
def test_anything_else_is_refused_by_the_name_of_the_flag(text):
    with pytest.raises(ConfigurationError, match=r"^--listen: "):
        read_listen(text)
