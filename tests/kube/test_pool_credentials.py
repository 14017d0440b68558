# SPDX-License-Identifier: Apache-2.0
"""Credentials that are rotated, those of a pod, client certificates, and an authority that is wrong at first."""

import datetime as dt
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from epp.framework import SystemClock
from epp.kube.access import KubeApi
from epp.kube.cluster import Cluster
from epp.kube.objects.decode import decode_object
from epp.kube.resources import PODS
from epp.runtime.supervisor import Supervisor
from tests.support import certificates
from tests.support.kube import manifests as write
from tests.support.kube.fleet import fleet_in
from tests.support.kube.pickers import picker_as, pool_of
from tests.support.kube.space import space_in
from tests.support.kube.users import PICKER_ROLE
from tests.support.load import load_on
from tests.support.waiting import until


@pytest.fixture
async def fleet(space):
    """A ready pod of the pool, and one with another label."""
    async with fleet_in(space) as fleet:
        await fleet.start("a")
        await fleet.start("b", labels={"app": "other"})
        await space.pool(ports=fleet.ports)
        yield fleet


async def test_token_that_is_replaced_in_its_file_is_used_once_the_old_one_is_refused(fleet, space, tmp_path):
    user = await space.user("picker", PICKER_ROLE)
    token = tmp_path / "token"
    token.write_text(user.token)
    kubeconfig = user.kubeconfig(tmp_path / "kubeconfig", token_file=token)
    async with picker_as(kubeconfig, *pool_of(space)) as picker, load_on(picker.url) as load:
        await picker.uses("a-rank-0")
        old = await user.renew()
        token.write_text(user.token)
        await user.revoke(old)
        await space.pool(selector={"app": "other"}, ports=fleet.ports)  # means another watch, which has to log in
        await picker.uses("b-rank-0")
        await load.reaches("b-rank-0")


async def test_token_that_is_refused_changes_nothing_and_is_said_until_there_is_a_good_one(fleet, space, tmp_path):
    user = await space.user("picker", PICKER_ROLE)
    kubeconfig = user.kubeconfig(tmp_path / "kubeconfig")
    async with picker_as(kubeconfig, *pool_of(space)) as picker, load_on(picker.url) as load:
        await picker.uses("a-rank-0")
        await user.revoke(await user.renew())
        await space.pool(selector={"app": "other"}, ports=fleet.ports)
        line = await picker.command.says("the API server rejects the credentials: Unauthorized")
        assert f"pods in {space}" in line
        await load.reaches("a-rank-0")
        user.kubeconfig(kubeconfig)
        await picker.uses("b-rank-0")
        await load.reaches("b-rank-0")


async def test_directory_of_a_service_account_is_read_again_after_a_rotation(fleet, space, tmp_path, monkeypatch):
    user = await space.user("picker", PICKER_ROLE)
    for name, value in user.mount(tmp_path / "serviceaccount").items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    api = KubeApi(service_account=tmp_path / "serviceaccount")
    assert (api.server, api.namespace) == (space.cluster.access.url, space.namespace)
    supervisor = Supervisor()
    cluster = Cluster(api, clock=SystemClock(), supervisor=supervisor)
    try:
        await cluster.watch(PODS, decode_object, namespace=space.namespace).first_list()
        old = await user.renew()
        user.mount(tmp_path / "serviceaccount")
        await user.revoke(old)
        others = cluster.watch(PODS, decode_object, namespace=space.namespace, selector={"labelSelector": "app=other"})
        await until(lambda: list(others.objects) == [f"{space}/b"], "the pods are listed with the new token")
    finally:
        await cluster.close()
        await supervisor.stop()


async def test_authority_that_is_wrong_is_said_and_counts_once_it_is_corrected(fleet, space, tmp_path):
    user = await space.user("picker", PICKER_ROLE)
    kubeconfig = user.kubeconfig(tmp_path / "kubeconfig")
    good = kubeconfig.read_text()
    _, certificate = certificates.new_pair("127.0.0.1")
    (tmp_path / "wrong.crt").write_bytes(certificate)
    document = yaml.safe_load(good)
    document["clusters"][0]["cluster"]["certificate-authority"] = "wrong.crt"
    kubeconfig.write_text(yaml.safe_dump(document))
    async with picker_as(kubeconfig, *pool_of(space), ready=False) as picker:
        line = await picker.command.says("objects not readable")
        assert "its certificate is not accepted: " in line
        assert "correct the certificate authority or the address" in line
        kubeconfig.write_text(good)
        await picker.command.says('"msg":"ready"')
        await picker.uses("a-rank-0")


async def test_client_certificate_is_enough(own_cluster, tmp_path):
    authority = tmp_path / "clients.crt"
    write_client(authority, tmp_path, "somebody")
    async with space_in(await own_cluster(f"--client-ca-file={authority}", crds=("inference",))) as space:
        await space.apply({**PICKER_ROLE, "metadata": {"name": "picker"}})
        group = write.RBAC.partition("/")[0]
        role, user = {"kind": "Role", "name": "picker"}, {"kind": "User", "name": "somebody"}
        parties = {"roleRef": {"apiGroup": group, **role}, "subjects": [{"apiGroup": group, **user}]}
        await space.apply({**write.manifest(write.RBAC, "RoleBinding", "picker"), **parties})
        access = space.cluster.access
        document = {
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": {"server": access.url, "certificate-authority": str(access.ca)}}],
            "users": [{"name": "it", "user": {"client-certificate": "client.crt", "client-key": "client.key"}}],
        }
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(document))
        async with fleet_in(space) as fleet:
            await fleet.start("a")
            await space.pool(ports=fleet.ports)
            async with picker_as(kubeconfig, *pool_of(space)) as picker:
                await picker.uses("a-rank-0")


def write_client(authority: Path, directory: Path, user: str) -> None:
    """Write an authority, and the certificate and the key of a user of it."""
    now = dt.datetime.now(dt.UTC)
    signer = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "clients")])
    key = ec.generate_private_key(ec.SECP256R1())

    def signed(subject: x509.Name, public_key: ec.EllipticCurvePublicKey, *, ca: bool) -> bytes:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(minutes=5))
            .not_valid_after(now + dt.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .sign(signer, hashes.SHA256())
            .public_bytes(serialization.Encoding.PEM)
        )

    authority.write_bytes(signed(issuer, signer.public_key(), ca=True))
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, user)])
    (directory / "client.crt").write_bytes(signed(subject, key.public_key(), ca=False))
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (directory / "client.key").write_bytes(pem)
