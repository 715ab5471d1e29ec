"""ZO-HFL: zeroth-order hierarchical federated learning.

[A] Qiu, Kim, Yousefian, "A Randomized Zeroth-Order Hierarchical Framework for Heterogeneous Federated Learning".

    min_x  f_1(x) + (1/m) sum_i f_{2,i}(x, y_i(x)),    y_i(x) = argmin over y in Y_i(x) of h_i(x, y)

The server has data of its own (f_1). Client i solves its personal, strongly convex problem h_i inexactly (Algorithm 2).
The implicit function x -> f_{2,i}(x, y_i(x)) has no gradient to send: the server descends a two-point zeroth-order
estimate of it (Algorithm 1).

    mpirun -n 11 python -m zofl_mpi.zo_hfl
    mpirun -n 11 python -m zofl_mpi.zo_hfl --data mnist --alpha 0.1 --beta 0.5 --rounds 500 --out mnist.h5
"""

from zofl_mpi.methods.ditto import Ditto
from zofl_mpi.methods.fedavg import FedAvg, FedProx
from zofl_mpi.methods.pfedme import PFedMe
from zofl_mpi.methods.scaffold import Scaffold
from zofl_mpi.methods.server_sgd import ServerSGD
from zofl_mpi.methods.zo_hfl import ZOHFL
from zofl_mpi.settings.networks import own_problem
from zofl_mpi.settings.zo_hfl import PROBLEMS as PROBLEMS

METHODS = {
    "zo_hfl": ZOHFL,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "ditto": Ditto,
    "pfedme": PFedMe,
    "server_sgd": ServerSGD,
}
OWN_PROBLEM = own_problem


def main() -> None:
    """Runs the command line; also the console script `zo-hfl`."""
    from zofl_mpi.run.command.cli import main as run

    run("zofl_mpi.zo_hfl")


if __name__ == "__main__":
    main()
