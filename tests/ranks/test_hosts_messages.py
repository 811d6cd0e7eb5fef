"""Messages between ranks that are on several hosts."""

import pytest

pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")


def test_every_size_in_any_order_from_any_thread(run_ranks):
    results = run_ranks("hosts_messages_cases:everything_at_once", 3, hosts=[0, 1, 1], threads=2)
    assert results == [[[[0, 0]] * 2, True]] * 3


def test_a_message_waits_for_its_receiver_and_not_its_sender(run_ranks):
    went_on, (other_tag, mismatch, is_right, again) = run_ranks(
        "hosts_messages_cases:buffered", 2, hosts=[0, 1]
    )
    assert went_on == [True]
    assert "rank 1 wants 5 bytes, rank 0 sent 200000" in mismatch
    assert (other_tag, is_right, again) == (False, True, False)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_message_that_does_not_come(run_ranks, leaves):
    results = run_ranks("hosts_messages_cases:nobody_sends", 3, hosts=[0, 0, 1], leaves=leaves)
    kind, text = results[0]
    assert kind == ("PeerLeftError" if leaves else "CollectiveTimeoutError")
    assert "recv of 5 bytes from rank 2, tag 9" in text
    assert ("rank 2 on host host1 has left" if leaves else "for rank 2 on host host1") in text


def test_a_signal_ends_the_wait(run_ranks):
    first, *_ = run_ranks("group_cases:interrupted_recv", 3, hosts=[0, 1, 1])
    assert first == ["interrupted", True]


def test_messages_in_the_world_and_in_a_group(run_ranks):
    assert run_ranks("group_cases:messages", 3, hosts=[0, 1, 0]) == [0] * 3


def test_who_ends_in_the_middle_of_a_large_message_takes_its_memory(run_ranks):
    """MPI wrote on where nothing was any more, in a call of another group: by TCP the job ended."""
    env = {"OMPI_MCA_btl": "self,tcp"}
    sender, receiver = run_ranks(
        "hosts_messages_cases:interrupted_in_a_large_message", size=2, hosts=[0, 1], env=env
    )
    assert receiver[1] == sender[1] == 2.0
    assert sender[0] in {"AbortedError", "it came"}
    assert receiver[0] in {"KeyboardInterrupt", "it came"}
