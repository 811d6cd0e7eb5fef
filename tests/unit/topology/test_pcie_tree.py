"""PCIe trees rebuilt from printed levels."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blinkrun.topology.catalog import described, machines
from blinkrun.topology.machine import Gpu, Machine, Nic, NicPath, PciKind, PciNode, PciPath
from blinkrun.topology.pcie_tree import nearest_nics, path_up, pcie_tree

LEVELS = ("PIX", "PXB", "PHB", "NODE", "SYS")


def machine_of(levels, size, *, nics=0, gpu_nic=(), numas=()):
    """Bare GPUs with {(low, high): level}."""
    gpus = tuple(Gpu(f"GPU{at}", numa=numas[at] if numas else None) for at in range(size))
    return Machine(
        "m",
        "by hand",
        gpus,
        tuple(Nic(f"NIC{at}") for at in range(nics)),
        pcie=tuple(PciPath(*pair, level) for pair, level in levels.items()),
        gpu_nic=tuple(NicPath(*path) for path in gpu_nic),
    )


def heights(tree, size):
    """How high two GPUs meet: PIX, PXB, CPU or SYS."""
    at = {gpu: index for index, node in enumerate(tree) for gpu in node.gpus}
    met = {}
    for low, high in combinations(range(size), 2):
        one, other = path_up(tree, at[low]), path_up(tree, at[high])
        common = [node for node in one if node in other]
        if not common:
            met[low, high] = "SYS"
        elif tree[common[0]].kind is PciKind.CPU:
            met[low, high] = "CPU"
        else:
            met[low, high] = "PIX" if one[1] == other[1] else "PXB"
    return met


def simplified(level):
    return "CPU" if level in ("PHB", "NODE") else level


@st.composite
def ultrametrics(draw, max_size=7):
    """Levels that a real tree has: every pair meets at the nearest node above both."""
    size = draw(st.integers(1, max_size))
    places = [
        tuple(draw(st.integers(0, 1)) for _ in range(4)) for _ in range(size)
    ]  # NUMA node, host bridge, upper switch, lower switch
    levels = {}
    for low, high in combinations(range(size), 2):
        one, other = places[low], places[high]
        differ = next((at for at in range(4) if one[at] != other[at]), 4)
        levels[low, high] = ("SYS", "NODE", "PHB", "PXB", "PIX")[differ]
    return size, levels


@given(ultrametrics())
def test_a_full_matrix_is_rebuilt_exactly(case):
    size, levels = case
    met = heights(pcie_tree(machine_of(levels, size)), size)
    assert met == {pair: simplified(level) for pair, level in levels.items()}


@settings(max_examples=25)
@given(ultrametrics(), st.data())
def test_left_out_pairs_are_never_nearer_than_they_were_nor_beyond_what_is_known(case, data):
    """A matrix leaves out pairs with NVLink; chains over the others bound them."""
    size, levels = case
    kept = {pair: level for pair, level in levels.items() if data.draw(st.booleans())}
    met = heights(pcie_tree(machine_of(kept, size)), size)
    order = ["PIX", "PXB", "CPU", "SYS"]
    for pair, level in levels.items():
        if pair in kept:
            assert met[pair] == simplified(level)
    for a, b, c in combinations(range(size), 3):
        top = sorted((met[pair] for pair in ((a, b), (a, c), (b, c))), key=order.index)
        assert top[1] == top[2]  # still a tree


@settings(max_examples=25)
@given(
    st.integers(1, 6),
    st.data(),
    st.lists(st.none() | st.integers(-1, 3), min_size=6, max_size=6),
)
def test_any_levels_make_a_tree_with_every_gpu_once(size, data, numas):
    """Contradictions are read as something, never refused."""
    word = st.sampled_from((*LEVELS, "SOC", "PCIE", "XYZ", ""))
    levels = {
        pair: data.draw(word) for pair in combinations(range(size), 2) if data.draw(st.booleans())
    }
    paths = [(gpu, nic, data.draw(word)) for gpu in range(size) for nic in range(2)]
    machine = machine_of(levels, size, nics=2, gpu_nic=paths, numas=numas[:size])
    tree = pcie_tree(machine)
    assert sorted(gpu for node in tree for gpu in node.gpus) == list(range(size))
    assert sorted(nic for node in tree for nic in node.nics) == [0, 1]
    for at, node in enumerate(tree):
        assert (node.parent < 0) == (node.kind is PciKind.CPU)
        assert node.parent < at
    assert len(nearest_nics(machine)) == size


def test_gpus_joined_by_nvlink_meet_where_their_nics_say():
    """DGX-1V: pairs 0-1 and 2-3 have NVLink; a NIC is PIX to one pair and PHB to the other."""
    paths = [(gpu, nic, "PIX" if gpu // 2 == nic else "PHB") for gpu in range(4) for nic in (0, 1)]
    met = heights(pcie_tree(machine_of({}, 4, nics=2, gpu_nic=paths)), 4)
    assert met == {
        (0, 1): "PIX",
        (2, 3): "PIX",
        (0, 2): "CPU",
        (0, 3): "CPU",
        (1, 2): "CPU",
        (1, 3): "CPU",
    }


def test_a_nic_of_its_own_below_a_common_switch_is_pxb_to_the_others():
    paths = [(gpu, nic, "PIX" if gpu == nic else "PXB") for gpu in range(2) for nic in range(2)]
    tree = pcie_tree(machine_of({}, 2, nics=2, gpu_nic=paths))
    assert heights(tree, 2) == {(0, 1): "PXB"}
    assert [node.name for node in tree] == [
        *("cpu 0", "switch 0", "switch 1", "gpu0", "nic0", "switch 2", "gpu1", "nic1"),
    ]


def test_what_nothing_joins_goes_by_numa_or_together():
    assert heights(pcie_tree(machine_of({}, 3)), 3) == dict.fromkeys(
        combinations(range(3), 2), "CPU"
    )
    met = heights(pcie_tree(machine_of({}, 3, numas=(0, 1, 0))), 3)
    assert met == {(0, 1): "SYS", (0, 2): "CPU", (1, 2): "SYS"}
    met = heights(pcie_tree(machine_of({}, 3, numas=(0, None, 1))), 3)
    assert met[0, 2] == "SYS"


def test_a_printed_level_counts_more_than_numa():
    met = heights(pcie_tree(machine_of({(0, 1): "SYS"}, 2, numas=(1, 1))), 2)
    assert met == {(0, 1): "SYS"}
    met = heights(pcie_tree(machine_of({(0, 1): "NODE"}, 2, numas=(0, 1))), 2)
    assert met == {(0, 1): "CPU"}


def test_an_unplaced_gpu_joins_its_own_numa_node_first():
    levels = {(0, 1): "SYS"}
    met = heights(pcie_tree(machine_of(levels, 3, numas=(None, 1, 1))), 3)
    assert (met[0, 2], met[1, 2]) == ("SYS", "CPU")


def test_cpus_are_called_by_numa_node_where_that_is_known():
    def cpus(numas):
        levels = dict.fromkeys(combinations(range(len(numas)), 2), "SYS")
        tree = pcie_tree(machine_of(levels, len(numas), numas=numas))
        return [(node.name, node.vendor) for node in tree if node.kind is PciKind.CPU]

    assert cpus((3, 1)) == [("cpu 1", ""), ("cpu 3", "")]
    assert cpus((8, 0)) == [("cpu 0", "power"), ("cpu 8", "power")]
    assert cpus((1, 1)) == [("cpu 0", ""), ("cpu 1", "")]
    assert cpus((1, None)) == [("cpu 0", ""), ("cpu 1", "")]


@pytest.mark.parametrize(
    ("path", "met"),
    [
        (PciPath(0, 1, "PCIE", hops=2, weight=40), "CPU"),
        (PciPath(0, 1, "PCIE", hops=3, weight=52), "SYS"),
        (PciPath(0, 1, "PCIE", weight=40), "CPU"),
        (PciPath(0, 1, "PCIE", weight=72), "SYS"),
        (PciPath(0, 1, "PCIE"), "CPU"),
    ],
)
def test_hops_or_weights_of_rocm_smi(path, met):
    machine = Machine("m", "by hand", (Gpu("a"), Gpu("b")), pcie=(path,))
    assert heights(pcie_tree(machine), 2) == {(0, 1): met}


def test_pairs_that_are_not_stated_at_all():
    machine = Machine("m", "by hand", (Gpu("a"), Gpu("b")), pcie=None)
    assert len(pcie_tree(machine)) == 3


def test_a_stated_tree_is_taken_and_completed():
    tree = (
        PciNode(PciKind.CPU, "cpu 0", numa=0),
        PciNode(PciKind.GPU, "0000:07:00.0", 0, gpus=(0,)),
        PciNode(PciKind.CPU, "cpu 1", numa=1),
    )
    gpus = (Gpu("a", bus_id="0000:07:00.0"), Gpu("B", numa=1), Gpu("c"))
    found = pcie_tree(Machine("m", "file", gpus, tree=tree))
    assert found[:3] == tree
    assert [(node.name, node.parent) for node in found[3:]] == [("b", 2), ("c", 0)]
    alone = (PciNode(PciKind.CPU, "cpu 0"), PciNode(PciKind.GPU, "a", 0, gpus=(0,)))
    assert pcie_tree(Machine("m", "file", gpus[:1], tree=alone)) == alone


def test_nearest_nics_by_levels_or_by_the_tree():
    paths = [(0, 0, "SYS"), (0, 1, "PXB"), (0, 2, "PXB"), (1, 0, "NODE"), (1, 1, "SYS")]
    assert nearest_nics(machine_of({}, 3, nics=3, gpu_nic=paths)) == ((1, 2), (0,), ())
    tree = (
        PciNode(PciKind.CPU, "cpu 0"),
        PciNode(PciKind.BRIDGE, "b", 0),
        PciNode(PciKind.GPU, "g0", 1, gpus=(0,)),
        PciNode(PciKind.NIC, "n0", 1, nics=(0, 1)),
        PciNode(PciKind.NIC, "n1", 0, nics=(2,)),
        PciNode(PciKind.CPU, "cpu 1"),
        PciNode(PciKind.GPU, "g1", 5, gpus=(1,)),
    )
    nics = tuple(Nic(f"NIC{at}") for at in range(3))
    machine = Machine("m", "file", (Gpu("a"), Gpu("b")), nics, tree=tree)
    assert nearest_nics(machine) == ((0, 1), (0, 1, 2))


@pytest.mark.parametrize("name", machines())
def test_trees_of_the_catalog_come_back_from_their_levels(name):
    """What a matrix of that machine prints is enough to find its tree again."""
    machine = described(name)
    bare = Machine(
        name, "levels", machine.gpus, machine.nics, pcie=machine.pcie, gpu_nic=machine.gpu_nic
    )
    if len({node.host for node in machine.tree}) == 1:
        size = machine.num_gpus
        assert heights(pcie_tree(bare), size) == heights(machine.tree, size)
