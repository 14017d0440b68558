# SPDX-License-Identifier: Apache-2.0
"""Programs of the tests on Kubernetes: kube-apiserver, etcd and helm, built once with Go from its module proxy.

    python -m tests.kube.build_assets

They are kept in `KUBEBUILDER_ASSETS`, or else in a directory of these versions in the user's cache.
"""

import sys
from pathlib import Path

from tests.support.go_programs import Program, ProgramSet

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

if __name__ == "__main__":
    sys.exit(ASSETS.main())
