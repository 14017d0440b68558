# SPDX-License-Identifier: Apache-2.0
"""One entry of a price list."""

from typing import Literal, TypeAlias

import msgspec

PricedUnit: TypeAlias = Literal["device", "machine"]
"""One whole accelerator, or a machine with all of its accelerators."""


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Prices in US dollars an hour, and the endpoints that have them: all of its conditions must hold."""

    line: int
    """Of the file, for messages."""
    accelerator: str = ""
    """Product or model, by any name that the catalogue finds: `h100`, `NVIDIA-A100-SXM4-80GB`."""
    accelerator_class: str = ""
    """Name of an AcceleratorClass."""
    instance_type: str = ""
    """Machine type, such as `p5.48xlarge`."""
    region: str = ""
    """Empty for everywhere."""
    per: PricedUnit = "device"
    devices: int | None = None
    """Accelerators of a machine; None for those that its type or its node is known to have."""
    per_hour: float | None = None
    """On demand."""
    spot_per_hour: float | None = None

    @property
    def title(self) -> str:
        """The conditions, for provenance: `p5.48xlarge in us-east-1`."""
        named = f"AcceleratorClass {self.accelerator_class}" if self.accelerator_class else ""
        what = " with ".join(text for text in (self.instance_type, named, self.accelerator) if text)
        return f"{what} in {self.region}" if self.region else what
