"""Sends requests to the primary port of a pod and names the data-parallel rank in a header."""

from collections.abc import Mapping, Sequence

from epp.framework import Aggregator, Destination, Parameters, ProfilePicker, ProfileResult, Request
from epp.framework.headers import DATA_PARALLEL
from epp.framework.limits import Port
from epp.plugins.profile_pickers.primary_port import primary_addresses, rank_header
from epp.plugins.profile_pickers.profile_names import only_one


class DataParallelParameters(Parameters, frozen=True):
    """Where the pods listen."""

    primary_port: Port = 8000
    """The port that the gateway is sent to, whatever the port of the rank chosen."""


class DataParallelProfileHandler(ProfilePicker[DataParallelParameters], Aggregator[DataParallelParameters]):
    """Runs the one profile over endpoints that are ranks, one for each port of a pod.

    The gateway is told `ip:primaryPort` of each target; the pod finds the rank's own `ip:port` in the header
    `x-data-parallel-host-port`. The header names the first target, whichever of them the gateway ends up with: with
    this handler a picker's `maxNumOfEndpoints` is best left at 1.
    """

    plugin_type = "data-parallel-profile-handler"
    sets_headers = (DATA_PARALLEL,)

    def check_profiles(self, profiles: Sequence[str]) -> Sequence[str]:
        return only_one(self.plugin_type, profiles)

    def pick_profiles(
        self,
        request: Request,  # noqa: ARG002
        profiles: Sequence[str],
        results: Mapping[str, ProfileResult | None],
    ) -> Sequence[str]:
        return () if results else profiles

    def aggregate(self, request: Request, results: Mapping[str, ProfileResult | None]) -> Destination | None:  # noqa: ARG002
        for result in results.values():
            if result is not None:
                return Destination(result, rank_header(result), primary_addresses(result, self.parameters.primary_port))
        return None
