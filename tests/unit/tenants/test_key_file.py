# SPDX-License-Identifier: Apache-2.0
"""Files of API keys: how they are read, followed, and what is said of them, which is never a key."""

import asyncio
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from epp.admission.tenant_parameters import read_key_file
from epp.admission.tenants import Tenants
from epp.framework import Request
from epp.framework.errors import ConfigurationError
from epp.framework.quotas import TENANT
from epp.framework.request import Headers
from tests.support.config_files import ConfigMap, replace
from tests.support.tenants import build_tenants, sha256
from tests.support.waiting import until

ANY = Path("keys.yaml")
DEADLINE_SECONDS = 60.0


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "keys.yaml"


def build(path: Path, text: str | None = None, **parameters: object) -> Tenants:
    """Return the plugin with a file of keys, of this text if any."""
    if text is not None:
        path.write_text(text)
    return build_tenants(apiKeyFile=str(path), **parameters)


def named(plugin: Tenants, key: str) -> str:
    request = Request("r", headers=Headers([("x-api-key", key)]))
    plugin.request_headers(request)
    tenant = request.get(TENANT)
    return tenant.name


def read(text: str) -> dict[bytes, str]:
    parsed = read_key_file(text.encode(), ANY)
    assert not parsed.problems
    assert parsed.size == len(parsed.value.tenants)
    return dict(parsed.value.tenants)


def test_keys_and_digests_of_keys_may_stand_side_by_side_in_yaml_or_json():
    expected = {digest("sk-1"): "team-a", digest("sk-2"): "team-b", digest("sk-3"): "team-a"}
    keys = {
        "sk-1": "team-a",
        sha256("sk-2"): "team-b",
        sha256("sk-3").replace("a", "A").replace("shA", "sha"): "team-a",
    }
    assert read("# of the Secret\n" + "".join(f"{key}: {name}\n" for key, name in keys.items())) == expected
    assert read(json.dumps(keys, indent=2)) == expected


@pytest.mark.parametrize("key", ["0123", "1e5", "true", "null", "2026-01-01", "0x1F", "~"])
def test_key_is_what_is_written_whatever_type_yaml_sees_in_it(key):
    assert read(f"{key}: 42") == {digest(key): "42"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", r"it is empty: write a mapping .*, or \{\} for no keys"),
        ("# nothing\n", "it is empty"),
        ("- sk-1\n", "line 1: the content is not a mapping"),
        ("sk-1\n", "line 1: the content is not a mapping"),
        ("a: b\n c: [", "line 2: neither YAML nor JSON: write a mapping"),
        ("a: b\n---\nc: d\n", "line 2: neither YAML nor JSON"),
        ("[" * 100, "line 1: nested more than 4 deep"),
        ("a: " + "x" * (4 * 1024 * 1024), "has more than 4194304 bytes"),
    ],
)
def test_file_that_is_no_mapping_of_keys_is_refused_with_the_form(path, text, reason):
    with pytest.raises(ConfigurationError, match=rf"apiKeyFile: '.*keys.yaml': {reason}"):
        build(path, text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("sk-1:\n", "line 1: the tenant is missing"),
        ("a: b\nsk-1: [x]\n", "line 2: the tenant is missing"),
        ("'': a\n", "line 1: the key is empty"),
        ("? [sk-1]\n: a\n", "line 1: the key is empty"),
        (
            "sha256:abc: a\n",
            "line 1: the digest is not valid: write sha256: followed by the output of: printf %s KEY | sha256sum",
        ),
        (f"? {'k' * 4097}\n: a\n", "line 1: the key has more than 4096 characters"),  # no simple key of YAML is as long
        (f"sk-1: {'n' * 254}\n", "line 1: the name of the tenant has more than 253 characters"),
        ("sk-1: default-flow\n", "line 1: the tenant is default-flow, the fairness id of requests without one"),
        ("sk-1: a\nsk-2: a\nsk-1: b\n", "line 3: the key has another tenant in line 1: keep one"),
        (f"sk-1: a\n{sha256('sk-1')}: b\n", "line 2: the key has another tenant in line 1: keep one"),
    ],
)
def test_entry_with_a_mistake_is_left_out_and_its_line_is_said(text, problem):
    parsed = read_key_file(text.encode(), ANY)
    (said,) = parsed.problems
    assert said.startswith(problem)
    assert digest("sk-1") not in parsed.value.tenants


def test_entry_that_occurs_twice_alike_counts_once():
    assert read(f"sk-1: a\n{sha256('sk-1')}: a\n") == {digest("sk-1"): "a"}


def test_what_is_said_of_many_mistakes_is_bounded():
    parsed = read_key_file("".join(f"sk-{number}:\n" for number in range(5000)).encode(), ANY)
    assert len(parsed.problems) == 21
    assert parsed.problems[-1] == "and 4980 more lines like these"


LINES = [
    *("SECRET: a", "SECRET", "- SECRET", "SECRET: [", "team-a: SECRET", "SECRET: {x: y}", "? SECRET", "SECRET: b"),
    *("'SECRET", "sha256:SECRET: a", "*SECRET", "!SECRET x: y", "SECRET: &SECRET a", "\tSECRET: a", "%SECRET"),
]
entries = st.lists(st.sampled_from(LINES), max_size=6)


@given(lines=entries)
def test_no_message_shows_anything_of_the_file(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("keys") / "keys.yaml"
    path.write_text("other: team-a\n")
    with capture_logs() as logs:
        plugin = build(path, tenants=[{"name": "team-a", "apiKeys": [sha256("SECRET")]}])
        path.write_text("\n".join(lines))
        asyncio.run(plugin.check())
        said: list[object] = [*logs, plugin.inputs, plugin.directory.remarks, plugin.warnings]
        try:
            build(path)
        except ConfigurationError as error:
            said.append(error)
    assert "SECRET" not in str(said)


def test_last_good_version_stays_in_effect_and_the_reason_is_said(path):
    plugin = build(path, "sk-1: team-a\nsk-2: team-b\n", tenants=[{"name": "team-a"}, {"name": "team-b"}])
    assert plugin.inputs.rejected == {str(path): 0}
    for broken in ("sk-1: [", "sk-1:\n", "sk-1: a\nsk-1: b\n", None):
        path.unlink()
        if broken is not None:
            path.write_text(broken)
        with capture_logs() as logs:
            assert asyncio.run(plugin.check())
        assert not asyncio.run(plugin.check())  # said once
        (problem,) = plugin.inputs.problems
        assert (problem.file, problem.kept) == (str(path), 2)
        assert [each["problem"] for each in logs if each["log_level"] == "warning"] == [str(problem)]
        assert (named(plugin, "sk-1"), named(plugin, "sk-2")) == ("team-a", "team-b")
        path.touch()
    assert plugin.inputs.rejected == {str(path): 4}
    replace(path, "sk-1: team-b\n")
    assert asyncio.run(plugin.check())
    assert plugin.inputs.problems == ()
    assert (named(plugin, "sk-1"), named(plugin, "sk-2")) == ("team-b", "default-flow")


def test_tenant_that_is_not_listed_has_the_default_and_its_line_is_remarked(path):
    known = [{"name": "team-a", "qos": "high"}]
    plugin = build(path, "sk-1: team-a\nsk-2: taem-b\n", tenants=known, default={"qos": "low"})
    (remark,) = plugin.inputs.remarks
    assert remark.startswith(f"{path}: line 2: its tenant is not in tenants, and therefore has the priority of default")
    assert plugin.directory.of_key("sk-2").priority == -1
    assert plugin.directory.of_key("sk-1").priority == 10
    assert plugin.directory.none("taem-b").name == "default-flow"  # nobody else may call himself so


def test_tenant_without_a_key_is_remarked_where_nothing_else_stands_for_it(path):
    known = [{"name": "team-a"}, {"name": "team-b"}, {"name": "team-c", "fairnessIds": ["c"]}]
    plugin = build(path, "sk-1: team-a\n", tenants=known)
    (remark,) = plugin.inputs.remarks
    assert remark.startswith(f"{path}: tenant 'team-b' cannot be identified, because it has no key: add a key")


def test_key_in_the_configuration_counts_before_the_file(path):
    known = [{"name": "team-a", "apiKeys": [sha256("sk-1")]}, {"name": "team-b"}]
    plugin = build(path, "sk-1: team-b\nsk-2: team-b\n", tenants=known)
    assert named(plugin, "sk-1") == "team-a"
    (remark,) = plugin.inputs.remarks
    assert "a key of the tenant in line 1 is also in apiKeys of 'team-a'" in remark


async def followed(plugin: Tenants, change: Callable[[], None], key: str, name: str) -> None:
    """Change the file while it is followed, and wait until a key is of a tenant."""
    change()
    await until(lambda: named(plugin, key) == name, f"the key is of {name}", seconds=DEADLINE_SECONDS)


async def test_new_versions_apply_while_requests_come_however_the_file_is_replaced(tmp_path):
    (tmp_path / "mounted").mkdir()
    secret = ConfigMap(tmp_path / "mounted", keys="sk-1: team-a\n", other="{}")
    plain = tmp_path / "keys.yaml"
    plain.write_text("sk-1: team-a\n")
    mounted_plugin, plain_plugin = build(tmp_path / "mounted" / "keys.yaml"), build(plain)
    tasks = [asyncio.create_task(each.follow(lambda _: None)) for each in (mounted_plugin, plain_plugin)]
    try:
        for name in ("team-b", "team-c", "team-a"):
            text = f"sk-1: {name}\n"
            await followed(mounted_plugin, lambda text=text: secret.update(keys=text, other="{}"), "sk-1", name)
            await followed(plain_plugin, lambda text=text: replace(plain, text), "sk-1", name)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert mounted_plugin.inputs.problems == plain_plugin.inputs.problems == ()


async def test_plugin_without_a_file_follows_none():
    plugin = build_tenants()
    await asyncio.wait_for(plugin.follow(lambda _: None), DEADLINE_SECONDS)
    assert not await plugin.check()
    assert plugin.inputs.rejected == {}
