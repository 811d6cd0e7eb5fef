import pytest

pytest.importorskip("torch", reason="needs torch")

from blinkrun.adapter.overlap import choose_overlap


@pytest.mark.parametrize(
    ("cores", "local_size", "threads", "on"),
    [
        (2, 2, 1, False),  # the ranks fill the machine
        (2, 4, 1, False),
        (3, 2, 1, False),  # one core for two helpers
        (4, 2, 1, True),
        (4, 2, 2, False),
        (8, 2, 3, True),  # a compute thread less than the share
        (1, 2, 1, False),
    ],
)
def test_overlap_needs_a_core_for_every_helper(cores, local_size, threads, on):
    choice = choose_overlap(
        "auto", cores=cores, local_size=local_size, cross_size=1, threads=threads
    )
    assert choice.on is on
    assert str(cores) in choice.reason


def test_overlap_pays_between_hosts_and_never_alone():
    several = choose_overlap("auto", cores=2, local_size=2, cross_size=3, threads=1)
    alone = choose_overlap("auto", cores=8, local_size=1, cross_size=1, threads=1)
    assert (several.on, alone.on) == (True, False)


@pytest.mark.parametrize("wanted", ["on", "off"])
def test_what_is_asked_for_is_obeyed(wanted):
    choice = choose_overlap(wanted, cores=1, local_size=4, cross_size=1, threads=8)
    assert choice.on is (wanted == "on")
    assert choice.reason == "asked for"
