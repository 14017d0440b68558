# SPDX-License-Identifier: Apache-2.0
"""deploy/README.md for Kubernetes: Helm's commands as they are written, on a real API server; what it names exists."""

import asyncio
import re
import shlex
import subprocess

import pytest
import yaml

from tests.support.documents import blocks, commands, file_of
from tests.support.kube import manifests as write
from tests.support.kube.charts import CHART, REPOSITORY
from tests.support.kube.client import RefusedError

README = REPOSITORY / "deploy" / "README.md"
COMMANDS = [command for block in blocks(README) if block.language == "console" for command in commands(block)]


def test_there_is_a_command_for_each_kind_of_user():
    programs = {shlex.split(command)[0] for command in COMMANDS}
    assert {"docker", "helm", "kubectl", "epp", "envoy", "curl"} <= programs


async def test_commands_of_helm_work_as_they_are_written(programs, space, tmp_path):
    environment = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "KUBECONFIG": str(space.cluster.kubeconfig(tmp_path / "kubeconfig", namespace=space.namespace)),
    }

    async def exists(name: str) -> bool:
        try:
            await space.admin.get(write.manifest("apps/v1", "Deployment", name, space.namespace))
        except RefusedError as error:
            return error.status != 404
        return True

    run = [command for command in COMMANDS if command.startswith("helm ")]
    assert [shlex.split(command)[1] for command in run] == ["install", "upgrade", "uninstall", *["install"] * 3]
    for command in run:
        ended = await asyncio.to_thread(
            subprocess.run,
            ["sh", "-c", command],
            cwd=REPOSITORY,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 0, f"$ {command}\n{ended.stderr}"
        release = shlex.split(command)[2]
        assert await exists(f"{release}-epp") is ("uninstall" not in command)
        assert ("NOTES:" in ended.stdout) is ("uninstall" not in command)


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("kubectl apply")])
def test_file_of_a_command_exists(command):
    (file,) = re.findall(r"--filename (\S+)", command)
    written = {name for block in blocks(README) if (found := file_of(block)) for name in found[:1]}
    assert file in written or (REPOSITORY / file).exists()


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\((?!https?:)([^)#]+)", README.read_text()))))
def test_link_leads_somewhere(target):
    assert (README.parent / target).exists()


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(#([^)]+)\)", README.read_text()))))
def test_link_within_the_page_leads_to_a_heading(target):
    headings = re.findall(r"^#+ (.*)$", README.read_text(), re.MULTILINE)
    assert target in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_values_that_it_names_are_in_the_chart():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    named = set(re.findall(r"`((?:router|provider|httpRoute)\.[\w.-]+?)(?:=\w+|: \w+)?`", README.read_text()))
    assert len(named) > 10
    for path in named:
        found = values
        for name in path.split("."):
            assert name in found, path
            found = found[name]
