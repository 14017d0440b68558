# SPDX-License-Identifier: Apache-2.0
"""`epp check --cluster` on a real API server: what it says of a user's access and of a pool, and how it ends."""

import json

import pytest
import yaml

from tests.support.commands import outcome
from tests.support.kube import manifests as write
from tests.support.kube.kubeconfig import write_kubeconfig
from tests.support.kube.pickers import picker_as
from tests.support.kube.space import space_in
from tests.support.kube.users import PICKER_ROLE

EVENTS = {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]}
FULL_ROLE = {**PICKER_ROLE, "rules": [*PICKER_ROLE["rules"], EVENTS]}
OF_HARDWARE = "Optional, for the hardware of endpoints"
POOLS = "inferencepools.inference.networking.k8s.io"


def role_without(resource, *verbs):
    """Return the picker's Role without some verbs on a resource."""
    rules = [
        {**rule, "verbs": [verb for verb in rule["verbs"] if resource not in rule["resources"] or verb not in verbs]}
        for rule in FULL_ROLE["rules"]
    ]
    return {**FULL_ROLE, "rules": [rule for rule in rules if rule["verbs"]]}


SERVICE = write.manifest("v1", "Service", "pool-epp", spec={"ports": [{"port": 9002}]})


@pytest.fixture
def check(tmp_path):
    """Run the command with a kubeconfig of that user, or of an administrator; give exit code and output."""

    async def check(space, *flags, user=None, pool="pool"):
        owner = space.cluster if user is None else user
        kubeconfig = owner.kubeconfig(tmp_path / f"kubeconfig-{getattr(owner, 'name', 'admin')}")
        name = [f"--pool-name={pool}"] if pool else []
        named = (*name, f"--pool-namespace={space}", f"--kubeconfig={kubeconfig}")
        return await outcome("check", "--cluster", *named, *flags)

    return check


@pytest.fixture
async def pool(space):
    """A pool of two ports, its Service, and pods in all states; endpoints of one of them can take requests."""
    await space.pool(ports=(8000, 8001))
    await space.apply(SERVICE)
    await space.pod("ready", "127.0.0.1")
    await space.pod("not-ready", "127.0.0.2", ready=False)
    await space.terminate(await space.pod("terminating", "127.0.0.3"))
    await space.pod("inactive", "127.0.0.4", annotations={"llm-d.ai/active-ports": "9000"})
    await space.admin.create(write.pod("unscheduled", namespace=space.namespace))
    await space.pod("other", "127.0.0.5", labels={"app": "another"})
    await space.apply(write.objective("interactive", pool="pool", priority=10))
    await space.apply(write.objective("of-another-pool", pool="another"))
    await space.apply(write.rewrite("canary", pool="pool", rules=[write.rule("chat", **{"chat-v2": None})]))
    return space


def line_with(said, text):
    """Return the one line with that text, its blanks made one."""
    (line,) = [" ".join(line.split()) for line in said.out if text in line]
    return line


def row(said, resource):
    """Return the words of the table on a resource."""
    (found,) = [words for line in said.out if (words := line.split())[:1] == [resource] and len(words) > 4]
    return " ".join(found[1:])


def printed_roles(said, title="All rights that the picker needs in its namespace"):
    """Return the objects of a text that an administrator is told to apply; none if there is no such text."""
    start = next((index for index, line in enumerate(said.out) if line.startswith(f"# {title}")), None)
    return [] if start is None else list(yaml.safe_load_all("\n".join(said.out[start : said.out.index("", start)])))


async def test_administrator_has_all_rights_and_sees_the_pool(check, pool):
    exit_code, said = await check(pool, "--ha-enable-leader-election", "--strict")
    assert exit_code == 0, said
    assert said.out[0] == f"cluster {pool.cluster.access.url} as admin: ok"
    assert row(said, "pods") == f"{pool} allowed required endpoints"
    assert row(said, "nodes") == "cluster allowed optional hardware"
    lease = f"leases.coordination.k8s.io epp-{pool}-pool.llm-d.ai"
    assert line_with(said, lease) == f"{lease} {pool} allowed required leader election"
    assert line_with(said, "InferencePool pool") == "InferencePool pool: pods with app=vllm; ports 8000, 8001, http"
    assert line_with(said, "match") == (
        "pods: 5 match, 1 ready, 1 not ready, 1 terminating, 1 without an IP address, 1 without an active port; "
        "endpoints: 2"
    )
    assert line_with(said, "objectives: ") == "objectives: 1, rewrites: 1; 1 more are for other pools"
    assert said.out[-1] == "The picker would become ready, with 2 endpoints."
    assert not any("apiVersion" in line for line in said.out)


async def test_user_with_the_role_alone_lacks_hardware_and_nothing_else(check, pool, tmp_path):
    user = await pool.user("picker", FULL_ROLE)
    exit_code, said = await check(pool, "--strict", user=user)
    assert exit_code == 0, said
    assert said.out[0].endswith(f" as {user.full_name}: ok")
    assert row(said, "nodes") == "cluster no get, list, watch optional hardware"
    assert line_with(said, " note ").endswith("optional kinds are forbidden; the roles below allow them")
    assert printed_roles(said) == []
    kinds = [each["kind"] for each in printed_roles(said, OF_HARDWARE)]
    assert kinds == ["Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"]
    assert said.out[-1] == "The picker would become ready, with 2 endpoints."
    async with picker_as(
        user.kubeconfig(tmp_path / "served"), "--pool-name=pool", f"--pool-namespace={pool}"
    ) as picker:
        assert sorted(await picker.endpoints()) == ["ready-rank-0", "ready-rank-1"]


async def test_printed_role_grants_what_is_missing(check, pool):
    user = await pool.user("picker", role_without("pods", "watch"))
    exit_code, said = await check(pool, user=user)
    assert exit_code == 1, said
    assert said.out[0].endswith("refused, 1 error")
    assert line_with(said, " error ") == (
        f"error pods: watch forbidden in namespace {pool} (endpoints): apply the Role below"
    )
    assert row(said, "pods") == f"{pool} no watch required endpoints"
    assert said.out[-1] == "The picker would become ready, but would not see changes of pods."
    optional = [
        OF_HARDWARE,
        "Optional, for the clusters and scores of a hub",
        "Needed unless --metrics-endpoint-auth=false, to check who may read metrics",
    ]
    printed = [*printed_roles(said), *(each for title in optional for each in printed_roles(said, title))]
    for each in printed:
        await pool.apply(each)
    for each in printed:
        if "rules" in each:
            await user.wait_for(each)
    exit_code, said = await check(pool, "--strict", user=user)
    assert exit_code == 0, said
    assert not any("apiVersion" in line or " note " in line for line in said.out)


async def test_user_without_any_right_gets_a_role_with_which_a_picker_becomes_ready(check, pool, tmp_path):
    user = await pool.user("picker")
    exit_code, said = await check(pool, user=user)
    assert exit_code == 1, said
    assert said.out[0].endswith("refused, 2 errors, 3 warnings")
    assert said.out[-1] == f"The picker would not become ready: it cannot use pods, {POOLS}."
    role, binding = printed_roles(said)
    assert binding["subjects"] == [{"kind": "ServiceAccount", "namespace": pool.namespace, "name": "picker"}]
    await pool.apply(role)
    await pool.apply(binding)
    await user.wait_for(role)
    exit_code, said = await check(pool, "--strict", user=user)
    assert exit_code == 0, said
    async with picker_as(
        user.kubeconfig(tmp_path / "served"), "--pool-name=pool", f"--pool-namespace={pool}"
    ) as picker:
        assert sorted(await picker.endpoints()) == ["ready-rank-0", "ready-rank-1"]


async def test_administrator_checks_the_account_of_the_picker(check, pool):
    user = await pool.user("picker", role_without("inferencepools", "list"))
    exit_code, said = await check(pool, "--as", user.full_name, "--ha-enable-leader-election", "--output=json")
    assert exit_code == 1, said
    found = json.loads("\n".join(said.out))["cluster"]
    assert (found["user"], found["would_be_ready"]) == (user.full_name, False)
    missing = {each["resource"]: each["missing"] for each in found["access"] if each["importance"] == "required"}
    assert missing == {"pods": [], POOLS: ["list"], "leases.coordination.k8s.io": ["get", "update"]}
    (lease,) = [rule for rule in found["roles"][0]["rules"] if "resourceNames" in rule]
    assert lease == {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": [f"epp-{pool}-pool.llm-d.ai"],
        "verbs": ["get", "update"],
    }
    assert found["roles"][1]["subjects"] == [{"kind": "ServiceAccount", "namespace": pool.namespace, "name": user.name}]


async def test_impersonation_needs_a_right_of_its_own(check, space):
    user = await space.user("picker", PICKER_ROLE)
    exit_code, said = await check(space, "--as=admin", user=user)
    assert exit_code == 1
    assert said.error.startswith("error: --as: ")
    assert said.error.endswith("; allow the user of the kubeconfig to impersonate")


async def test_objects_that_are_not_in_effect_as_written_are_warnings(check, space):
    await space.pool()
    await space.apply(SERVICE)
    await space.pod("ready", "127.0.0.1")
    await space.apply(write.rewrite("canary", pool="pool", rules=[write.rule("chat", a=90, b=None)]))
    empty = await space.apply(write.rewrite("empty", pool="pool", rules=[]))
    await space.admin.replace({key: part for key, part in empty.items() if key != "spec"})
    assert (await check(space))[0] == 0
    exit_code, said = await check(space, "--strict")
    assert exit_code == 2, said
    assert line_with(said, "/empty ") == (
        f"warning InferenceModelRewrite {space}/empty is not in effect: spec.rules is missing: add it"
    )
    assert line_with(said, "/canary: ") == (
        f"warning InferenceModelRewrite {space}/canary: spec.rules[0]: b has no weight and others have one, so it is "
        "never chosen: give all a weight, or none"
    )


async def test_pods_with_labels_need_no_pool(check, space):
    await space.pod("ready", "127.0.0.1")
    rules = [rule for rule in PICKER_ROLE["rules"] if "inferencepools" not in rule["resources"]]
    user = await space.user("picker", {**PICKER_ROLE, "rules": rules})
    flags = ("--endpoint-selector=app=vllm", "--endpoint-target-ports=8000", "--strict")
    exit_code, said = await check(space, *flags, user=user, pool=None)
    assert exit_code == 0, said
    assert not any("inferencepools" in line or " events " in line for line in said.out)
    assert line_with(said, "pods with") == "pods with app=vllm; ports 8000"
    assert said.out[-1] == "The picker would become ready, with 1 endpoint."


async def test_files_are_checked_beside_the_cluster(check, pool, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: queue-scorrer}]\n")
    exit_code, said = await check(pool, str(config))
    assert exit_code == 1
    assert said.out[0] == f"{config}: refused, 1 error"
    assert said.out[-1] == "The picker would become ready, with 2 endpoints."
    exit_code, said = await check(pool, str(config), "--output=json")
    assert exit_code == 1
    found = json.loads("\n".join(said.out))
    assert [file["file"] for file in found["files"]] == [str(config)]
    assert found["cluster"]["pool"]["endpoints"] == 2


async def test_kinds_that_are_not_installed_are_told_apart_from_forbidden_ones(check, own_cluster):
    cluster = await own_cluster(crds=("inferencemodelrewrites.inference.networking.x-k8s.io",))
    async with space_in(cluster) as space:
        exit_code, said = await check(space)
        assert exit_code == 1, said
        assert line_with(said, " error ") == (
            f"error {POOLS}: not installed (pods and ports of the pool): install the CustomResourceDefinition of "
            "InferencePool in inference.networking.k8s.io/v1, or correct --pool-group"
        )
        assert row(said, POOLS) == f"{space} not installed required pods and ports of the pool"
        absent = line_with(said, "not installed, and not needed")
        assert "inferenceobjectives.llm-d.ai" in absent
        assert "gpus.tensor-fusion.ai" in absent
        assert said.out[-1] == f"The picker would not become ready: it cannot use {POOLS}."
        user = await space.user("picker")
        exit_code, said = await check(space, user=user)
        assert exit_code == 1, said
        assert "not installed" in line_with(said, f" {POOLS}: ")
        former = "inferencemodelrewrites.inference.networking.x-k8s.io"
        assert "forbidden" in line_with(said, f" {former}: ")
        assert "gpus.tensor-fusion.ai" in line_with(said, "not installed, and not needed")


async def test_wrong_token_is_one_sentence_with_the_remedy(cluster, tmp_path):
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", cluster.access, token="stale")  # noqa: S106  no password
    exit_code, said = await outcome("check", "--cluster", "--kubeconfig", str(kubeconfig))
    assert exit_code == 1
    assert said.out == []
    assert said.error == (
        f"error: the API server {cluster.access.url} rejects the credentials: Unauthorized; log in again, or set a "
        "kubeconfig with a valid token or certificate (--kubeconfig or KUBECONFIG)"
    )


async def test_absent_api_server_is_one_sentence_with_the_remedy(own_cluster, tmp_path):
    cluster = await own_cluster(crds=("inferencepools",))
    kubeconfig = cluster.kubeconfig(tmp_path / "kubeconfig")
    cluster.server.kill()
    exit_code, said = await outcome("check", "--cluster", "--kubeconfig", str(kubeconfig))
    assert exit_code == 1
    assert said.error.startswith(f"error: no response from the API server: {cluster.access.url}: ")
    assert said.error.endswith("; start it, or correct its address in the kubeconfig (--kubeconfig or KUBECONFIG)")


async def test_kubeconfig_that_is_missing_is_one_sentence(tmp_path):
    exit_code, said = await outcome("check", "--cluster", "--kubeconfig", str(tmp_path / "absent"))
    assert exit_code == 1
    assert said.error.startswith("error: no access to Kubernetes: ")
