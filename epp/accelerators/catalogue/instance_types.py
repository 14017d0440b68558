# SPDX-License-Identifier: Apache-2.0
"""Accelerators of cloud machine types: `p5.48xlarge` has eight H100."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

import msgspec

from epp.framework.accelerators.tag import Partition, Sharing


class InstanceType(msgspec.Struct, frozen=True):
    """The accelerators of one machine type."""

    product: str
    """A name that the catalogue finds: `h100-sxm-80gb`, `h100`."""
    count: Annotated[int, msgspec.Meta(ge=1, le=65_536)]
    """Devices of a machine."""
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    """Of each device that the machine has, as a virtual GPU."""

    @property
    def partition(self) -> Partition | None:
        """The part of a device; None for whole ones."""
        if self.share == 1:
            return None
        return Partition(kind=Sharing.VGPU, compute_fraction=self.share, memory_fraction=self.share)


# product -> count -> machine types
_TABLE: Mapping[str, Mapping[int, str]] = {
    "p100-sxm-16gb": {1: "VM.GPU2.1", 2: "BM.GPU2.2"},
    "p100-pcie-16gb": {
        1: "Standard_NC6s_v2",
        2: "Standard_NC12s_v2",
        4: "Standard_NC24s_v2 Standard_NC24rs_v2",
    },
    "p40": {1: "Standard_ND6s", 2: "Standard_ND12s", 4: "Standard_ND24s Standard_ND24rs"},
    "v100-sxm-16gb": {
        1: "p3.2xlarge VM.GPU3.1",
        2: "VM.GPU3.2",
        4: "p3.8xlarge VM.GPU3.4",
        8: "p3.16xlarge BM.GPU3.8",
    },
    "v100-pcie-16gb": {
        1: "Standard_NC6s_v3",
        2: "Standard_NC12s_v3",
        4: "Standard_NC24s_v3 Standard_NC24rs_v3",
    },
    "v100-sxm-32gb": {8: "p3dn.24xlarge Standard_ND40rs_v2"},
    "a100-sxm-40gb": {
        1: "a2-highgpu-1g",
        2: "a2-highgpu-2g",
        4: "a2-highgpu-4g",
        8: "p4d.24xlarge Standard_ND96asr_v4 Standard_ND96asr_A100_v4 a2-highgpu-8g BM.GPU4.8",
        16: "a2-megagpu-16g",
    },
    "a100-sxm-80gb": {
        1: "a2-ultragpu-1g",
        2: "a2-ultragpu-2g",
        4: "a2-ultragpu-4g",
        8: "p4de.24xlarge Standard_ND96amsr_A100_v4 a2-ultragpu-8g BM.GPU.A100-v2.8",
    },
    "a100-pcie-80gb": {1: "Standard_NC24ads_A100_v4", 2: "Standard_NC48ads_A100_v4", 4: "Standard_NC96ads_A100_v4"},
    "h100-sxm-80gb": {
        1: "p5.4xlarge a3-highgpu-1g",
        2: "a3-highgpu-2g",
        4: "a3-highgpu-4g",
        8: "p5.48xlarge Standard_ND96isr_H100_v5 a3-highgpu-8g a3-megagpu-8g a3-edgegpu-8g BM.GPU.H100.8",
    },
    "h100-nvl-94gb": {1: "Standard_NC40ads_H100_v5", 2: "Standard_NC80adis_H100_v5"},
    "h200-sxm-141gb": {
        8: "p5e.48xlarge p5en.48xlarge Standard_ND96isr_H200_v5 a3-ultragpu-8g BM.GPU.H200.8",
    },
    "b200": {8: "p6-b200.48xlarge a4-highgpu-8g BM.GPU.B200.8"},
    "gb200": {4: "p6e-gb200.36xlarge Standard_ND128isr_NDR_GB200_v6 a4x-highgpu-4g BM.GPU.GB200.4"},
    "b300": {8: "p6-b300.48xlarge BM.GPU.B300.8"},
    "gb300": {4: "p6e-gb300.36xlarge Standard_ND128isr_GB300_v6 a4x-maxgpu-4g-metal BM.GPU.GB300.4"},
    "t4": {
        1: (
            "g4dn.xlarge g4dn.2xlarge g4dn.4xlarge g4dn.8xlarge g4dn.16xlarge"
            " g5g.xlarge g5g.2xlarge g5g.4xlarge g5g.8xlarge"
            " Standard_NC4as_T4_v3 Standard_NC8as_T4_v3 Standard_NC16as_T4_v3"
        ),
        2: "g5g.16xlarge g5g.metal",
        4: "g4dn.12xlarge Standard_NC64as_T4_v3",
        8: "g4dn.metal",
    },
    "a10g": {
        1: "g5.xlarge g5.2xlarge g5.4xlarge g5.8xlarge g5.16xlarge",
        4: "g5.12xlarge g5.24xlarge",
        8: "g5.48xlarge",
    },
    "a10": {
        1: "Standard_NV36ads_A10_v5 Standard_NV36adms_A10_v5 VM.GPU.A10.1",
        2: "Standard_NV72ads_A10_v5 VM.GPU.A10.2",
        4: "BM.GPU.A10.4",
    },
    "l4": {
        1: (
            "g6.xlarge g6.2xlarge g6.4xlarge g6.8xlarge g6.16xlarge gr6.4xlarge gr6.8xlarge"
            " g2-standard-4 g2-standard-8 g2-standard-12 g2-standard-16 g2-standard-32"
        ),
        2: "g2-standard-24",
        4: "g6.12xlarge g6.24xlarge g2-standard-48",
        8: "g6.48xlarge g2-standard-96",
    },
    "l40s": {
        1: "g6e.xlarge g6e.2xlarge g6e.4xlarge g6e.8xlarge g6e.16xlarge",
        4: "g6e.12xlarge g6e.24xlarge BM.GPU.L40S.4 BM.GPU.L40S-NC.4",
        8: "g6e.48xlarge",
    },
    "rtx-pro-6000-server": {
        1: (
            "g7e.2xlarge g7e.4xlarge g7e.8xlarge g4-standard-48"
            " Standard_NC144ds_xl_RTXPRO6000BSE_v6 Standard_NC144lds_xl_RTXPRO6000BSE_v6"
        ),
        2: ("g7e.12xlarge g4-standard-96 Standard_NC288ds_xl_RTXPRO6000BSE_v6 Standard_NC288lds_xl_RTXPRO6000BSE_v6"),
        4: "g7e.24xlarge g4-standard-192",
        8: "g7e.48xlarge g4-standard-384",
    },
    "rtx-pro-4500-server": {
        1: "g7.2xlarge g7.4xlarge g7.8xlarge",
        2: "g7.12xlarge",
        4: "g7.24xlarge",
        8: "g7.48xlarge",
    },
    "radeon-pro-v710": {1: "Standard_NV24ads_V710_v5 Standard_NV28adms_V710_v5"},
    "radeon-pro-v520": {1: "g4ad.xlarge g4ad.2xlarge g4ad.4xlarge", 2: "g4ad.8xlarge", 4: "g4ad.16xlarge"},
    "mi300x": {8: "Standard_ND96isr_MI300X_v5 Standard_ND96is_MI300X_v5 BM.GPU.MI300X.8"},
    "mi355x": {8: "BM.GPU.MI355X-v1.8"},
    "gaudi1": {8: "dl1.24xlarge"},
    "inferentia1": {1: "inf1.xlarge inf1.2xlarge", 4: "inf1.6xlarge", 16: "inf1.24xlarge"},
    "inferentia2": {1: "inf2.xlarge inf2.8xlarge", 6: "inf2.24xlarge", 12: "inf2.48xlarge"},
    "trainium1": {1: "trn1.2xlarge", 16: "trn1.32xlarge trn1n.32xlarge"},
    "trainium2": {1: "trn2.3xlarge", 16: "trn2.48xlarge trn2u.48xlarge"},
    "cloud-ai-100-standard": {8: "dl2q.24xlarge"},
    "v3": {4: "ct3-hightpu-4t ct3p-hightpu-4t"},
    "v4": {4: "ct4p-hightpu-4t"},
    "v5e": {
        1: "ct5lp-hightpu-1t ct5l-hightpu-1t",
        4: "ct5lp-hightpu-4t ct5l-hightpu-4t",
        8: "ct5lp-hightpu-8t ct5l-hightpu-8t",
    },
    "v5p": {1: "ct5p-hightpu-1t", 2: "ct5p-hightpu-2t", 4: "ct5p-hightpu-4t"},
    "v6e": {1: "ct6e-standard-1t", 4: "ct6e-standard-4t", 8: "ct6e-standard-8t"},
    "v7x": {4: "tpu7x-standard-4t"},
}

# product -> devices that share one -> machine types
_SHARES: Mapping[str, Mapping[int, str]] = {
    "a10": {6: "Standard_NV6ads_A10_v5", 3: "Standard_NV12ads_A10_v5", 2: "Standard_NV18ads_A10_v5"},
    "l4": {8: "g6f.large g6f.xlarge", 4: "g6f.2xlarge", 2: "g6f.4xlarge gr6f.4xlarge"},
    "rtx-pro-6000-server": {8: "g4-standard-6", 4: "g4-standard-12", 2: "g4-standard-24"},
    "radeon-pro-v710": {6: "Standard_NV4ads_V710_v5", 3: "Standard_NV8ads_V710_v5", 2: "Standard_NV12ads_V710_v5"},
}

INSTANCE_TYPES: Mapping[str, InstanceType] = MappingProxyType(
    {
        name.lower(): InstanceType(product, count)
        for product, by_count in _TABLE.items()
        for count, names in by_count.items()
        for name in names.split()
    }
    | {
        name.lower(): InstanceType(product, 1, 1 / sharers)
        for product, by_sharers in _SHARES.items()
        for sharers, names in by_sharers.items()
        for name in names.split()
    }
)
"""By name in lower case: those of AWS, Azure, Google Cloud and Oracle."""


def find_instance_type(name: str, overrides: Mapping[str, InstanceType] | None = None) -> InstanceType | None:
    """Return the accelerators of a machine type in any case, the overrides first; None for an unknown one."""
    key = name.lower().removeprefix("ml.")
    given = {known.lower(): value for known, value in (overrides or {}).items()}
    return given.get(name.lower()) or given.get(key) or INSTANCE_TYPES.get(key)
