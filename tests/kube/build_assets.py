# SPDX-License-Identifier: Apache-2.0
"""Programs of the tests on Kubernetes: kube-apiserver, etcd, helm and kwok, built once with Go from its module proxy.

    python -m tests.kube.build_assets

They are kept in `KUBEBUILDER_ASSETS`, or else in a directory of these versions in the user's cache.
"""

import sys
from pathlib import Path

from tests.support.go_programs import Program, ProgramSet, copy_of_module

MODULES = Path(__file__).parent / "assets"

ASSETS = ProgramSet(
    (
        Program("etcd", "v3.6.5", "go.etcd.io/etcd/server/v3", MODULES / "etcd"),
        Program(
            "helm", "v3.22.0", "helm.sh/helm/v3/cmd/helm", MODULES / "helm", "helm.sh/helm/v3/internal/version.version"
        ),
        Program(
            "kube-apiserver",
            "v1.36.3",
            "k8s.io/kubernetes/cmd/kube-apiserver",
            MODULES / "kube-apiserver",
            "k8s.io/component-base/version.gitVersion",
        ),
    ),
    make_target="kube-assets",
    place_variable="KUBEBUILDER_ASSETS",
)

KWOK = ProgramSet(
    (Program("kwok", "v0.8.0", "sigs.k8s.io/kwok/cmd/kwok", MODULES / "kwok"),),
    make_target="kube-assets",
    place_variable="KWOK_ASSETS",
)


def main() -> int:
    """Build all; without Go, say how to get the programs, and fail where continuous integration needs them."""
    code = ASSETS.main() or KWOK.main()
    if not KWOK.missing(place := KWOK.directory()):
        copy_of_module(MODULES / "kwok", "sigs.k8s.io/kwok", "kustomize/stage", place / "stage")
    return code


if __name__ == "__main__":
    sys.exit(main())
