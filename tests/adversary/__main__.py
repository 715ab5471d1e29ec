"""python -m tests.adversary [KIND ...]: runs the trials of these kinds (of all), and prints how many held."""

import sys

from tests.adversary.frame import kinds, perform

broken = [what for kind in sys.argv[1:] or kinds() for what in perform(kind)[1]]
sys.exit(bool(broken))
