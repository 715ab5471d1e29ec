"""When two results are the same run: bit for bit, clocks aside."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "analysis"))  # as where Python runs the scripts
from shared.agreement import bits, differences

sys.path.pop(0)

__all__ = ["bits", "differences"]

if __name__ == "__main__":
    for other in sys.argv[2:]:
        print(other, differences(sys.argv[1], other) or "identical")
