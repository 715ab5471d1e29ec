"""torch, imported when it is first used."""

import subprocess
import sys


def test_torch_is_imported_by_the_first_look_up_and_bound_then() -> None:
    """In a process of its own. Mutations: an import at the top; a look-up that is kept although torch's has changed."""
    program = (
        "import sys\n"
        "from zofl_mpi.engine.lazy import is_tensor, torch\n"
        "assert not is_tensor(1) and 'torch' not in sys.modules\n"
        "assert torch.cat is sys.modules['torch'].cat and vars(torch) is vars(sys.modules['torch'])\n"
        "sys.modules['torch'].cat = 3\n"
        "assert torch.cat == 3\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
