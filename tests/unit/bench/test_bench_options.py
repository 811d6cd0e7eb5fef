import importlib.util

import pytest

from blinkrun.bench.options import DEFAULT_SIZES, check, make_parser, parse
from blinkrun.errors import UsageError
from blinkrun.types import DType, Op


def test_defaults_are_allreduce_of_float32_in_the_arena():
    options = parse([], num_ranks=2)
    assert (options.collective, options.dtype, options.op) == ("allreduce", DType.FLOAT32, Op.SUM)
    assert options.buffers == "arena"
    assert options.against == ()
    assert len(options.sizes) == len(DEFAULT_SIZES.split(","))


def test_sizes_are_read_in_the_order_given():
    assert parse(["--sizes", "4,1K,16KiB,1M"], 2).sizes == (4, 1024, 16384, 1 << 20)


def test_a_range_ends_with_the_last_size_that_is_not_above_the_largest():
    assert parse(["-b", "4", "-e", "100", "-f", "3"], 1).sizes == (4, 12, 36)


def test_sizes_are_rounded_down_to_whole_elements_in_every_block():
    options = parse(["--sizes", "1K,4K", "--collective", "allgather"], num_ranks=3)
    assert options.sizes == (1020, 4092)


def test_a_range_drops_what_holds_no_element():
    options = parse(["-b", "4", "-e", "64", "-f", "4", "--collective", "alltoall"], num_ranks=3)
    assert options.sizes == (12, 60)


def test_a_peer_named_twice_is_measured_once():
    assert parse(["--against", "mpi,mpi"], 2).against == ("mpi",)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--against", "mpi,nccl"], "--against nccl is unknown; known are mpi, gloo"),
        (["--collective", "scan"], "--collective scan is unknown; known are allreduce"),
        (["--dtype", "float8"], "--dtype float8 is unknown"),
        (["--op", "xor"], "--op xor is unknown"),
        (["--buffers", "gpu"], "--buffers gpu is unknown; known are arena, user"),
        (["--op", "average", "--dtype", "bool"], "--op average has no meaning for --dtype bool"),
        (["--root", "2"], "--root 2 is no rank; ranks are 0 to 1"),
        (["--root", "-1"], "--root -1 is no rank"),
        (["--sizes", "4,x"], "'x' is no size"),
        (["--sizes", "2"], "size 2 is too small: one element of float32 in every block is 4 bytes"),
        (["--sizes", "4", "-b", "4"], "--sizes and -b/-e/-f exclude each other"),
        (["-b", "8", "-e", "4"], "-b 8 -e 4 holds no size"),
        (["-b", "0"], "need 0 < MIN <= MAX"),
        (["-f", "1"], "-f is 1, need at least 2"),
        (["-f", "two"], "invalid int value: 'two'"),
        (["-e", "3"], "-b 4 -e 3 holds no size"),
        (["-b", "1", "-e", "2"], "no size holds 4 bytes"),
        (["--rounds", "0"], "--rounds is 0, need at least 1"),
        (["--warmup", "0"], "--warmup is 0, need at least 1"),
        (["--iters", "-1"], "--iters is -1, need at least 0"),
        (["--json", "/no/such/folder/x.json"], "there is no folder /no/such/folder"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["--col", "allreduce"], "unrecognized arguments"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(argv, message):
    with pytest.raises(UsageError) as caught:
        parse(argv, num_ranks=2)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "package", "message"),
    [
        (
            ["--plot", "x.png"],
            "matplotlib",
            "--plot needs matplotlib: pip install 'blinkrun[plot]'",
        ),
        (
            ["--against", "gloo"],
            "torch",
            "--against gloo needs torch: pip install 'blinkrun[torch]'",
        ),
    ],
)
def test_a_missing_package_is_named_with_what_brings_it(monkeypatch, argv, package, message):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else found(name)
    )
    with pytest.raises(UsageError, match=r"pip install") as caught:
        parse(argv, num_ranks=2)
    assert str(caught.value) == message


def test_help_needs_no_number_of_ranks():
    """``blinkrun bench --help`` asked how many ranks."""
    assert check(["--help"], None) == check(["-h"], None) == make_parser().format_help()
    assert check(["--sizes", "4"], None) is None


def test_help_is_asked_for_and_fits_a_screen():
    assert parse(["--help"], num_ranks=2) is None
    lines = make_parser().format_help().splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    assert lines[-1].lstrip().startswith("blinkrun -np 2 bench")  # ends with an example


@pytest.mark.parametrize("num_ranks", [None, 2])
@pytest.mark.parametrize("flag", ["--training", "--engine"])
def test_help_on_what_torch_does_needs_no_ranks(flag, num_ranks):
    assert f"blinkrun -np N bench {flag}" in check([flag, "--help"], num_ranks)
    assert check([flag, "--rounds", "3"], num_ranks) is None
