# SPDX-License-Identifier: Apache-2.0
"""Names of the limits of a quota, those of TensorFusion where it has them."""

from enum import StrEnum


class LimitKey(StrEnum):
    """A limit, as breaches and reports name it."""

    PROMPT_TOKENS = "single.max.promptTokens"
    OUTPUT_TOKENS = "single.max.outputTokens"
    ACCELERATOR_BYTES = "single.max.vram.request"
    TFLOPS = "single.max.tflops.request"
    DEVICES = "single.max.gpuCount.limit"
    DOLLARS = "single.max.dollars"
    TOTAL_REQUESTS = "total.max.workers.limit"
    TOTAL_TOKENS = "total.max.tokens"
    TOTAL_TOKENS_PER_MINUTE = "total.max.tokensPerMinute"
    TOTAL_ACCELERATOR_BYTES = "total.max.vram.request"
    TOTAL_TFLOPS = "total.max.tflops.request"
    TOTAL_DEVICE_SECONDS = "total.max.deviceSecondsPerDay"
    TOTAL_DOLLARS = "total.max.dollarsPerDay"
