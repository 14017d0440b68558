# SPDX-License-Identifier: Apache-2.0
"""Access to Kubernetes from a kubeconfig, a service account, or neither: each mistake is one sentence with a remedy."""

import base64
from pathlib import Path

import pytest

from epp.framework import ConfigurationError
from epp.kube.configuration import client_of, read_config
from tests.support import certificates
from tests.support.kube.kube_server import kubeconfig

SERVER = "https://10.0.0.1:6443"
TOKEN = "secret"  # noqa: S105  of no server
PEM = base64.b64encode(b"-----BEGIN CERTIFICATE-----").decode()
WITHOUT_ITS_USER = b"""
current-context: x
clusters: [{name: y, cluster: {}}]
contexts: [{name: x, context: {cluster: y, user: z}}]
"""
NO_ACCOUNT = Path("/there/is/none")


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    """No kubeconfig but those that a test names."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)


def problem(path: Path | None, service_account: Path = NO_ACCOUNT) -> str:
    """Return what is wrong, without what all sentences begin with."""
    with pytest.raises(ConfigurationError) as refused:
        client_of(read_config(path, service_account))
    said = str(refused.value)
    assert "\n" not in said
    return said.removeprefix("no access to Kubernetes: ").removeprefix(f"{path}: ")


def test_nothing_at_all_names_every_way(tmp_path):
    assert problem(None) == (
        f"there is no service account in {NO_ACCOUNT} and no {tmp_path}/home/.kube/config: run in a pod, or set "
        "--kubeconfig or KUBECONFIG to a file"
    )


def test_several_files_in_the_variable_are_refused(monkeypatch):
    monkeypatch.setenv("KUBECONFIG", "/a:/b")
    assert problem(None).startswith(
        "KUBECONFIG names several files, /a:/b: name one file, such as the output of `kubectl"
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a: [", "line 1: neither YAML nor JSON: "),
        (b"\x00", "line 1: neither YAML nor JSON: "),
        (b"[" * 1000, "line 1: nested more than 50 deep; correct it"),
        (b"\xff", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte; set --kubeconfig or "),
        (b"", "is not a kubeconfig: create one with `kubectl config view --flatten --minify`"),
        (b"- a", "is not a kubeconfig: "),
        (b"{}", "it has no current-context: set it with `kubectl config use-context`"),
        (b"current-context: [x]", "it has no current-context: "),
        (b"current-context: x", "it has current-context 'x', which is not in contexts: add it, or choose"),
        (b"{current-context: x, contexts: [{name: x}]}", "it has current-context 'x', which is not in contexts"),
        (
            b"{current-context: x, contexts: [5, {name: x, context: {cluster: y}}]}",
            "it has context 'x' with cluster 'y', which is not in clusters: add it, or choose another",
        ),
        (
            WITHOUT_ITS_USER,
            "it has context 'x' with user 'z', which is not in users: add it, or choose another context",
        ),
    ],
)
def test_file_that_is_no_kubeconfig_is_named_with_what_it_lacks(tmp_path, content, said):
    path = tmp_path / "config"
    path.write_bytes(content)
    assert problem(path).startswith(said)


def test_missing_file_is_named(tmp_path):
    assert problem(tmp_path / "none") == (
        "No such file or directory; set --kubeconfig or KUBECONFIG to a kubeconfig file, or run in a pod"
    )
    assert problem(tmp_path).startswith("it has none of the files kubeconfig, value: ")


@pytest.mark.parametrize(
    ("cluster", "user", "said"),
    [
        ({"server": "10.0.0.1"}, {}, "server is '10.0.0.1': write the URL of the API server, such as https://"),
        ({"server": "https://[::1"}, {}, "server is 'https://[::1': write the URL of the API server"),
        ({"server": "https://a:b"}, {}, "server is 'https://a:b': write the URL of the API server"),
        ({"server": None}, {}, "server is None: write the URL of the API server"),
        ({"proxy-url": "http://p"}, {}, "proxy-url is not supported: set the environment variable HTTPS_PROXY instead"),
        ({"tls-server-name": "x"}, {}, "tls-server-name is not supported: write a server whose name is in its "),
        ({"certificate-authority": "ca.crt"}, {}, "certificate-authority: {}/ca.crt: No such file or directory; "),
        ({"certificate-authority-data": "eHg="}, {}, "certificate-authority-data is not PEM in base64: "),
        ({"certificate-authority-data": 5}, {}, "context 'here': Expected `str | null`, got `int`"),
        ({}, {"tokenFile": "/none"}, "tokenFile: /none: No such file or directory; correct the path"),
        ({}, {"auth_provider": {"name": "gcp"}}, "auth-provider is not supported: use exec instead"),
        ({}, {"client_certificate_data": PEM}, "the user has a client-certificate but no client-key: add it"),
        ({}, {"client_certificate_data": PEM, "client_key_data": "!"}, "client-key-data is not PEM in base64: "),
        (
            {},
            {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "x"}},
            "exec.apiVersion is 'client.authentication.k8s.io/v1': write client.authentication.k8s.io/v1beta1, or use ",
        ),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path, cluster, user, said):
    path = kubeconfig(tmp_path / "config", SERVER, cluster=cluster, **user)
    assert problem(path).startswith(said.format(tmp_path))


def test_what_other_contexts_have_does_not_matter(tmp_path):
    path = kubeconfig(tmp_path / "config", SERVER, token=TOKEN)
    path.write_text(path.read_text() + "extensions: 5\n")
    path.write_text(path.read_text().replace("users:\n", "users:\n- name: other\n  user: {token: 7, exec: no}\n- 3\n"))
    found = read_config(path, NO_ACCOUNT)
    assert found.user is not None
    assert (found.cluster.server, found.user.token, found.context.namespace) == (SERVER, TOKEN, "ns")


def test_paths_are_relative_to_the_file_and_not_to_the_process(tmp_path):
    certificates.write(tmp_path, *certificates.new_pair())
    (tmp_path / "token").write_text("secret\n")
    paths = {"client_certificate": "tls.crt", "client_key": "tls.key", "tokenFile": "token"}
    path = kubeconfig(tmp_path / "config", SERVER, cluster={"certificate-authority": "tls.crt"}, **paths)
    found = read_config(path, NO_ACCOUNT)
    assert found.user is not None
    assert found.user.token_file == str(tmp_path / "token")
    client_of(found)  # all files can be read


def test_context_without_a_user_has_no_credentials(tmp_path):
    path = kubeconfig(tmp_path / "config", SERVER)
    path.write_text(path.read_text().replace("user: me", "").partition("users:")[0])
    client_of(read_config(path, NO_ACCOUNT))


@pytest.fixture
def account(tmp_path, monkeypatch) -> Path:
    """The directory of a service account, as it is in a pod."""
    directory = tmp_path / "serviceaccount"
    directory.mkdir()
    (directory / "token").write_text("secret")
    (directory / "namespace").write_text("ours")
    _, certificate = certificates.new_pair()
    (directory / "ca.crt").write_bytes(certificate)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return directory


def test_flag_goes_before_the_variable_the_service_account_of_the_pod_and_the_home_directory(
    account, tmp_path, monkeypatch
):
    (tmp_path / "home/.kube").mkdir(parents=True)
    kubeconfig(tmp_path / "home/.kube/config", "https://home")
    named, given = kubeconfig(tmp_path / "named", "https://named"), kubeconfig(tmp_path / "given", "https://given")
    assert read_config(None, NO_ACCOUNT).cluster.server == "https://home"
    found = read_config(None, account)
    assert (found.cluster.server, found.context.namespace) == ("https://10.96.0.1:443", "ours")
    client_of(found)
    monkeypatch.setenv("KUBECONFIG", str(named))
    assert read_config(None, account).cluster.server == "https://named"
    assert read_config(given, account).cluster.server == "https://given"


def test_service_account_without_the_address_of_the_server_names_the_variables(account, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "")
    assert problem(None, account) == (
        f"{account} has a service account, but the environment has no KUBERNETES_SERVICE_HOST and no "
        "KUBERNETES_SERVICE_PORT: set it to the address of the API server, or set KUBECONFIG"
    )


@pytest.mark.parametrize("name", ["namespace", "ca.crt"])
def test_service_account_that_is_mounted_in_part_is_named(account, name):
    (account / name).unlink()
    assert f"{account}" in problem(None, account)
