"""One fault each in what hosts say to each other, and the words in which `verify` says so."""

import pytest

from blinkrun.errors import ProgramError
from blinkrun.schedule.ir import (
    Addressing,
    Arrived,
    Buffer,
    Channel,
    Operand,
    Part,
    Program,
    RankProgram,
    Recv,
    Reduce,
    Send,
    Sent,
    Signal,
    Wait,
)
from blinkrun.schedule.verify import verify
from blinkrun.types import Collective

WHOLE = Part(0, 1)


def inp(rank, block=0):
    return Operand(rank, Buffer.INPUT, block)


def out(rank, block=0):
    return Operand(rank, Buffer.OUTPUT, block)


def slot(rank, index=0):
    return Operand(rank, Buffer.SCRATCH, index)


def copy(dst, src, final=False):
    return Reduce((dst,), (src,), final)


def make(*ranks, collective=Collective.BROADCAST, hosts=(0, 1), **changes):
    """A program of ranks, each a list of channels, each a list of steps."""
    fields = {"root": 0, "addressing": Addressing.DIRECT, "shares": 1, "slots": 2} | changes
    made = tuple(
        RankProgram(channels=tuple(Channel(WHOLE, tuple(steps)) for steps in channels))
        for channels in ranks
    )
    return Program(collective, ranks=made, hosts=hosts, **fields)


def refuse(program, says, **options):
    with pytest.raises(ProgramError, match=says):
        verify(program, **options)


SEND_INPUT = [copy(out(0), inp(0)), Send(inp(0), 1)]


def test_a_broadcast_by_hand():
    verify(make([SEND_INPUT], [[Recv(out(1), 0)]]))


def test_a_reduce_by_hand_and_what_guards_its_slots():
    up = [Sent(0, lag=2), copy(slot(1), inp(1)), Send(slot(1), 0)]
    post = [Wait(0, 0, lag=2), Recv(slot(0), 1)]
    add = [Arrived(1), Reduce((out(0),), (inp(0), slot(0)), final=True), Signal(0)]
    right = {"collective": Collective.REDUCE, "slot_depth": 2, "pipelined": True}
    verify(make([post, add], [up], **right))
    refuse(
        make([post, add], [up[1:]], **right),
        r"rank 1, channel 0, step 0, chunk 2: writes SCRATCH.0. of rank 1 while it may be read by "
        "message 0 of stream 0 from rank 1 to rank 0; let one wait for the other",
    )
    refuse(
        make([post[1:], add], [up], **right),
        r"rank 0, channel 0, step 0, chunk 2: writes SCRATCH.0. of rank 0 while it may be written "
        "by message 0 of stream 0 from rank 1 to rank 0",
    )
    refuse(
        make([post, add[1:]], [up], **right),
        r"reads SCRATCH.0. of rank 0 (before anything was written|while it may be written)",
    )


def test_a_message_is_not_there_before_its_receiver_says_so():
    """That it was sent, or that another one came later, proves nothing."""
    relay = [Recv(out(1), 0), Send(out(1), 2)]
    program = make([SEND_INPUT], [relay], [[Recv(out(2), 1)]], hosts=(0, 1, 2))
    refuse(program, r"rank 1, channel 0, step 1, .*: reads OUTPUT.0. of rank 1 while it may be w")
    right = [relay[0], Arrived(0), relay[1]]
    verify(make([SEND_INPUT], [right], [[Recv(out(2), 1)]], hosts=(0, 1, 2)))


def test_an_answer_does_not_tell_that_a_send_is_through():
    """MPI may look at the data until it says that it will not: for a retry, say."""
    first = [copy(slot(0), inp(0)), Send(slot(0), 1), Recv(slot(0, 1), 1), Arrived(1)]
    reuse = copy(slot(0), slot(0, 1))
    end = [copy(out(0), inp(0))]
    other = [Recv(out(1), 0), Arrived(0), Send(out(1), 0)]
    refuse(make([[*first, reuse, *end]], [other]), "writes SCRATCH.0. of rank 0 while it may be re")
    verify(make([[*first, Sent(1), reuse, *end]], [other]))


def test_a_send_that_is_through_does_not_tell_that_it_was_received():
    """MPI may have copied it: that the receiver has heard from rank 2 before is not known by it."""
    told = [copy(slot(0), inp(0)), Send(slot(0), 1), Sent(1)]
    add = Reduce((out(0),), (inp(0), slot(2)), final=True)
    heard = [Recv(slot(1), 2), Arrived(2), Recv(slot(1, 1), 0)]
    fill = [copy(slot(2), inp(2)), Send(slot(2), 1)]
    program = make([[*told, add]], [heard], [fill], collective=Collective.REDUCE, hosts=(0, 1, 0))
    refuse(program, r"reads SCRATCH.0. of rank 2 while it may be written by rank 2, channel 0, st")


def test_two_that_wait_for_each_other_to_receive():
    """Small messages would be buffered and this would go well; large ones hang."""
    ends = [
        [
            [
                copy(slot(rank), inp(rank)),
                Send(slot(rank), 1 - rank),
                Sent(1 - rank),
                Recv(slot(rank, 1), 1 - rank),
                Arrived(1 - rank),
                Reduce((out(rank),), (slot(rank, rank), slot(rank, 1 - rank)), final=True),
            ]
        ]
        for rank in (0, 1)
    ]
    refuse(
        make(*ends, collective=Collective.ALLREDUCE),
        "rank 0, channel 0, step 2, chunk 0: waits for ever for message 0 of stream 0 from rank 0 "
        "to rank 1; 1 were sent, 0 were expected",
    )
    for (steps,) in ends:
        steps.insert(1, steps.pop(3))
    verify(make(*ends, collective=Collective.ALLREDUCE))


def test_all_hosts_must_round_alike():
    send = [
        [copy(slot(rank), inp(rank)), Recv(slot(rank, 1), 1 - rank), Send(slot(rank), 1 - rank)]
        for rank in (0, 1)
    ]
    add = [
        [Arrived(1 - rank), Reduce((out(rank),), (own, slot(rank, 1)), final=True)]
        for rank, own in ((0, inp(0)), (1, slot(1)))
    ]
    program = make(
        *[[[*put, *take]] for put, take in zip(send, add, strict=True)],
        collective=Collective.ALLREDUCE,
    )
    refuse(program, "ranks add in different orders or round at different points", in_place=[False])


@pytest.mark.parametrize(
    ("ranks", "collective", "says"),
    [
        ([[SEND_INPUT], []], Collective.BROADCAST, "rank 0 to rank 1, which nobody receives"),
        ([[], [[Recv(out(1), 0)]]], Collective.BROADCAST, "rank 0 to rank 1, which nobody sends"),
        ([[[Sent(1)]], []], Collective.BARRIER, "stream 0 from rank 0 to rank 1, which nobody se"),
        (
            [[[Send(inp(0), 1), Send(inp(0), 1)]], [[Recv(out(1), 0)]]],
            Collective.BROADCAST,
            "rank 0, channel 0, step 1, chunk 0: stream 0 from rank 0 to rank 1 is used in two",
        ),
        (
            [[SEND_INPUT], [[Recv(out(1), 0)], [Recv(slot(1), 0)]]],
            Collective.BROADCAST,
            "rank 1, channel 1, .* is used in two places",
        ),
        ([[[Send(slot(0), 1)]], [[Recv(inp(1), 0)]]], Collective.ALLREDUCE, "receives into INPUT"),
        (
            [[[Send(inp(0), 1)]], [[Recv(out(1), 0)]]],
            Collective.ALLREDUCE,
            "sends INPUT .*unscaled",
        ),
        ([[[Send(inp(1), 1)]], [[Recv(out(1), 0)]]], Collective.BARRIER, "memory of rank 1"),
        ([[[Send(inp(0), 1)]], [[Recv(out(1), 0)]]], Collective.BARRIER, "a barrier moves nothing"),
        (
            [[[Recv(slot(0), 1)]], [[Send(inp(1), 0)]]],
            Collective.BROADCAST,
            "rank 1 gives no INPUT to broadcast",
        ),
        (
            [[[copy(out(0), inp(0)), Send(inp(0), 1, 8192)]], [[Recv(out(1), 0, 8192)]]],
            Collective.BROADCAST,
            "stream 8192 of at most 8192",
        ),
    ],
)
def test_faults_that_show_without_a_run(ranks, collective, says):
    with pytest.raises(ProgramError, match=says):
        verify(make(*ranks, collective=collective))


def test_a_stream_carries_the_chunks_of_one_part():
    halves = [Part(0, 1), Part(1, 2)]
    ends = [
        (Channel(halves[0], (copy(out(0), inp(0)), Send(inp(0), 1))),
         Channel(halves[1], (copy(out(0), inp(0)), Send(inp(0), 1, 1)))),
        (Channel(halves[0], (Recv(out(1), 0, 1),)), Channel(halves[1], (Recv(out(1), 0, 0),))),
    ]  # fmt: skip
    ranks = tuple(RankProgram(channels=channels) for channels in ends)
    program = Program(Collective.BROADCAST, 0, Addressing.DIRECT, 2, ranks, hosts=(0, 1))
    refuse(program, r"carries the chunks of \[1, 2\), not of \[0, 1\)|.* not of \[1, 2\)")


def test_a_prologue_is_no_place_for_messages():
    channel = Channel(WHOLE, (Send(inp(0), 1),))
    take = Channel(WHOLE, (copy(out(0), inp(0)),))
    ranks = (
        RankProgram((channel,), (take,)),
        RankProgram((), (Channel(WHOLE, (Recv(out(1), 0),)),)),
    )
    program = Program(
        Collective.BROADCAST, 0, Addressing.DIRECT, 1, ranks, eager=True, hosts=(0, 1)
    )
    refuse(program, "a prologue runs before ranks meet, it cannot use flags or messages")


def test_only_linked_ranks_send_to_each_other():
    program = make([SEND_INPUT], [[Recv(out(1), 0)]])
    verify(program, links={(0, 1), (1, 0)})
    refuse(program, "addresses rank 0, but no link 1->0 is given", links={(0, 1)})
