"""What each rank does in test_journal_ranks.py; every function returns a JSON value."""

import threading
import time
import zlib

import blinkrun

LONG_S = 20.0


def order(letters, threads):
    """Every thread of every rank posts; checksum of the order in which this rank read it all."""
    blinkrun.init()
    world = blinkrun.world()
    journal = world.journal

    def write(writer):
        for number in range(letters):
            size = (0, 1, 13, 1009, 70_001)[number % 5]
            journal.post(bytes([world.rank, writer]) + number.to_bytes(4, "big") * size)

    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(threads)]
    for writer in writers:
        writer.start()
    read = []
    while len(read) < world.size * threads * letters:
        if not journal.wait(LONG_S, may_spin=True):
            raise TimeoutError(f"{len(read)} messages came")
        read += journal.read()
    for writer in writers:
        writer.join()
    world.barrier()
    blinkrun.shutdown()
    return zlib.crc32(repr(read).encode())


def sleeps(letters):
    """Rank 0 sleeps while the others talk; the seconds of CPU that its sleep cost."""
    blinkrun.init()
    world = blinkrun.world()
    journal = world.journal
    world.barrier()
    if world.rank == 0:
        before = time.thread_time()
        woken = journal.sleep(LONG_S)
        seconds = time.thread_time() - before
        read = len(journal.read())
        result = [woken, read, seconds]
    else:
        got = 0
        for number in range(letters):  # each waits for the other's, so that they do take a while
            journal.post(b"ordinary")
            while got < (number + 1) * (world.size - 1):
                journal.wait(LONG_S, may_spin=False)
                got += len(journal.read())
        if world.rank == 1:
            journal.post(b"urgent", urgent=True)
        result = None
    world.barrier()
    blinkrun.shutdown()
    return result
