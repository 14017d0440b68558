# SPDX-License-Identifier: Apache-2.0
"""Documents of cluster objects, and an API server that answers as a test says."""

from pathlib import Path

import pytest
import yaml

from epp.kube.access import KubeApi
from tests.support import hardware_objects
from tests.support.kube.scripted_api import scripted_api

DATA = Path(__file__).parents[1] / "data" / "accelerators"


@pytest.fixture
def documents():
    """Documents of fixture files, by file name without suffix."""

    def read(*names):
        return [each for name in names for each in yaml.safe_load_all((DATA / f"{name}.yaml").read_text())]

    return read


@pytest.fixture
def pod():
    return hardware_objects.pod


@pytest.fixture
def node():
    return hardware_objects.node


@pytest.fixture
def accelerator_class():
    return hardware_objects.accelerator_class


@pytest.fixture
async def script():
    """What an API server has and allows, and what it was asked."""
    async with scripted_api() as script:
        yield script


@pytest.fixture
async def scripted(script, tmp_path):
    """Access to the API server of the script."""
    api = KubeApi(script.write_kubeconfig(tmp_path / "kubeconfig"))
    yield api
    await api.close()
