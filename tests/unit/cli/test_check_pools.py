# SPDX-License-Identifier: Apache-2.0
"""`epp check` of configurations of several pools."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from epp.cli.app import application

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
GOOD = HEAD + "plugins: [{type: queue-scorer}]\n"
BAD = HEAD + "plugins:\n- type: queue-scorrer\n- type: max-score-picker\n  nmae: x\n"


def check_pools(directory: Path, *flags: str) -> tuple[int, str]:
    result = CliRunner().invoke(
        application(), ["check", f"{directory}/others.yaml", f"--pool-config-dir={directory}/own", *flags]
    )
    return result.exit_code, result.output


@pytest.fixture
def configurations(tmp_path: Path) -> Path:
    """A configuration of the pool `code`, of one named `old`, and of all others."""
    (tmp_path / "own").mkdir()
    (tmp_path / "others.yaml").write_text(GOOD)
    (tmp_path / "own" / "code.yaml").write_text(GOOD)
    (tmp_path / "own" / "old.yaml").write_text(BAD)
    return tmp_path


def test_each_configuration_of_several_pools_is_checked_and_named(configurations):
    code, said = check_pools(configurations, "--pool-name=chat,help", "--pool-name=code")
    assert code == 0
    assert f"pool code: {configurations}/own/code.yaml: ok" in said
    assert f"pools chat, help: {configurations}/others.yaml: ok" in said
    assert f"{configurations}/own/old.yaml: skipped: no pool of --pool-name has this name" in said


def test_with_labels_of_pools_each_file_of_the_directory_is_checked(configurations):
    code, said = check_pools(configurations, "--pool-selector=team=search")
    assert code == 1
    assert f"pool code: {configurations}/own/code.yaml: ok" in said
    assert f"pool old: {configurations}/own/old.yaml: refused, 2 errors" in said


def test_ocm_14_only_pods_of_a_pool_may_be_endpoints_in_the_configuration_of_one_of_several_pools(configurations):
    text = "plugins: [{type: file-discovery, parameters: {path: endpoints.yaml}}]\n"
    text += "dataLayer: {discovery: {pluginRef: file-discovery}}\n"
    (configurations / "own" / "code.yaml").write_text(HEAD + text)
    code, said = check_pools(configurations, "--pool-name=chat,code")
    assert code == 1
    assert "dataLayer.discovery is for one pool: leave it out" in said
    text = "plugins: [{type: pool-discovery}, {type: file-discovery, parameters: {path: endpoints.yaml}}]\n"
    text += "dataLayer: {discovery: {endpoints: [{pluginRef: pool-discovery}, {pluginRef: file-discovery}]}}\n"
    (configurations / "own" / "code.yaml").write_text(HEAD + text)
    code, said = check_pools(configurations, "--pool-name=chat,code")
    assert (code, f"pool code: {configurations}/own/code.yaml: ok" in said) == (0, True)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["others.yaml", "--pool-config-dir=own"], "--pool-config-dir is for several pools"),
        (["--pool-config-dir=own", "--pool-name=a,b"], "--pool-config-dir needs FILE"),
        (["others.yaml", "--pool-selector=a=b"], "--pool-selector: no effect on files: add --cluster"),
    ],
)
def test_flags_of_several_pools_that_do_not_fit_are_refused(flags, problem):
    result = CliRunner().invoke(application(), ["check", *flags])
    assert result.exit_code == 1
    assert problem in result.output
