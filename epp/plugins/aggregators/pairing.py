"""How well two kinds of accelerators work on one request together."""

from fnmatch import fnmatchcase

import msgspec

from epp.framework import Parameters
from epp.framework.limits import Name, Share


class PairingRule(Parameters, frozen=True):
    """What one pair of kinds is worth."""

    from_: str = msgspec.field(name="from")
    """A label value, or a shell-style pattern of values, of the leg that works first: encode, prefill, decode."""
    to: str
    """A label value or pattern of the leg that goes on from there."""
    value: Share
    """What the pair is worth, 0..1."""
    ordered: bool = False
    """Whether the pair counts in this direction only."""

    def matches(self, first: str, then: str) -> bool:
        """Say whether the rule speaks of these two."""
        if fnmatchcase(first, self.from_) and fnmatchcase(then, self.to):
            return True
        return not self.ordered and fnmatchcase(then, self.from_) and fnmatchcase(first, self.to)


class Pairing(Parameters, frozen=True):
    """What pairs of accelerators are worth: the first rule that matches, else `same`, `otherwise` or `unknown`."""

    label_key: Name = "llm-d.ai/accelerator"
    """The endpoint label that names the kind of accelerator."""
    same: Share = 1.0
    """Two of the same kind, 0..1."""
    otherwise: Share = 0.0
    """Two of different kinds, 0..1."""
    unknown: Share = 0.5
    """Two of which one has no such label, 0..1: neither as good as `same` nor as bad as `otherwise`."""
    rules: tuple[PairingRule, ...] = ()
    """Exceptions, the first that matches first: pairs that hand over a KV cache well, or cannot at all."""

    def between(self, first: str, then: str) -> float:
        """Return what two kinds are worth, in the order in which they work; an empty one is not known."""
        if not (first and then):
            return self.unknown
        for rule in self.rules:
            if rule.matches(first, then):
                return rule.value
        return self.same if first == then else self.otherwise
