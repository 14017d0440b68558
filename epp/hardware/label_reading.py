# SPDX-License-Identifier: Apache-2.0
"""Common parts of the label readers, and labels of no specific vendor: spot, topology, PCI."""

import re
from collections.abc import Iterable, Mapping

from epp.framework.accelerators.tag import AcceleratorKind, AttributeValue, Sharing
from epp.hardware.catalogue import Catalogue, read_table
from epp.hardware.facts.merge import Facts, Rank

MOST_DEVICES = 65_536
"""Maximum number of devices of a node, and of endpoints that share one."""
MIB = 2**20
MOST_MEMORY = 2**46
"""Maximum number of bytes of a device."""
_INSTANCE_TYPES = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_SHARINGS = {"mps": Sharing.MPS, "time-slicing": Sharing.TIME_SLICING, "time-sharing": Sharing.TIME_SLICING}
_SPOT: Mapping[str, Mapping[str, bool]] = {
    "karpenter.sh/capacity-type": {"spot": True, "on-demand": False, "reserved": False},
    "cloud.google.com/gke-spot": {"true": True, "false": False},
    "cloud.google.com/gke-preemptible": {"true": True, "false": False},
    "eks.amazonaws.com/capacitytype": {"spot": True, "on_demand": False, "capacity_block": False},
    "kubernetes.azure.com/scalesetpriority": {"spot": True, "regular": False},
}
_PCI = re.compile(
    r"feature\.node\.kubernetes\.io/pci-(?P<device_class>[0-9a-f]{4})_(?P<vendor>[0-9a-f]{4})"
    r"(_(?P<device>[0-9a-f]{4}))?(_[0-9a-f]{4})*\.present"
)
# device class and vendor, without display controllers of AMD and Intel, which usually are for the console
_PCI_VENDORS: Mapping[tuple[str, str], tuple[str, AcceleratorKind]] = {
    ("0300", "10de"): ("nvidia", AcceleratorKind.GPU),
    ("0302", "10de"): ("nvidia", AcceleratorKind.GPU),
    ("0380", "1002"): ("amd", AcceleratorKind.GPU),
    ("1200", "1002"): ("amd", AcceleratorKind.GPU),
    ("0380", "8086"): ("intel", AcceleratorKind.XPU),
    ("1200", "1da3"): ("intel", AcceleratorKind.NPU),
    ("1200", "17cb"): ("qualcomm", AcceleratorKind.NPU),
    ("1200", "19e5"): ("huawei", AcceleratorKind.NPU),
}
PCI_DEVICES = read_table("pci_devices.yaml", dict[str, dict[str, str]])
"""Models by PCI vendor and device id."""
_ATTRIBUTES = (
    "nvidia.com/",
    "amd.com/",
    "gpu.intel.com/",
    "cloud.google.com/gke-accelerator",
    "cloud.google.com/gke-gpu",
    "cloud.google.com/gke-max-shared-clients-per-gpu",
    "cloud.google.com/gke-tpu",
    "habana.ai/",
    "karpenter.k8s.aws/instance-accelerator",
    "karpenter.k8s.aws/instance-gpu",
    "topology.kubernetes.io/",
)
_NO_ATTRIBUTES = ("nvidia.com/gpu.deploy.", "nvidia.com/gfd.timestamp")
_COUNT = re.compile(r"[0-9]{1,18}")
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
TRUTHS: Mapping[str, bool] = {"true": True, "false": False}


class Reading(Facts, frozen=True, kw_only=True):
    """Facts from the labels of one vendor or cloud, and those on the whole node."""

    source: str = "labels"
    rank: Rank = Rank.LABELS
    lookup: str = ""
    """Name to look up in the catalogue; empty for none."""
    device_memory_bytes: int | None = None
    """Memory of a whole device, which identifies the size of a model."""
    node_count: int | None = None
    """Devices of the node."""
    slice_chips: int | None = None
    """Chips of the whole TPU slice of the node."""
    mig: Mapping[str, int] = {}
    """Number of slices by canonical name of the MIG profile."""


class LabelReader:
    """Reads labels of one node as text, number or boolean; collects warnings about invalid values."""

    def __init__(self, labels: Mapping[str, str], catalogue: Catalogue) -> None:
        self.labels = labels
        self.catalogue = catalogue
        self.warnings: list[str] = []

    def ignored(self, key: str, problem: str, *, text: str = "") -> None:
        """Warn that the value of a label, or `text`, has no effect."""
        self.warnings.append(f"label {key}: {text or self.text(key)!r} {problem}: ignored")

    def text(self, key: str) -> str:
        return self.labels.get(key, "").strip()

    def number(self, key: str, most: int = MOST_DEVICES) -> int | None:
        """Return the value as a number from 0 to `most`; None without the label, or for another value."""
        text = self.text(key)
        if not text:
            return None
        if not _COUNT.fullmatch(text):
            self.ignored(key, "is not a whole number")
        elif int(text) > most:
            self.ignored(key, f"is more than {most}")
        else:
            return int(text)
        return None

    def mebibytes(self, key: str) -> int | None:
        """Return a number of MiB in bytes; None for 0, or without a valid number."""
        return (self.number(key, MOST_MEMORY // MIB) or 0) * MIB or None

    def truth(self, key: str) -> bool | None:
        return TRUTHS.get(self.text(key).lower())

    def sharing(self, strategy: str, sharers: str) -> tuple[Sharing | None, int]:
        """Return sharing strategy and number of sharers from two labels; the default strategy is time slicing."""
        number = max(self.number(sharers) or 1, 1)
        named = _SHARINGS.get(self.text(strategy).lower())
        return Sharing.TIME_SLICING if named is None and number > 1 else named, number


def first_label(labels: Mapping[str, str], names: Iterable[str] = _INSTANCE_TYPES) -> str:
    """Return the first of these labels that is set, by default the machine type; empty for none."""
    return next((text for name in names if (text := labels.get(name, "").strip())), "")


def spot_from_labels(labels: Mapping[str, str]) -> bool | None:
    """Return whether the node is a spot instance; None without such labels.

    Supports labels of Karpenter, GKE, EKS and AKS, ignoring case. Contradictory labels count as spot.
    """
    spots = [
        spot
        for key, value in labels.items()
        if (spot := _SPOT.get(key.lower(), {}).get(value.strip().lower())) is not None
    ]
    return any(spots) if spots else None


def common_facts(labels: Mapping[str, str]) -> Reading:
    """Return spot, and labels of accelerators and topology as attributes: numbers, booleans or text."""
    attributes: dict[str, AttributeValue] = {
        key: int(value) if _INTEGER.fullmatch(value) else TRUTHS.get(value, value)
        for key, value in labels.items()
        if key.startswith(_ATTRIBUTES) and not key.startswith(_NO_ATTRIBUTES)
    }
    return Reading(spot=spot_from_labels(labels), attributes=attributes)


def read_pci(labels: Mapping[str, str]) -> Reading | None:
    """Return the vendor, and the model for a known device id, from PCI labels of node feature discovery."""
    for key in sorted(labels):
        match = _PCI.fullmatch(key)
        if match and labels[key].lower() == "true":
            found = _PCI_VENDORS.get((match["device_class"], match["vendor"]))
            if found:
                vendor, kind = found
                model = PCI_DEVICES.get(match["vendor"], {}).get(match["device"] or "", "")
                return Reading(vendor=vendor, kind=kind, lookup=model)
    return None


def with_label_aliases(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels with additional aliases that selectors use although no vendor sets them.

    Aliases are `nvidia.com/gpu.compute` (`9.0`) for `.major` and `.minor`, `amd.com/gpu.product` for `.product-name`,
    and `ome.ai/` for labels of `ome.io/` and vice versa. Existing labels take precedence.
    """
    named: dict[str, str] = {}
    major, minor = (labels.get(f"nvidia.com/gpu.compute.{part}") for part in ("major", "minor"))
    if major and minor:
        named["nvidia.com/gpu.compute"] = f"{major}.{minor}"
    if product := labels.get("amd.com/gpu.product-name"):
        named["amd.com/gpu.product"] = product
    for key, value in labels.items():
        for prefix, other in (("ome.io/", "ome.ai/"), ("ome.ai/", "ome.io/")):
            if key.startswith(prefix):
                named[other + key.removeprefix(prefix)] = value
    return {**named, **labels}
