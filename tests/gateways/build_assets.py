# SPDX-License-Identifier: Apache-2.0
"""Programs of the tests with gateways: two control planes and a controller manager, built once with Go.

    python -m tests.gateways.build_assets

Beside them are files of the same modules: Istio's chart, and the definitions of its objects, of the Gateway API and of
its inference extension. All are kept in `GATEWAY_ASSETS`, or else in a directory of these versions in the user's
cache.
"""

import sys
from pathlib import Path

from tests.support.go_programs import Program, ProgramSet, copy_of_module

MODULES = Path(__file__).parent / "assets"
ISTIO = "v0.0.0-20260827124520-eed52ebb66ad"
"""Of the branch that becomes Istio 1.31; releases of Istio are no versions of its Go module."""

ASSETS = ProgramSet(
    (
        Program(
            "envoy-gateway", "v1.9.1", "github.com/envoyproxy/gateway/cmd/envoy-gateway", MODULES / "envoy-gateway"
        ),
        Program(
            "kube-controller-manager",
            "v1.36.3",
            "k8s.io/kubernetes/cmd/kube-controller-manager",
            MODULES / "kube-controller-manager",
            "k8s.io/component-base/version.gitVersion",
        ),
        Program("pilot-discovery", ISTIO, "istio.io/istio/pilot/cmd/pilot-discovery", MODULES / "pilot-discovery"),
    ),
    make_target="gateway-assets",
    place_variable="GATEWAY_ASSETS",
)

FILES = {
    "crds-envoy-gateway": ("github.com/envoyproxy/gateway", "charts/gateway-crds-helm/templates/generated"),
    "istiod": ("istio.io/istio", "manifests/charts/istio-control/istio-discovery"),
    "crds/istio.yaml": ("istio.io/istio", "manifests/charts/base/files/crd-all.gen.yaml"),
    "crds/gateway-api": ("sigs.k8s.io/gateway-api", "config/crd/standard"),
    "crds/inference-extension": ("sigs.k8s.io/gateway-api-inference-extension", "config/crd/bases"),
}
"""Place of each file or directory beside the programs, and its module and place there."""


def copy_files(place: Path) -> None:
    """Copy what is not there yet from the modules that Istio is built from. Raises CalledProcessError if Go fails."""
    for name, (module, path) in FILES.items():
        directory = MODULES / ("envoy-gateway" if "envoyproxy" in module else "pilot-discovery")
        copy_of_module(directory, module, path, place / name)


def main() -> int:
    """Build and copy; without Go, say how to get the programs, and fail where continuous integration needs them."""
    code = ASSETS.main()
    if not ASSETS.missing(place := ASSETS.directory()):
        copy_files(place)
    return code


if __name__ == "__main__":
    sys.exit(main())
