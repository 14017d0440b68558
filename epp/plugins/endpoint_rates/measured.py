# SPDX-License-Identifier: Apache-2.0
"""Rates from server profiles: files that `epp calibrate` writes."""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from epp.framework import Natural, NonNegative, Parameters, Positive
from epp.framework.files import read_mapping
from epp.framework.input_errors import ParameterError, read_struct
from epp.plugins.endpoint_rates.profiles import RateProfile

_MOST_BYTES = 64 * 1024
_MS_PER_S = 1000.0
_LEAST_SHARE = 0.01


class ServerProfile(Parameters, frozen=True):
    """A file of `epp calibrate`, and the endpoints it applies to; a key that is left out matches any."""

    path: Annotated[str, Meta(min_length=1)]
    """Path of the file; read with the configuration."""
    accelerator: str = ""
    """Name of an AcceleratorClass, or of a device such as `h100`; `cpu` for none."""
    engine: str = ""
    """vllm, sglang, trtllm-serve ..."""
    tensor_parallel: Natural = 0
    """Devices of the measured endpoint; 0 for figures of one device, multiplied by the devices of an endpoint."""

    def rates(self) -> RateProfile:
        """Return the rates in the file; raises ValueError that names the file and the field."""
        where = f"serverProfiles: {self.path!r}"
        try:
            found = read_mapping(Path(self.path), _MOST_BYTES, "epp calibrate")
        except ValueError as error:
            raise ValueError(f"{where} {error}") from error
        try:
            speed = read_struct(_Speed, found)
        except ParameterError as error:
            raise ValueError(f"{where}: {error.at('') if error.path else error}") from error
        alone = speed.seconds_per_output_token * _MS_PER_S
        return RateProfile(
            model=speed.model,
            accelerator=self.accelerator,
            engine=self.engine,
            tensor_parallel=self.tensor_parallel,
            prefill_tokens_per_second=speed.prefill_tokens_per_second,
            alpha_ms=alone * max(1 - speed.batch_slope, _LEAST_SHARE),  # of a batch of none
            beta_ms=alone * speed.batch_slope,
            source=self.path,
        )


class _Speed(msgspec.Struct, frozen=True):
    """The fields of a server profile that are rates."""

    model: str
    prefill_tokens_per_second: Positive
    seconds_per_output_token: Positive
    batch_slope: NonNegative = 0.0
