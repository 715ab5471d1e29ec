"""What a result says of server and clients that compute at once; compute = sleep, so that cores do not matter.

That they do compute at once: tests/unit/test_overlap.py.
"""

from tests.bench.overlap import NAPS, USUAL
from tests.e2e.made import *

H, M = 8, 2
FAMILY = "zofl_mpi.heron_sfl"
RUN = f"{USUAL} --method heron --problem tests.bench.overlap:Sleeping --m {M} --h {H} --eval-every 9".split()
"""Two passes of 10 ms a step at each client, and a step of 10 ms at the server for each."""
LASTS = "0.01 0.01 16"


def test_the_end_of_a_run_says_how_long_both_sides_computed_at_once(
    tmp_path: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    """Mutations: the clients' times in place of the server's; times that leave out what is computed."""
    out = tmp_path / "run.h5"
    monkeypatch.setenv(NAPS, LASTS)
    assert run_module(3, FAMILY, *RUN, "--rounds", 3, "--out", out) == 0
    seconds = r"(\d+\.\d)"
    told = re.findall(
        rf"^server    computing {seconds} s, waiting {seconds} s, sending {seconds} s; "
        rf"{seconds} s of its computing while clients computed$",
        capsys.readouterr().out,
        re.MULTILINE,
    )
    heron = records.load(out)
    found, ranks = heron.overlap(), heron.ranks
    assert (found.clients > 2 * H * 0.01).all() and (found.server > M * H * 0.01).all()
    kinds = [ranks[f"seconds_{kind}"][:, :, 0].sum() for kind in ("compute", "wait", "comm")]
    right = [f"{value:.1f}" for value in (*kinds, found.both.sum())]
    assert [list(words) for words in told] == [right]
    assert kinds[0] == pytest.approx(found.server.sum())
