"""What starts jobs in Horovod; here the command blinkrun does."""

from horovod import run, run_elastic

__all__ = ["run", "run_elastic"]
