"""What users set of the engine, by options of the launcher or variables of the environment."""

from __future__ import annotations

from dataclasses import dataclass

from blinkrun import env

FUSION_BYTES = 1 << 20  # so much stays in the cache from packing to unpacking
CACHE_CAPACITY = 8192
STALL_WARNING_S = 60.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What users can set; all but the watch's times must be the same on all ranks.

    Attributes
    ----------
    fusion_bytes : int
        Most bytes of small tensors that travel as one.
    cache_capacity : int
        Requests of each process set that are remembered.
    check_nan : bool
        Whether NaN and infinity in what is reduced are errors.
    stall_warning_s, stall_shutdown_s : float
        Seconds after which a request that lacks ranks is reported, and ends the job; 0: never.
    """

    fusion_bytes: int = FUSION_BYTES
    cache_capacity: int = CACHE_CAPACITY
    check_nan: bool = False
    stall_warning_s: float = STALL_WARNING_S
    stall_shutdown_s: float = 0.0

    @classmethod
    def from_environment(cls) -> Settings:
        """Return what the environment says."""
        return cls(
            fusion_bytes=env.size_bytes(env.FUSION, FUSION_BYTES),
            cache_capacity=env.count(env.RESPONSE_CACHE, CACHE_CAPACITY),
            check_nan=env.is_on(env.CHECK_NAN),
            stall_warning_s=env.seconds(env.STALL_WARNING, STALL_WARNING_S),
            stall_shutdown_s=env.seconds(env.STALL_SHUTDOWN, 0.0),
        )
