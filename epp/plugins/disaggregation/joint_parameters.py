# SPDX-License-Identifier: Apache-2.0
"""Parameters of a joint choice: weights of the legs, of their distance and of their accelerators."""

from fnmatch import fnmatchcase
from typing import Annotated, Literal

from msgspec import Meta, field

from epp.framework import AcceleratorTag, Endpoint, Name, NonNegative, Parameters, Share, Topology
from epp.framework.accelerators.sites import Surroundings
from epp.framework.accelerators.tag import names_of
from epp.framework.candidates import LEVELS
from epp.plugins.disaggregation.parameters import StageProfiles


class StageWeights(Parameters, frozen=True):
    """Weights of the scores, by stage."""

    decode: NonNegative = 1.0
    """Weight of the decode leg's score."""
    prefill: NonNegative = 1.0
    """Weight of the prefill leg's score."""
    encode: NonNegative = 1.0
    """Weight of the encode leg's score."""


class LocalityBands(Parameters, frozen=True):
    """Value of proximity, 0..1: that of the narrowest place that both endpoints are known to share, else 0.

    A PCIe root or NVLink clique that their devices share counts instead if its value is higher.
    """

    host: Share = 1.0
    """On one host."""
    rack: Share = 0.2
    """In one rack."""
    zone: Share = 0.05
    """In one zone."""
    region: Share = 0.02
    """In one region."""
    cluster: Share = 0.01
    """In one cluster."""
    pcie_root: Share = 1.0
    """With devices at one PCIe root."""
    clique: Share = 1.0
    """With devices in one NVLink clique or compute domain, on whatever hosts."""

    def between(self, one: Topology, other: Topology) -> float:
        """Return the value of the narrowest place shared; an unknown place is not shared."""
        for level in LEVELS:
            place = getattr(one, level)
            if place and place == getattr(other, level):
                value: float = getattr(self, level)
                return value
        return 0.0

    def of_devices(self, one: Surroundings, other: Surroundings) -> float:
        """Return the higher value of a PCIe root and a clique, if the devices share one; else 0."""
        return max(self.pcie_root * one.share_root(other), self.clique * one.share_clique(other))


class PairingRule(Parameters, frozen=True):
    """Value of one pair of accelerator kinds."""

    from_: str = field(name="from")
    """Kind, or a shell-style pattern of kinds, of the leg that runs first: encode, prefill, decode."""
    to: str
    """Kind or pattern of the leg that follows."""
    value: Share
    """Value of the pair, 0..1."""
    ordered: bool = False
    """Whether the rule applies in this direction only."""

    def matches(self, first: str, then: str) -> bool:
        """Return whether the rule applies to these two kinds."""
        if fnmatchcase(first, self.from_) and fnmatchcase(then, self.to):
            return True
        return not self.ordered and fnmatchcase(then, self.from_) and fnmatchcase(first, self.to)


class Pairing(Parameters, frozen=True):
    """Value of pairs of accelerators: that of the first rule that matches, else `same`, `otherwise` or `unknown`."""

    by: Literal["name", "family", "vendor"] = "name"
    """Kinds of accelerators: the `labelKey` of the endpoint or else its AcceleratorClass or model (`name`); or `family`
    or `vendor` of its accelerator, such as `hopper` or `nvidia`."""
    label_key: Name = "llm-d.ai/accelerator"
    """Endpoint label with the kind of the accelerator; only for `name`."""
    same: Share = 1.0
    """Two of the same kind, 0..1."""
    otherwise: Share = 0.0
    """Two of different kinds, 0..1."""
    unknown: Share = 0.5
    """Two of which one is of an unknown kind, 0..1; best between `otherwise` and `same`."""
    rules: tuple[PairingRule, ...] = ()
    """Exceptions, in order of precedence: pairs that transfer a KV cache well, or cannot."""

    def kind_of(self, endpoint: Endpoint, tag: AcceleratorTag) -> str:
        """Return the kind of an endpoint's accelerator; empty if unknown."""
        match self.by:
            case "family":
                return tag.family
            case "vendor":
                return tag.vendor
            case _:
                return endpoint.labels.get(self.label_key, "") or next(iter(names_of(tag)), "")

    def between(self, first: str, then: str) -> float:
        """Return the value of two kinds, in the order in which they run; an empty one is unknown."""
        if not (first and then):
            return self.unknown
        for rule in self.rules:
            if rule.matches(first, then):
                return rule.value
        return self.same if first == then else self.otherwise


class JointParameters(Parameters, frozen=True):
    """Terms of the sum that is maximised, and their weights."""

    profiles: StageProfiles = field(default_factory=StageProfiles)
    """Names of the profiles, by stage; the same as the profile handler's."""
    weights: StageWeights = field(default_factory=StageWeights)
    """Weights of the legs' scores, by stage."""
    locality_weight: NonNegative = 1.0
    """Weight of the proximity of two legs; 0 to ignore it."""
    locality: LocalityBands = field(default_factory=LocalityBands)
    """Value of proximity, by the narrowest place shared."""
    pairing_weight: NonNegative = 1.0
    """Weight of the match of two legs' accelerators; 0 to ignore it."""
    pairing: Pairing = field(default_factory=Pairing)
    """Value of pairs of accelerators."""
    top_k: Annotated[int, Meta(ge=1, le=8)] = 4
    """Endpoints considered of each profile, 1 to 8; 1 leaves every profile its own pick."""
