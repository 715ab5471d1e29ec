"""From flags to a `Setting`: the problems that a command line can name, with their data.

Every rank builds the same setting by itself; the data set lies once on each node (`data.cache`).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, final

import numpy as np

from zofl_mpi.data import Federation, Raw, cache, features, images, partition
from zofl_mpi.data.cache import Sources
from zofl_mpi.data.synthetic import Synthetic
from zofl_mpi.descent import identity
from zofl_mpi.errors import UserError, demand
from zofl_mpi.problems import Bilevel, Hierarchical, Lipschitz, Smooth
from zofl_mpi.problems.softmax import Softmax
from zofl_mpi.problems.toy import Corner, Quadratic
from zofl_mpi.run.flags import Groups, made
from zofl_mpi.run.setting import Setting
from zofl_mpi.run.streams import Purpose, Streams
from zofl_mpi.run.world import World, together

T = TypeVar("T")
Values = Mapping[str, Any]
"""{flag: value} of the problem, in the role that it plays."""
Build = Callable[[Values, World, Streams, str, str], Setting]


@final
@dataclass(frozen=True)
class Samples:
    """A data set and who holds which part of it.

    Attributes:
        data: digits, mnist, fashion-mnist, cifar10, synthetic, or the path of a .npz file with x and y (integers y are
            classes, floats the targets of a regression).
        data_dir: the folder with the data set's files; else $ZOFL_DATA, else the user's cache.
        pixels: unit ([0, 1]), raw (as stored) or standardize (mean 0, variance 1 over the training part).
        m: number of clients.
        alpha: Dirichlet concentration of the clients' classes, above 0; inf for iid.
        partition: by_class (each class is spread over the clients) or by_client (each draws its classes; equal sizes).
        balance: by_class: a client that holds its fair share gets nothing of the later classes.
        min_samples: every client holds at least so many; the partition is redrawn until it is so.
        split: random (10 % of all samples, --test-fraction, are the test set) or official (the data set's own).
        test_fraction: share of all samples that is held out from all.
        server_fraction: share of the training part that is the server's own.
        synthetic_samples: --data synthetic: number of samples.
        synthetic_features: --data synthetic: length of an input.
        synthetic_classes: --data synthetic: number of classes.
        synthetic_noise: --data synthetic: probability that a label is drawn at random.
    """

    data: str = "digits"
    data_dir: str = ""
    pixels: Literal["unit", "raw", "standardize"] = "unit"
    m: int = 10
    alpha: float = math.inf
    partition: Literal["by_class", "by_client"] = "by_class"
    balance: bool = False
    min_samples: int = 10
    split: Literal["random", "official"] = "random"
    test_fraction: float = 0.1
    server_fraction: float = 0.3
    synthetic_samples: int = 10_000
    synthetic_features: int = 64
    synthetic_classes: int = 10
    synthetic_noise: float = 0.0

    def federation(
        self,
        world: World,
        streams: Streams,
        made_of: Callable[[Sources], Sources] = identity,
        *,
        classifies: bool = True,
    ) -> Federation:
        """The parts of server, clients and nobody.

        Args:
            made_of: what is shared out, as a function of the data set, which then lies in the cache already.
            classifies: refuse a regression.

        Raises:
            UserError: on every rank, if a file is missing or damaged on one, or a flag is out of range.
        """
        data_dir = Path(self.data_dir).expanduser() if self.data_dir else None
        stored = together(world, lambda: images.sources(self.data, data_dir, streams, self._synthetic()))
        _cached(world, stored)
        raw = together(world, lambda: self._opened(stored, classifies))
        sources = together(world, lambda: made_of(stored))
        if sources is not stored:
            _cached(world, sources)
            raw = together(world, lambda: cache.open(sources))
        return together(
            world,
            lambda: partition.split(
                raw,
                streams,
                m=self.m,
                alpha=self.alpha,
                partition=self.partition,
                test_fraction=self.test_fraction,
                server_fraction=self.server_fraction,
                official_split=self.split == "official",
                min_samples=self.min_samples,
                balance=self.balance,
                pixels=self.pixels,
            ),
        )

    def _opened(self, stored: Sources, classifies: bool) -> Raw:
        raw = cache.open(stored)
        if classifies and raw.targets is not None:
            raise UserError(
                f"--data {self.data} has targets, not classes; this problem classifies: store classes as integers "
                "(y.astype(int)), or give a problem of your own that reads targets (--problem module:Class)"
            )
        return raw

    def _synthetic(self) -> Synthetic:
        return Synthetic(self.synthetic_samples, self.synthetic_features, self.synthetic_classes, self.synthetic_noise)


def _cached(world: World, sources: Sources) -> None:
    """One rank of each node puts the data set into the node's cache."""
    place, _ = world.neighbours(None)
    together(world, lambda: cache.prepare(sources) if place == 0 else None)


@final
@dataclass(frozen=True)
class Terms:
    """What makes a loss a hierarchical problem of [A] section IV.

    Attributes:
        lam: lambda, weight of the dissimilarity f_2 = (lambda/2) sum_i rho_i |x - y_i|^2.
        mu: weight of the proximal term (mu/2)|x - y|^2 of a client's problem; one number, or one per client.
        radius: of the ball Y_i(x) around x to which y_i is confined; inf for none; one number, or one per client.
    """

    lam: float = 1.0
    mu: tuple[float, ...] = (1.0,)
    radius: tuple[float, ...] = (math.inf,)


@final
@dataclass(frozen=True)
class SoftmaxModel:
    """Multinomial logistic regression.

    Attributes:
        bias: whether the model has a bias; [A]'s has none.
        kernel: what computes the local steps: numpy, numba (compiled, twice as fast), auto (numba if installed).
    """

    bias: bool = False
    kernel: Literal["auto", "numpy", "numba"] = "auto"


@final
@dataclass(frozen=True)
class FeaturesModel:
    """Frozen random convolutional features of the images, under softmax regression.

    Attributes:
        filters: number of random filters; an input of the regression has filters * pool^2 numbers.
        filter_size: height and width of a filter in pixels.
        pool: the filters' positive responses are averaged over pool x pool cells of an image.
        features_seed: of the filters; runs with other seeds share them.
    """

    filters: int = 256
    filter_size: int = 6
    pool: int = 2
    features_seed: int = 0


@final
@dataclass(frozen=True)
class MLPModel:
    """A multilayer perceptron (ReLU), a torch module.

    Attributes:
        hidden: widths of the hidden layers.
    """

    hidden: tuple[int, ...] = (200,)


@final
@dataclass(frozen=True)
class ConvolutionModel:
    """A torch module that may convolve.

    Attributes:
        convolution: auto (on a CPU by Fourier transforms where that is faster) or direct (always torch's own).
    """

    convolution: Literal["auto", "direct"] = "auto"


@final
@dataclass(frozen=True)
class ToyModel:
    """Random quadratics whose solutions are known in closed form, in float64.

    Attributes:
        m: number of clients.
        n: length of x.
        lam: lambda, weight of the dissimilarity f_2.
        radius: of the ball Y_i(x) around x to which y_i is confined; inf for none.
        noise: standard deviation of a sample's gradient around the mean.
    """

    m: int = 10
    n: int = 8
    lam: float = 1.0
    radius: float = math.inf
    noise: float = 0.0


@final
@dataclass(frozen=True)
class CornerModel:
    """[A] equation (3), f(x) = 1/2 |x + 1 - max(x, 0)|^2: nonconvex and nonsmooth, in float64.

    Attributes:
        m: number of clients, all alike.
        n: length of x.
    """

    m: int = 10
    n: int = 8


@final
@dataclass(frozen=True)
class Choice:
    """A problem that a command line can name.

    Attributes:
        groups: {title: dataclass of its flags}.
        build: from the values of all flags, the dtype and this rank's device; on every rank alike.
        roles: {protocol of `zofl_mpi.problems` that it offers: further groups of flags for methods that need it}.
        gpu: whether it can run on one.
    """

    groups: Groups
    build: Build
    roles: Mapping[str, Groups]
    gpu: bool = False


def _softmax(values: Values, world: World, streams: Streams, dtype: str, device: str) -> Setting:
    return _regression(values, streams, _part(Samples, values).federation(world, streams), dtype)


def _features(values: Values, world: World, streams: Streams, dtype: str, device: str) -> Setting:
    samples, model = _part(Samples, values), _part(FeaturesModel, values)
    demand(samples.pixels == "unit", "pixels", samples.pixels, "unit: the features are made of [0, 1] and standardised")
    filters = features.Filters(model.filters, model.filter_size, model.pool, model.features_seed)
    federation = samples.federation(world, streams, lambda stored: features.sources(stored, filters))
    return _regression(values, streams, features.standardised(federation), dtype)


def _regression(values: Values, streams: Streams, federation: Federation, dtype: str) -> Setting:
    model = _part(SoftmaxModel, values)
    problem = Softmax(
        features=federation.server.features,
        classes=federation.server.classes,
        weights=federation.weights,
        bias=model.bias,
        dtype=np.dtype(dtype),
        kernel=model.kernel,
        **_terms(values),
    )
    return of_federation(problem, streams, federation, dtype)


Factory = Callable[[Values, tuple[int, ...], int], Any]
"""A torch module from the flags, the shape of an input and the number of classes."""


def _network(factory: Factory) -> Build:
    """Builds a problem of what `factory` makes."""

    def build(values: Values, world: World, streams: Streams, dtype: str, device: str) -> Setting:
        from zofl_mpi.problems.network import Network, seeded  # imports torch

        federation = _part(Samples, values).federation(world, streams)
        shape, classes = shape_of(federation), federation.server.classes
        module = seeded(lambda: factory(values, shape, classes), streams(Purpose.MODULE))
        problem = Network(
            module,
            shape,
            classes,
            federation.weights,
            dtype=np.dtype(dtype),
            device=device,
            convolution=values.get("convolution", "auto"),
            **_terms(values),
        )
        setting = of_federation(problem, streams, federation, dtype)
        return replace(setting, fingerprint=f"{setting.fingerprint}, {fingerprint_of(module)}")

    return build


def fingerprint_of(module: Any) -> str:
    """Tells networks apart by their layers and their values as they were made: the same on every rank, or refused."""
    values = b"".join(value.detach().cpu().numpy().tobytes() for value in module.state_dict().values())
    return f"network crc32 {zlib.crc32(repr(module).encode() + values):08x}"


def shape_of(federation: Federation) -> tuple[int, ...]:
    """(channels, height, width) where the inputs are square images, else (features,)."""
    try:
        return features.image_shape(federation.server.features, federation.channels)
    except UserError:
        return (federation.server.features,)


def _mlp(values: Values, shape: tuple[int, ...], classes: int) -> Any:
    from zofl_mpi.problems.models import MLP

    return MLP(math.prod(shape), classes, values["hidden"])


def _cnn(values: Values, shape: tuple[int, ...], classes: int) -> Any:
    from zofl_mpi.problems.models import CNN

    if len(shape) != 3:
        raise UserError(f"--problem cnn: inputs of {shape[0]} numbers are no square images; take mlp or softmax")
    return CNN((shape[0], shape[1], shape[2]), classes)


def _toy(values: Values, world: World, streams: Streams, dtype: str, device: str) -> Setting:
    model = _part(ToyModel, values)
    demand(model.m >= 1, "m", model.m, "a whole number, at least 1")
    demand(model.n >= 1, "n", model.n, "a whole number, at least 1")
    problem, server, clients = Quadratic.random(
        streams, model.n, model.m, lam=model.lam, radius=model.radius, noise=model.noise
    )
    return Setting(problem, streams, clients, server, server, None, np.dtype(np.float64))


def _corner(values: Values, world: World, streams: Streams, dtype: str, device: str) -> Setting:
    model = _part(CornerModel, values)
    demand(model.m >= 1, "m", model.m, "a whole number, at least 1")
    demand(model.n >= 1, "n", model.n, "a whole number, at least 1")
    nothing = range(1)  # a sample for everybody: the problem does not look at it
    return Setting(Corner(model.n), streams, (nothing,) * model.m, nothing, nothing, None, np.dtype(np.float64))


def own_problem(name: str, cls: type[Any], samples: type[Any] = Samples) -> Choice:
    """A user's own class, --problem module:Class, as a problem.

    Either a torch module, which is called with the shape of an input, (channels, height, width) or (features,), and the
    number of classes. Or a dataclass with a field `federation` (`zofl_mpi.data.Federation`: who holds which samples);
    its other fields are flags, its docstring's "Attributes:" their help, and what it offers are the protocols whose
    functions it has.

    Raises:
        UserError: it is no such class.
    """
    if any(base.__name__ == "Module" and base.__module__.startswith("torch.nn") for base in cls.__mro__):
        groups = {"data": samples, "problem": ConvolutionModel}
        return Choice(groups, _network(partial(_own_module, name, cls)), NETWORK, gpu=True)
    if not is_dataclass(cls) or "federation" not in (f.name for f in fields(cls)):
        raise UserError(
            f"--problem {name}: {cls.__name__} must be a torch module, or a dataclass with a field named federation "
            "(its data)"
        )
    has = {f.name for f in fields(cls)} | set(dir(cls))
    protocols = (Hierarchical, Smooth, Lipschitz, Bilevel)
    lacking = {p.__name__: [part for part in parts_of(p) if part not in has] for p in protocols}
    roles: dict[str, Groups] = {role: {} for role, missing in lacking.items() if not missing}
    if not roles:
        told = "; ".join(f"a {role} problem lacks {', '.join(missing)}" for role, missing in lacking.items())
        raise UserError(f"--problem {name}: {cls.__name__} is no problem: {told}")

    def build(values: Values, world: World, streams: Streams, dtype: str, device: str) -> Setting:
        federation = _part(Samples, values).federation(world, streams, classifies=False)
        return of_federation(made(cls, values, federation=federation), streams, federation, dtype)

    return Choice({"data": samples, "problem": cls}, build, roles)


def _own_module(name: str, cls: type[Any], values: Values, shape: tuple[int, ...], classes: int) -> Any:
    try:
        return cls(shape, classes)
    except Exception as exc:  # the user's code
        raise UserError(
            f"--problem {name}: {cls.__name__}({shape}, {classes}) failed: {type(exc).__name__}: {exc}"
        ) from exc


def parts_of(protocol: type[Any]) -> list[str]:
    """The names of a protocol's functions and properties."""
    return [name for name in vars(protocol) if not name.startswith("_")]


def of_federation(problem: Any, streams: Streams, federation: Federation, dtype: str) -> Setting:
    """The setting of a problem on these data."""
    return Setting(
        problem,
        streams,
        federation.clients,
        federation.server,
        federation.test,
        federation.counts,
        np.dtype(dtype),
        federation.server.fingerprint(),
    )


def _part(cls: type[T], values: Values) -> T:
    """A group of flags with its values."""
    return made(cls, values)  # type: ignore[no-any-return]


def _terms(values: Values) -> dict[str, Any]:
    """lam, mu and radius; their defaults where the method has no use for them, nor flags."""
    terms = _part(Terms, values) if "lam" in values else Terms()
    return {"lam": terms.lam, "mu": _one_or_each(terms.mu), "radius": _one_or_each(terms.radius)}


def _one_or_each(values: tuple[float, ...]) -> Any:
    return values[0] if len(values) == 1 else np.array(values)


BOTH: Mapping[str, Groups] = {"Hierarchical": {"hierarchy": Terms}, "Smooth": {}}
NETWORK: Mapping[str, Groups] = {**BOTH, "Lipschitz": {}}
SOFTMAX = Choice({"data": Samples, "problem": SoftmaxModel}, _softmax, BOTH)
FEATURES = Choice({"data": Samples, "problem": SoftmaxModel, "features": FeaturesModel}, _features, BOTH)
MLP = Choice({"data": Samples, "problem": MLPModel}, _network(_mlp), NETWORK, gpu=True)
CNN = Choice({"data": Samples, "problem": ConvolutionModel}, _network(_cnn), NETWORK, gpu=True)
TOY = Choice({"problem": ToyModel}, _toy, {"Hierarchical": {}, "Smooth": {}})
CORNER = Choice({"problem": CornerModel}, _corner, {"Hierarchical": {}})
