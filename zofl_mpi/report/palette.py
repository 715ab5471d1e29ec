"""Colours of all figures: Okabe and Ito's, which colour-blind readers tell apart, and one colour for each quantity."""

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
BLACK, SKY, YELLOW, GREY = "#000000", "#56B4E9", "#E69F00", "#BBBBBB"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, BLACK, SKY, YELLOW)
"""Of lines, in their order."""
SECONDS = {"compute": BLUE, "wait": GREY, "comm": ORANGE, "staging": GREEN}
"""Of the parts of a rank's seconds."""
BYTES = {"down": SKY, "up": PURPLE}
"""Of bytes, by their way: to the clients, and to the server."""
