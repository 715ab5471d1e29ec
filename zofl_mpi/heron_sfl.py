"""HERON-SFL: split federated learning with clients that train by forward passes only.

[C] Kou, Chen, Yang, Shen, "Lean Clients, Full Accuracy: Hybrid Zeroth- and First-Order Split Federated Learning".

A client holds the first layers and an auxiliary head, theta_l = (theta_c, theta_a), and steps along a zeroth-order
estimate of its local loss: no backward pass, hence no stored activations. Every k-th step its smashed activations go
up, and the server trains the rest of the network on them by backpropagation while the clients compute on; nothing is
returned. At the end of the round the theta_l are averaged.

Baselines: split learning by backpropagation, in lockstep with the server (sflv1, sflv2, splitlora) or from an
auxiliary loss (cse_fsl, fsl_sage). ho_sfl uses forward passes along the gradient that the server returns. In decomfl
and fedkseed clients hold the whole network and exchange scalars only.

    mpirun -n 3 python -m zofl_mpi.heron_sfl
    mpirun -n 6 python -m zofl_mpi.heron_sfl --paper --data cifar10

The first trains a small network on digits, the second ResNet-18 as in the paper.
"""

from zofl_mpi.methods.cse_fsl import CSEFSL
from zofl_mpi.methods.decomfl import DeComFL, HiSo
from zofl_mpi.methods.fedkseed import FedKSeed
from zofl_mpi.methods.fsl_sage import FSLSAGE
from zofl_mpi.methods.heron import HERON
from zofl_mpi.methods.ho_sfl import HOSFL
from zofl_mpi.methods.splitfed import SFLV1, SFLV2, SplitLoRA
from zofl_mpi.settings.heron_sfl import PROBLEMS as PROBLEMS
from zofl_mpi.settings.heron_sfl import own_split

METHODS = {
    "heron": HERON,
    "sflv1": SFLV1,
    "sflv2": SFLV2,
    "cse_fsl": CSEFSL,
    "fsl_sage": FSLSAGE,
    "splitlora": SplitLoRA,
    "decomfl": DeComFL,
    "hiso": HiSo,
    "fedkseed": FedKSeed,
    "ho_sfl": HOSFL,
}
OWN_PROBLEM = own_split
PAPER_PROBLEM = "split_resnet"  # with --paper; the default problem learns within a minute


def main() -> None:
    """Runs the command line; also the console script `heron-sfl`."""
    from zofl_mpi.run.command.cli import main as run

    run("zofl_mpi.heron_sfl")


if __name__ == "__main__":
    main()
