"""Process sets by Horovod's names."""

from blinkrun.adapter.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]
