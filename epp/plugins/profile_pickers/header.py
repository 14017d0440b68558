"""Runs the profile that a request header names."""

from collections.abc import Mapping, Sequence

from epp.framework import Aggregator, Destination, Parameters, ProfilePicker, ProfileResult, Request
from epp.framework.errors import BadRequestError
from epp.framework.headers import PROFILE
from epp.plugins.profile_pickers.profile_names import missing


class HeaderProfileParameters(Parameters, frozen=True):
    """Which header is read, and what is done without it."""

    header_name: str = PROFILE
    """The request header whose value names the profile; upper and lower case are the same."""
    default_profile: str = "decode"
    """The profile of a request whose header is absent or blank."""

    def __post_init__(self) -> None:
        """Refuse empty names."""
        for name, value in (("headerName", self.header_name), ("defaultProfile", self.default_profile)):
            if not value.strip():
                raise ValueError(f"{name} is empty; give it a name or leave it out")


class HeaderProfileHandler(ProfilePicker[HeaderProfileParameters], Aggregator[HeaderProfileParameters]):
    """Runs one profile for each request: the one that the header names, else `defaultProfile`.

    A header that names no existing profile is the caller's mistake and answered with status 400 and the names there
    are. Where there is only one profile, requests without the header run that one, whatever its name.
    """

    plugin_type = "header-profile-handler"

    def check_profiles(self, profiles: Sequence[str]) -> Sequence[str]:
        default = self.parameters.default_profile
        if default in profiles or len(profiles) == 1:
            return ()
        header = self.parameters.header_name
        return (f"defaultProfile: {missing(default, profiles)}: requests without header {header!r} fail",)

    def pick_profiles(
        self, request: Request, profiles: Sequence[str], results: Mapping[str, ProfileResult | None]
    ) -> Sequence[str]:
        if results:
            return ()
        named = request.headers.get(self.parameters.header_name.strip().lower(), "").strip()
        if not named:
            return profiles if len(profiles) == 1 else (self.parameters.default_profile,)
        if named not in profiles:
            raise BadRequestError(
                f"header {self.parameters.header_name!r} names profile {named!r}, which does not exist; "
                f"profiles are {', '.join(profiles)}"
            )
        return (named,)

    def aggregate(self, request: Request, results: Mapping[str, ProfileResult | None]) -> Destination | None:  # noqa: ARG002
        for result in results.values():
            if result is not None:
                return Destination(result)
        return None
