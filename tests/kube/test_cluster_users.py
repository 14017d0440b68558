# SPDX-License-Identifier: Apache-2.0
"""Users of these tests have the rights of their roles and no others, and tokens that end."""

import pytest
import yaml

from tests.support.kube import manifests as write
from tests.support.kube.client import RefusedError, client_of, listed
from tests.support.kube.users import PICKER_ROLE

RULES = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}]
NODE_READER = write.manifest(write.RBAC, "ClusterRole", "nodes", rules=RULES)


async def test_user_with_a_role_may_do_what_it_says_and_nothing_else(space):
    await space.pod("a", "127.0.0.9")
    await space.pool("pool")
    user = await space.user("picker", PICKER_ROLE)
    async with user.client() as client:
        assert listed((await client.list("v1", "Pod", space.namespace))["items"]) == ["a"]
        assert listed((await client.list(write.POOLS, "InferencePool", space.namespace))["items"]) == ["pool"]
        for denied in (
            client.list("v1", "Node"),
            client.list("v1", "Pod"),  # in all namespaces
            client.list("v1", "Pod", "default"),
            client.list("v1", "Secret", space.namespace),
            client.delete(write.pod("a", namespace=space.namespace)),
        ):
            with pytest.raises(RefusedError, match="403 Forbidden"):
                await denied


async def test_cluster_role_is_added_and_taken_away(space):
    user = await space.user("picker", PICKER_ROLE)
    binding = await space.grant(user, NODE_READER)
    async with user.client() as client:
        await client.list("v1", "Node")
    await space.delete(binding)
    await user.wait_until_not(NODE_READER)
    async with user.client() as client:
        with pytest.raises(RefusedError, match="403 Forbidden"):
            await client.list("v1", "Node")


async def test_revoked_token_is_refused_and_the_new_one_is_not(space):
    user = await space.user("picker", PICKER_ROLE)
    old = await user.renew()
    await user.revoke(old)
    async with client_of(space.cluster.access, old) as client:
        with pytest.raises(RefusedError, match="401 Unauthorized"):
            await client.list("v1", "Pod", space.namespace)
    async with user.client() as client:
        await client.list("v1", "Pod", space.namespace)


async def test_kubeconfig_names_server_namespace_and_token(space, tmp_path):
    user = await space.user("picker", PICKER_ROLE)
    config = yaml.safe_load(user.kubeconfig(tmp_path / "config").read_text())
    assert config["clusters"][0]["cluster"]["server"] == space.cluster.access.url
    assert config["contexts"][0]["context"]["namespace"] == space.namespace
    assert config["users"][0]["user"] == {"token": user.token}
    config = yaml.safe_load(user.kubeconfig(tmp_path / "config", token_file=tmp_path / "token").read_text())
    assert config["users"][0]["user"] == {"tokenFile": str(tmp_path / "token")}


async def test_directory_of_the_service_account_is_exchanged_as_a_kubelet_does(space, tmp_path):
    user = await space.user("picker", PICKER_ROLE)
    environment = user.mount(tmp_path / "serviceaccount")
    port = space.cluster.access.port
    assert environment == {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}
    token = tmp_path / "serviceaccount" / "token"
    assert token.read_text() == user.token
    old = await user.renew()
    assert token.read_text() == old
    user.mount(tmp_path / "serviceaccount")
    assert token.read_text() == user.token
    assert (tmp_path / "serviceaccount" / "namespace").read_text() == space.namespace
    assert (tmp_path / "serviceaccount" / "ca.crt").read_text() == space.cluster.access.ca.read_text()
    assert len(list((tmp_path / "serviceaccount").glob("..version-*"))) == 1
