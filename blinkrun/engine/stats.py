"""What a job has communicated, in numbers, and the one line that says it at the end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Stats:
    """Counts of one rank's engine. Times are nanoseconds; one thread at a time adds to them.

    Attributes
    ----------
    requests : int
        Named requests that were submitted.
    calls : int
        Collectives of the communicator that carried them out; fewer, where requests were fused.
    batches : int
        Groups of tensors that travelled as one.
    num_bytes : int
        Bytes of tensors that went through, counted once on each rank.
    busy_ns : int
        Time in which batches were carried out.
    waited_ns : int
        Time in which a thread of the script waited for the engine.
    overlap_ns : int
        The part of `busy_ns` in which none did: communication behind computation.
    """

    requests: int = 0
    calls: int = 0
    batches: int = 0
    num_bytes: int = 0
    busy_ns: int = 0
    waited_ns: int = 0
    overlap_ns: int = 0

    def add_requests(self, count: int) -> None:
        """Count requests that were submitted."""
        self.requests += count

    def add_batch(
        self, num_bytes: int, busy_ns: int, *, calls: int = 1, is_overlapped: bool = False
    ) -> None:
        """Count a batch that was carried out; overlapped if no thread of the script waited."""
        self.batches += 1
        self.calls += calls
        self.num_bytes += num_bytes
        self.busy_ns += busy_ns
        if is_overlapped:
            self.overlap_ns += busy_ns

    def add_wait(self, waited_ns: int) -> None:
        """Count time in which a thread of the script waited."""
        self.waited_ns += waited_ns

    @property
    def overlap(self) -> float:
        """Share of the time in communication during which nobody waited, 0 to 1."""
        return self.overlap_ns / self.busy_ns if self.busy_ns else 0.0

    def line(self) -> str:
        """Return a summary in one line.

        >>> Stats(requests=3000, calls=20, batches=20, num_bytes=10**9, busy_ns=2 * 10**9).line()
        '3,000 requests in 20 calls, 1,000.0 MB; 2.00 s in communication (0 % behind computation), 0.00 s waited'
        """  # noqa: E501
        return (
            f"{self.requests:,} requests in {self.calls:,} calls, {self.num_bytes / 1e6:,.1f} MB;"
            f" {self.busy_ns / 1e9:.2f} s in communication"
            f" ({self.overlap:.0%} behind computation), {self.waited_ns / 1e9:.2f} s waited"
        ).replace("%", " %")
