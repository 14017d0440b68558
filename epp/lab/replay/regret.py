# SPDX-License-Identifier: Apache-2.0
"""Regret: the seconds that a request loses because it was not sent to the best server.

An oracle knows the true state of every engine at the time of the decision, and the lengths of all answers. It forecasts
the end of the request at each server that can answer it, as if it were the last one to come. The regret of a decision
is the forecast of the chosen server minus the least one: 0 for the best choice. Forecasts are closed-form:

- the request joins when requests ahead of it have left enough places and blocks;
- then its blocks in host memory are copied;
- then all prompts ahead of it and its own are computed, in steps of `max_num_batched_tokens` in which others decode;
- then its answer is decoded with the answers that are not finished.

Requests on their way to a server, and decisions that split prompt and answer, are left out.
"""

import math
from collections.abc import Sequence

from epp.lab.sim import Machine, SimProfile, SimRequest
from epp.lab.sim.machine import Workload


def seconds_to_end(machine: Machine, request: SimRequest) -> float:
    """Return the seconds until the request would end if it came to the machine now, and none after it."""
    profile, load = machine.profile, machine.workload()
    wait, left = _wait(profile, load, request)
    ahead = (*load.computing, *load.waiting)
    tokens = sum([each for each, _ in ahead]) + machine.uncached_tokens(request)
    chunks = math.ceil(tokens / max(1, profile.max_num_batched_tokens - len(left)))
    prefill = tokens / profile.prefill_tokens_per_second + chunks * _decode_seconds(profile, len(left))
    own = request.output_tokens - 1
    beside = sum([min(outputs - chunks, own) for outputs in left if outputs > chunks])
    beside += sum([min(outputs, own) for _, outputs in ahead])
    answer = profile.seconds_per_output_token * (own + profile.batch_slope * beside)
    copy = machine.copy_seconds(request)
    return load.step_seconds + profile.time_scale * (wait + copy + prefill + answer)


def _wait(profile: SimProfile, load: Workload, request: SimRequest) -> tuple[float, Sequence[int]]:
    """Return the seconds until there is room for the request and those ahead, and the tokens of answers left then."""
    blocks = -(-request.prompt_tokens // profile.block_size)
    blocks += sum([-(-tokens // profile.block_size) for tokens, _ in load.waiting])
    places = len(load.decoding) + len(load.computing) + len(load.waiting) + 1
    free, seconds, past = load.free_blocks, 0.0, 0
    if places <= profile.max_num_seqs and blocks <= free:
        return 0.0, [outputs for outputs, _ in load.decoding]
    left: list[tuple[int, int]] = sorted(load.decoding, key=lambda one: -one[0])
    while left and (places > profile.max_num_seqs or blocks > free):
        outputs, held = left.pop()
        seconds += (outputs - past) * _decode_seconds(profile, len(left) + 1)
        past = outputs
        places -= 1
        free += held
    return seconds, [outputs - past for outputs, _ in left]


def _decode_seconds(profile: SimProfile, count: int) -> float:
    """Return the duration of a step in which so many requests decode."""
    return profile.seconds_per_output_token * (1 + profile.batch_slope * (count - 1)) if count else 0.0
