"""[A]'s figure 2 from tiny real results: lines and bands are means, least and largest numbers."""

from typing import Any

from tests.analysis.made import Grids


def test_figure_2_says_which_line_lacks_a_seed(place: Grids, script: Any) -> None:
    place("a_taus").member(cell="a0.1-b0.5", tau="9", seed="1").out.unlink()
    groups = place("a_taus").groups("cell", "tau", words=("--partial",))
    figure = script("a_fig2").draw(groups, "tau")
    titles = [panel.get_title(loc="left") for panel in figure.axes]
    assert titles == ["digits, α = 1000, β = 0.9", "digits, α = 0.1, β = 0.5\nτ = 9 (1 of 2 seeds)"]
