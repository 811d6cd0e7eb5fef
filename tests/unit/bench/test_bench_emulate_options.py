import pytest

from blinkrun.bench.emulate_options import is_emulated, make_parser, parse
from blinkrun.bench.options import check
from blinkrun.errors import UsageError


def options_of(words):
    return parse(["--emulate", "dgx-1v", *words.split()])


def test_defaults_are_an_allreduce_of_all_gpus_over_all_links():
    options = options_of("")
    assert (options.machine, options.gpus, options.links) == ("dgx-1v", None, "all")
    assert (options.collective, options.scale, options.against) == ("allreduce", 1000, ())
    assert options.sizes is None  # chosen by their time


def test_values_are_read_as_they_are_written():
    options = options_of(
        "--gpus 1,4-5 --links nvlink --scale 50 --against ring --sizes 4K,1M,4K --root 4"
        " --collective broadcast --trees few --chunk 16K --iters 8 --rounds 5"
    )
    assert (options.gpus, options.root) == ((1, 4, 5), 4)
    assert (options.links, options.scale, options.against) == ("nvlink", 50, ("ring",))
    assert options.sizes == (4096, 1 << 20)
    assert (options.trees, options.chunk_bytes) == ("few", 16384)
    assert (options.calls, options.rounds) == (8, 5)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--scale 0", "--scale 0: need a whole number of at least 1"),
        ("--scale 1.5", "--scale 1.5: need a whole number of at least 1"),
        ("--sizes 4X", "--sizes 4X: '4X' is no size"),
        ("--sizes 0", "--sizes 0: need at least 1 byte"),
        ("--sizes 1M,", "--sizes : '' is no size"),
        ("--chunk 0", "--chunk 0: need at least 1 byte"),
        ("--against mpi", "--against mpi: beside --emulate there is only ring"),
        ("--against ring,gloo", "--against gloo: beside --emulate there is only ring"),
        ("--links pcie", "--links pcie is unknown; known are nvlink, all"),
        ("--trees many", "--trees many is unknown; known are auto, exact, few"),
        ("--collective alltoall", "--collective alltoall is unknown"),
        ("--collective broadcst", "--collective broadcst is unknown; did you mean broadcast?"),
        ("--root 1", "--root is for broadcast and reduce; allreduce has none"),
        ("--collective reduce --root 2 --gpus 0,1", "--root 2 is not among --gpus 0,1"),
        ("--gpus 0,0", "GPU 0 is named twice"),
        ("--gpus a", "'a' is no GPU number"),
        ("--training", "--training does not go with --emulate"),
        ("--buffers user", "unknown option --buffers"),
        ("--scal 3", "unknown option --scal; did you mean --scale?"),
        ("--json /no/such/folder/x.json", "--json /no/such/folder/x.json: there is no folder"),
        ("--json .", "--json .: that is a folder"),
        ("--rounds 0", "--rounds 0: need a whole number of at least 1"),
        ("--iters 0", "--iters 0: need a whole number of at least 1"),
        ("--emulate", "--emulate needs a value"),
        ("--emulate -", "--emulate -: the ranks read standard input"),
    ],
)
def test_what_cannot_be_emulated_is_refused_in_one_line(words, said):
    with pytest.raises(UsageError) as caught:
        options_of(words)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_option_is_found_in_either_spelling():
    assert is_emulated(["--sizes", "4", "--emulate", "dgx-1v"])
    assert is_emulated(["--emulate=dgx-1v"])
    assert not is_emulated(["--training", "dgx-1v", "--emulated"])


def test_help_needs_no_machine_and_no_number_of_ranks_and_fits_a_screen():
    text = check(["--emulate", "--help"], None)
    assert text == make_parser().format_help()
    lines = text.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    assert lines[-1].lstrip().startswith("blinkrun bench --emulate dgx-1v --gpus 1,4,5,7")


def test_the_options_are_frozen():
    """Scripts rely on these: an option may be added here, none may go or change its meaning."""
    assert set(make_parser().options) == {
        *("--emulate", "--gpus", "--links", "--scale", "--against", "--collective", "--root"),
        *("--sizes", "--trees", "--chunk", "--iters", "--rounds", "--json", "--plot"),
        *("--partial", "--report", "--bandwidths", "--training", "--help", "-h"),
    }


@pytest.mark.parametrize("words", ["--against ring", "--sizes 4 --against mpi,ring"])
def test_rings_belong_to_an_emulated_machine(words):
    with pytest.raises(UsageError, match="--against ring is for an emulated machine: --emulate"):
        check(words.split(), 2)
