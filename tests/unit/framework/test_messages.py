# SPDX-License-Identifier: Apache-2.0
"""Parts of messages: text of clients, hints at names, and install commands."""

import json
from importlib import metadata

import pytest

from epp.framework.messages import install_command, shown_path, without_credentials
from epp.framework.suggestions import hint_at, nearest


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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://user:pass@host:6379/0", "redis://REDACTED@host:6379/0"),
        ("{address: 'rediss://:p@ss@host'}", "{address: 'rediss://REDACTED@host'}"),
        ("address: user:pass@host:6379", "address: REDACTED@host:6379"),
        ("no answer of http://token@host/a@b", "no answer of http://REDACTED@host/a@b"),
        ('{"topic":"kv@10.0.0.1:8000@model"}', '{"topic":"kv@10.0.0.1:8000@model"}'),
        ("registry:5000/image@sha256:0a", "registry:5000/image@sha256:0a"),
    ],
)
def test_users_and_passwords_of_addresses_are_not_shown(text, shown):
    assert without_credentials(text) == shown


def test_long_query_of_secrets_takes_no_time():
    assert len(shown_path("/v1?" + "key=" * 1_000_000)) <= 128


TYPES = (
    *("multicluster-kv-cache-utilization-scorer", "kv-cache-utilization-scorer", "openai-parser"),
    *("prefix-cache-affinity-filter", "prefix-cache-scorer", "queue-scorer"),
)


@pytest.mark.parametrize(
    ("near", "names"),
    [
        ("queue-scorer", ["queue-scorrer", "queue_scorer", "QueueScorer", "queue"]),
        ("prefix-cache-scorer", ["prefix-cash-scorer"]),
        ("kv-cache-utilization-scorer", ["kv-cache-scorer"]),
        (None, ["prefix-cache", "scorer", "token-scorer", "q", "", "latency-scorer"]),  # two begin with prefix-cache
    ],
)
def test_misspelling_or_part_of_a_name_is_near(near, names):
    assert {name: nearest(name, TYPES) for name in names} == dict.fromkeys(names, near)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("wieght", "did you mean 'weight'?"),  # neighbours swapped: one edit
        ("wt", "known are name, onError, weight"),
        ("on_error", "did you mean 'onError'?"),
        ("height", "did you mean 'weight'?"),
        ("sight", "known are name, onError, weight"),  # two edits are too many for five letters
    ],
)
def test_hint_is_the_near_name_or_all_names(name, hint):
    assert hint_at(name, ["weight", "name", "onError"]) == hint


def test_hint_is_the_way_to_the_names_where_none_is_near():
    assert hint_at("zzz", ["weight", "name"], "look there") == "look there"
    assert hint_at("zzz", []) == "there are none"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Make an installation of a project `mine`, from an origin."""

    def install(origin):
        folder = tmp_path / "mine-1.0.dist-info"
        folder.mkdir()
        lines = ["Name: mine", "Version: 1.0", "Requires-Dist: base", "Requires-Dist: fast>=2; extra == 'speed'"]
        lines += ['Requires-Dist: faster[x]<3; extra == "speed"', "Requires-Dist: other; extra == 'else'"]
        (folder / "METADATA").write_text("\n".join(lines) + "\n")
        if origin is not None:
            (folder / "direct_url.json").write_text(json.dumps(origin))
        monkeypatch.syspath_prepend(str(tmp_path))
        assert metadata.version("mine") == "1.0"

    return install


def test_checkout_is_named(installed, tmp_path):
    installed({"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    assert install_command("speed", "mine") == f"pip install -e '{tmp_path}[speed]'"


def test_wheel_is_named(installed, tmp_path):
    wheel = tmp_path / "mine-1.0-py3-none-any.whl"
    wheel.touch()
    installed({"url": wheel.as_uri(), "archive_info": {}})
    assert install_command("speed", "mine") == f"pip install '{wheel}[speed]'"


@pytest.mark.parametrize("origin", [None, {"url": "file:///nowhere/mine"}, {"url": "https://x.example/mine.whl"}, {}])
def test_packages_are_named_where_the_origin_is_not_at_hand(installed, origin):
    installed(origin)
    assert install_command("speed", "mine") == "pip install 'fast>=2' 'faster[x]<3'"


def test_program_that_is_not_installed_says_which_extra():
    assert install_command("speed", "no-such-project") == "install the extra 'speed' of this program"
