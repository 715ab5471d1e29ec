"""FedRZO: zeroth-order federated methods for nonsmooth nonconvex, bilevel and minimax problems.

[B] Qiu, Shanbhag, Yousefian, "Zeroth-Order Methods for Nondifferentiable, Nonconvex, and Hierarchical Federated
Optimization", NeurIPS 2023.

    fedrzo_nn    min_x (1/m) sum_i f_i(x) over the intersection of the X_i, f_i Lipschitz           (Algorithm 1)
    fedrzo_bl    min_x (1/m) sum_i f_i(x, y(x)), y(x) = argmin_y (1/m) sum_i h_i(x, y)              (Algorithms 2, 3)
                 minimax is h = -f

    mpirun -n 6 python -m zofl_mpi.fedrzo --data mnist
    mpirun -n 6 python -m zofl_mpi.fedrzo --method fedrzo_bl --problem hyperparameter --data mnist --lower fedac1
"""

from functools import partial

from zofl_mpi.methods.fedavg import FedAvg, FedProx
from zofl_mpi.methods.fedmspp import FedMSPP
from zofl_mpi.methods.fednest import FedNest
from zofl_mpi.methods.fedrzo_bl import FedRZOBL
from zofl_mpi.methods.fedrzo_nn import FedRZONN
from zofl_mpi.methods.scaffnew import Scaffnew
from zofl_mpi.settings.fedrzo import PROBLEMS as PROBLEMS
from zofl_mpi.settings.networks import own_problem
from zofl_mpi.settings.samples import ClientSamples

METHODS = {
    "fedrzo_nn": FedRZONN,
    "fedrzo_bl": FedRZOBL,
    "fednest": FedNest,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedmspp": FedMSPP,
    "scaffnew": Scaffnew,
}
OWN_PROBLEM = partial(own_problem, samples=ClientSamples)


def main() -> None:
    """Runs the command line; also the console script `fedrzo`."""
    from zofl_mpi.run.command.cli import main as run

    run("zofl_mpi.fedrzo")


if __name__ == "__main__":
    main()
