import pytest

from blinkrun.bench.plot import draw

plt = pytest.importorskip("matplotlib.image", reason="needs matplotlib")


def make_result(peers):
    rows = [
        {
            "size_bytes": 4 << (4 * k),
            "time_us": 1.0,
            "algbw_gb_per_s": 0.01 * 10**k,
            "busbw_gb_per_s": 0.01 * 10**k,
            "wrong": 0,
            "peers": {name: {"time_us": 2.0, "algbw_gb_per_s": 0.005 * 10**k} for name in peers},
        }
        for k in range(3)
    ]
    head = {"ranks": 2, "collective": "allreduce", "dtype": "float32", "buffers": "arena"}
    return {**head, "rows": rows}


@pytest.mark.slow
@pytest.mark.parametrize("peers", [[], ["mpi"], ["mpi", "gloo"]])
def test_the_picture_shows_a_line_for_each_library(tmp_path, peers):
    path = tmp_path / "out.png"
    draw(make_result(peers), path)
    pixels = (plt.imread(path)[..., :3] * 255).round().astype(int).reshape(-1, 3)
    colors = {tuple(color) for color in pixels}
    assert (0x1F, 0x5F, 0xBF) in colors
    assert ((0xC2, 0x57, 0x1A) in colors) == ("mpi" in peers)
    assert ((0x4D, 0x8F, 0x4D) in colors) == ("gloo" in peers)
