"""Refusals of profiles that a profile picker cannot work with."""

from collections.abc import Sequence


def only_one(plugin_type: str, profiles: Sequence[str]) -> tuple[()]:
    """Return no warnings; raises ValueError where there is more than the one profile."""
    if len(profiles) != 1:
        raise ValueError(f"{plugin_type} takes one profile, not {len(profiles)}: {', '.join(profiles)}")
    return ()


def missing(profile: str, profiles: Sequence[str]) -> str:
    """Say that there is no such profile, and which ones there are."""
    return f"profile {profile!r} does not exist; profiles are {', '.join(profiles)}"
