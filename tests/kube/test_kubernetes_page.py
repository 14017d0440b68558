# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/kubernetes.md as they are written, on a real API server, and with a release of the chart."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from epp.kube.resources import Importance, needs_of_picker
from tests.support.documents import blocks, commands, file_of
from tests.support.kube import manifests as write
from tests.support.kube.apart import NAMESPACES, gate
from tests.support.kube.client import RefusedError
from tests.support.kube.space import Space
from tests.support.waiting import until

REPOSITORY = Path(__file__).parents[2]
APART = REPOSITORY / "tests" / "support" / "kube" / "apart.py"
PAGE = REPOSITORY / "docs" / "kubernetes.md"
POOLS_PAGE = REPOSITORY / "docs" / "pools.md"
DEPLOY_PAGE = REPOSITORY / "deploy" / "README.md"
CHART = REPOSITORY / "deploy" / "chart"
NOT_RUN = ("kubectl exec ",)
"""Commands that need a kubelet."""
SECONDS = 300
KUBECTL = f'#!/bin/sh\nexec {sys.executable} {Path(__file__).parent / "kubectl.py"} "$@"\n'


@pytest.fixture(scope="module")
def isolated() -> bool:
    """Whether this machine lets a process have a network of its own."""
    try:
        return subprocess.run([*NAMESPACES, "true"], capture_output=True, check=False, timeout=60).returncode == 0
    except FileNotFoundError:
        return False


def commands_of(page: Path) -> list[str]:
    return [command for block in blocks(page) if block.language == "console" for command in commands(block)]


def script_of(page: Path) -> tuple[str, list[str]]:
    """Return a shell script of all the commands and files of a page, and the commands."""
    lines, run = ["set -e", "epp sim-server --port 8000 & model_server=$!"], []
    for block in blocks(page):
        if block.language == "console":
            for command in commands(block):
                if not command.startswith(NOT_RUN):
                    lines += [f"echo '@@ {len(run)}'", command]
                    run.append(command)
        elif found := file_of(block):
            name, text = found
            lines += [f"cat > {name} <<'END OF FILE'\n{text}END OF FILE"]
    return "\n".join([*lines, "echo '@@ end'", ""]), run


async def walk(page: Path, cluster, directory: Path, *, isolated: bool) -> dict[str, str]:
    """Run a page; return each command with the output from there to the next one."""
    script, run = script_of(page)
    (directory / "walk.sh").write_text(script)
    programs = directory / "programs"
    programs.mkdir()
    (programs / "kubectl").write_text(KUBECTL)
    (programs / "kubectl").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
        "HOME": str(directory),
        "KUBECONFIG": str(cluster.kubeconfig(directory / "kubeconfig")),
    }
    way, port = directory / "api.sock", cluster.access.port
    apart = (*NAMESPACES, sys.executable, str(APART), str(port), str(way)) if isolated else ()
    said = directory / "said.txt"
    async with gate(port, way):
        with said.open("w") as output:
            process = await asyncio.create_subprocess_exec(
                *apart,
                "bash",
                "walk.sh",
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                exit_code = await asyncio.wait_for(process.wait(), SECONDS)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # what the script left running
    text = said.read_text()
    assert exit_code == 0, text
    parts = re.split(r"@@ (?:\d+|end)\n", text)[1:-1]  # output need not end a line
    return dict(zip(run, parts, strict=True))


@contextlib.asynccontextmanager
async def default_namespace(cluster) -> AsyncIterator[Space]:
    """A cluster with the namespace `default`."""
    async with cluster.client() as admin:
        with contextlib.suppress(RefusedError):  # the server makes it, sooner or later
            await admin.create(write.manifest("v1", "Namespace", "default"))
        yield Space(cluster, admin, "default")


def health_in(output: str) -> dict:
    """Return the content of `/healthz`, among the log lines of the picker."""
    (line,) = [line for line in output.splitlines() if line.startswith('{"ready"')]
    return json.loads(line)


async def test_page_works_as_it_is_written(own_cluster, isolated, tmp_path):
    cluster = await own_cluster()
    async with default_namespace(cluster) as space:
        await space.pod("server", "127.0.0.1", labels={"app": "my-model-server"})
        applied, found, _, healthy, _, allowed, page, metrics, _ = (
            await walk(PAGE, cluster, tmp_path, isolated=isolated)
        ).values()
    assert applied == "inferencepool/my-pool serverside-applied\n"
    assert found.endswith("The picker would become ready, with 1 endpoint.\n")
    assert health_in(healthy)["ready"] is True
    assert " as system:serviceaccount:default:my-pool-epp: ok" in allowed
    states = {watch["resource"]: watch["state"] for watch in health_in(page)["kubernetes"]["watches"]}
    assert states["pods in default"] == "up to date"
    assert 'llm_d_epp_kubernetes_objects{namespace="default",resource="pods"} 1.0' in metrics


async def test_page_of_several_pools_works_as_it_is_written(own_cluster, isolated, tmp_path):
    cluster = await own_cluster()
    async with default_namespace(cluster) as space:
        await space.pod("chat", "127.0.0.1", labels={"app": "chat"})
        _, _, checked, _, _, endpoints, ready, config, served = (
            await walk(POOLS_PAGE, cluster, tmp_path, isolated=isolated)
        ).values()
    assert "pool code: configurations/code.yaml: ok" in checked
    assert checked.endswith(", with 1 endpoint in 2 pools, and would respond with 503 for code until a pod is ready.\n")
    assert endpoints == "{'chat': 1, 'code': 0}\n"
    assert 'inference_pool_ready_pods{inference_pool="chat",name="chat"} 1.0' in ready
    assert "prefix-cache-scorer" in config
    assert served == "service/pickers serverside-applied\n"


@pytest.mark.skipif(not CHART.exists(), reason="deploy/ has no chart")
async def test_release_of_the_chart_gives_the_account_what_the_check_asks_for(own_cluster, programs, tmp_path):
    cluster = await own_cluster()
    environment = {
        **os.environ,
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "KUBECONFIG": str(cluster.kubeconfig(tmp_path / "kubeconfig")),
    }
    install, *_ = [command for command in commands_of(DEPLOY_PAGE) if command.startswith("helm install my-pool ")]
    (check,) = [command for command in commands_of(PAGE) if command.startswith("epp check ") and " --as " in command]

    async def outcome(command: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_shell(
            command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        output, _ = await asyncio.wait_for(process.communicate(), SECONDS)
        return process.returncode, output.decode()

    exit_code, said = await outcome(check)
    assert exit_code == 1, said
    assert "error   pods: list and watch forbidden in namespace default (endpoints): apply the Role below" in said
    exit_code, said = await outcome(install)
    assert exit_code == 0, said
    said = ""

    async def is_allowed() -> bool:
        nonlocal said
        exit_code, said = await outcome(check)
        return exit_code == 0

    await until(is_allowed, "the roles of the release have effect", seconds=120)
    assert "as system:serviceaccount:default:my-pool-epp: ok" in said
    assert said.endswith(
        "The picker would become ready without endpoints, and would respond with 503 until a pod is ready.\n"
    )


def test_role_of_the_page_is_what_a_single_picker_needs():
    texts = [block.text for block in blocks(PAGE) if block.language == "yaml"]
    (role,) = [document for text in texts for document in yaml.safe_load_all(text) if document["kind"] == "Role"]
    granted = {
        (verb, group, resource)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    needs = needs_of_picker("default", pool_group=write.POOLS.partition("/")[0])
    assert granted == {
        (verb, need.resource.group, need.resource.plural)
        for need in needs
        if need.importance is not Importance.OPTIONAL
        for verb in need.verbs
    }


def test_all_kinds_that_are_read_are_in_the_table_of_rights():
    _, _, section = PAGE.read_text().partition("## Rights")
    named = set(re.findall(r"\w+", section.partition("```")[0]))
    needs = needs_of_picker("default", pool_group=write.POOLS.partition("/")[0], lease="l")
    assert {need.resource.plural for need in needs} <= named


def test_flags_and_metrics_of_the_page_exist():
    text = PAGE.read_text()
    flags, metrics = ((REPOSITORY / "docs" / f"{name}.md").read_text() for name in ("flags", "metrics"))
    for name in set(re.findall(r"`(--[\w-]+)", text)):
        assert f"`{name}`" in flags, name
    for name in set(re.findall(r"`(llm_d_epp_\w+)`", text)):
        assert f"`{name}`" in metrics, name


def test_commands_that_are_not_run_are_in_the_page():
    assert all(any(command.startswith(beginning) for command in commands_of(PAGE)) for beginning in NOT_RUN)
