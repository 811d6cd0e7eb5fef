"""The heap of a device arena: blocks never overlap, and everything comes back."""

import gc
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from blinkrun.executors.device_heap import ALIGNMENT, DeviceHeap, DeviceMemory


@given(st.lists(st.one_of(st.integers(0, 3000), st.none()), max_size=60), st.randoms())
def test_blocks_do_not_overlap_and_come_back(actions, random):
    heap, held = DeviceHeap(100, 20_000), {}
    for size in actions:
        if size is not None:
            start = heap.allocate(size)
            if start is not None:
                held[start] = size
        elif held:
            start = random.choice(sorted(held))
            del held[start]
            heap.release(start)
        ends = sorted((start, start + size) for start, size in held.items())
        assert all(before[1] <= after[0] for before, after in pairwise(ends))
        assert all(start % ALIGNMENT == 0 and start >= 100 for start in held)
        assert all(end <= 20_000 for _, end in ends)
    for start in held:
        heap.release(start)
    assert heap.bytes_in_use == 0
    room = (heap.stop - heap.start) // ALIGNMENT * ALIGNMENT
    assert heap.allocate(room) == heap.start  # in one piece again


def test_memory_is_given_back_when_it_is_dropped():
    heap = DeviceHeap(0, 4096)
    memory = DeviceMemory(heap.allocate(100), 100, 3, heap.release)
    shown = memory.__cuda_array_interface__
    assert (shown["shape"], shown["data"], shown["typestr"]) == ((100,), (0, False), "|u1")
    assert memory.device == 3
    assert heap.bytes_in_use == ALIGNMENT
    del memory
    gc.collect()
    assert heap.bytes_in_use == 0
