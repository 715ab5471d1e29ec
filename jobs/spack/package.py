# In a repository of packages of your own: spack repo create zofl, then copy this file to packages/zofl_mpi/package.py
# of it (py_zofl_mpi in Spack 0.23 and older), then spack install zofl-mpi. The MPI is the site's.
from spack.package import *


class ZoflMpi(PythonPackage):
    """Zeroth-order federated learning on MPI: the same answer, bit for bit, on any number of ranks."""

    homepage = "https://arxiv.org/abs/2504.01839"
    url = "file:///path/of/your/clone/dist/zofl_mpi-1.0.0.tar.gz"  # python -m build --sdist makes it

    license("MIT")

    version("1.0.0")

    variant("torch", default=True, description="Networks, split learning, GPUs")
    variant("fast", default=True, description="Compiled local steps of softmax regression (numba)")
    variant("report", default=True, description="Pages and figures of runs")
    variant("script", default=True, description="Classes of scripts and notebooks on other ranks")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("mpi", type=("build", "run"))
    with default_args(type=("build", "run")):
        depends_on("py-numpy@2.0:")
        depends_on("py-mpi4py@4.1:")
        depends_on("py-h5py@3.11:")
        depends_on("py-docstring-parser@0.16:")
        depends_on("py-rich@13.7:")
        depends_on("py-pooch@1.8:")
        depends_on("py-requests@2.31:")
        depends_on("py-platformdirs@4.0:")
        depends_on("py-tqdm@4.66:")
        depends_on("py-scikit-learn@1.5:")
        depends_on("py-typing-extensions@4.12:")
        depends_on("py-threadpoolctl@3.5:")
        depends_on("py-torch@2.6:", when="+torch")
        depends_on("py-numba@0.61:", when="+fast")
        depends_on("py-plotly@6.0:", when="+report")
        depends_on("py-matplotlib@3.9:", when="+report")
        depends_on("py-pandas@2.2:", when="+report")
        depends_on("py-scipy@1.11:", when="+report")
        depends_on("py-cloudpickle@3.0:", when="+script")
