# SPDX-License-Identifier: Apache-2.0
"""Text of clients, as logs and records show it."""

import pytest

from epp.framework.messages import shown_path


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/v1/chat/completions?stream=true", "/v1/chat/completions?stream=true"),
        ("/v1/models?key=sk-1", "/v1/models?key=REDACTED"),
        ("/v1/models?a=1&api_key=sk-1&b=2", "/v1/models?a=1&api_key=REDACTED&b=2"),
        ("/v1/models?ACCESS_TOKEN=x;sig=y", "/v1/models?ACCESS_TOKEN=REDACTED;sig=REDACTED"),
        ("/v1/models?keyboard=qwerty&monkey=1", "/v1/models?keyboard=qwerty&monkey=1"),
        ("/v1/\x1b[2J\n", "/v1/\\x1b[2J\\n"),
        ("/" + "a" * 200, "/" + "a" * 124 + "..."),
    ],
)
def test_path_is_shown_short_printable_and_without_keys(path, shown):
    assert shown_path(path) == shown


def test_long_query_of_secrets_takes_no_time():
    assert len(shown_path("/v1?" + "key=" * 1_000_000)) <= 128
