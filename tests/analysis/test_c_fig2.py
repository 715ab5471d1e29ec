"""[C]'s figure 2 from tiny real results: the numbers are those computed by hand from the files."""

from typing import Any

import matplotlib.pyplot as plt


def test_lines_that_lack_seeds_are_named_in_few_lines(script: Any) -> None:
    """Mutation: a line for each, which leaves no room for the panel."""
    heron, groups = script("shared.heron"), script("shared.groups")
    one, two, none = (
        groups.Group({"method": method}, 1 + lacking, {}, (object(),))
        for method, lacking in (("heron", 2), ("cse_fsl", 2), ("sflv2", 0))
    )
    panel = plt.figure().gca()
    for those, told in (
        ([one, two, none], "t\n1 of 3 seeds: HERON; CSE-FSL"),
        ([one, two], "t\nevery point: 1 of 3 seeds"),
        ([one] * 7 + [two, none], "t\n1 of 3 seeds: 8 of the points"),
        ([none], "t"),
    ):
        heron.titled(panel, "t", those, heron.name)
        assert panel.get_title(loc="left") == told
