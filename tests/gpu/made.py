"""Problems of the real shapes on made-up data: nothing is fetched, nothing is read."""

from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from zofl_mpi.data import Dataset
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.problems.models import CNN
from zofl_mpi.problems.network import Network, seeded
from zofl_mpi.problems.split import SplitNetwork
from zofl_mpi.problems.split_images import ResNet

STREAMS = Streams(1)
CLASSES = 10


class Sizes(NamedTuple):
    """Numbers of a benchmark.

    Attributes:
        samples: of a data set of images of one colour, `side` pixels a side.
        clients: few and many of ZO-HFL.
        steps, batch: of a local solve.
        network: width and stages of the ResNet; `images`: samples of its batch, `checked`: of a batch that a CPU
            computes in float64, too; `uploads`: local steps of a round.
        texts: of a batch; `tokens`: T; `words`: V.
    """

    samples: int = 60_000
    side: int = 28
    clients: tuple[int, int] = (10, 1000)
    steps: int = 100
    batch: int = 64
    network: tuple[int, tuple[int, ...]] = (64, (2, 2, 2, 2))
    pixels: int = 32
    images: int = 256
    checked: int = 8
    uploads: int = 4
    model: str = "medium"
    texts: int = 8
    tokens: int = 72
    words: int = 50_257


REAL = Sizes()
TINY = Sizes(240, 8, (2, 6), 3, 4, (2, (1, 1)), 8, 4, 4, 2, "bench", 2, 12, 37)
SHALLOW = {"n_layer": 4, "n_embd": 1024, "n_head": 16, "n_positions": 1024}
"""GPT-2 medium's shapes, few of its blocks: for what a CPU computes in float64, too."""
SMALL = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 32}


def images(count: int, features: int) -> Dataset:
    """Bytes of which four fifths are 0, as in MNIST."""
    generator = STREAMS(Purpose.SYNTHETIC)
    inputs = generator.integers(0, 256, (count, features), dtype=np.uint8)
    inputs *= generator.random((count, features), dtype=np.float32) < 0.2
    return Dataset(inputs, generator.integers(0, CLASSES, count), CLASSES, scale=1 / 255)


def shared(data: Dataset, m: int) -> tuple[Dataset, ...]:
    """The samples, shared out over m clients in no order."""
    order = STREAMS(Purpose.PARTITION).permutation(len(data))
    return tuple(data.subset(part) for part in np.array_split(order, m))


def setting(problem: Any, data: Dataset, m: int) -> Setting[Any]:
    """Clients, and a server, of the same samples: nobody learns here."""
    return Setting(problem, STREAMS, shared(data, m), data, data, None, np.dtype(problem.dtype))


def cnn(sizes: Sizes, m: int, device: str, dtype: str = "float32", kernel: Any = "torch") -> Network:
    """FedAvg's small convolutional network."""
    shape = (1, sizes.side, sizes.side)
    module = seeded(lambda: CNN(shape, CLASSES), STREAMS(Purpose.MODULE))
    weights = np.full(m, 0.7 / m)
    return Network(module, shape, CLASSES, device, kernel, weights=weights, dtype=np.dtype(dtype))


def parts(sizes: Sizes) -> tuple[Any, Any, Any]:
    """The client's, the auxiliary and the server's part of [C]'s ResNet-18."""
    width, stages = sizes.network
    shape = (3, sizes.pixels, sizes.pixels)
    return seeded(lambda: ResNet(width, stages).parts(shape, CLASSES), STREAMS(Purpose.MODULE))


def resnet(sizes: Sizes, device: str, dtype: str = "float32", bf16: bool = False, tf32: bool = False) -> SplitNetwork:
    """[C]'s ResNet-18, cut after its first block."""
    kinds: dict[str, Any] = {"dtype": dtype, "device": device, "bf16": bf16, "tf32": tf32}
    return SplitNetwork(*parts(sizes), (3, sizes.pixels, sizes.pixels), CLASSES, **kinds)


def pictures(sizes: Sizes, m: int, batch: int, uploads: int) -> tuple[Dataset, ...]:
    """Images of three colours: so many batches for each of m clients."""
    return shared(images(m * batch * uploads, 3 * sizes.pixels**2), m)


def gpt2(sizes: Sizes, device: str, dtype: str = "float32", shallow: bool = False, bf16: bool = False) -> Any:
    """GPT-2 with random weights and LoRA, cut after a quarter of its blocks.

    Raises:
        UserError: transformers or peft is not installed.
    """
    from zofl_mpi.problems import lm_models as models
    from zofl_mpi.settings.split_lm import LM

    tiny = sizes.model == "bench"
    with mock.patch.dict(models.SIZES, {"bench": SMALL if tiny else SHALLOW}):
        flags = LM(model="random:bench" if tiny or shallow else f"random:{sizes.model}", bf16=bf16)
        whole = flags.uncut(*flags.begun(), STREAMS, sizes.words, sizes.words - 1, sizes.tokens)
        return flags.problem(whole, sizes.tokens, sizes.tokens // 2, dtype, device)


def texts(sizes: Sizes, count: int) -> Dataset:
    """Texts of T + 1 tokens, half of them context."""
    generator, length = STREAMS(Purpose.SYNTHETIC), sizes.tokens + 1
    rows = np.zeros((count, 2 + length), np.uint16)
    rows[:, 0], rows[:, 1] = length - sizes.tokens // 2, length
    rows[:, 2:] = generator.integers(0, sizes.words, (count, length))
    return Dataset(rows, np.zeros(count, np.int64), 1)
