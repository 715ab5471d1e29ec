"""Per-sample directions in one pass: a common perturbation of each layer, times random signs of each sample.

Flipout (Wen, Vicol, Ba, Tran, Grosse, ICLR 2018, arXiv:1803.04386), for zeroth order GRZO (arXiv:2606.02857). With a
layer's perturbation U (u for biases) and signs r_j, s_j of sample j, one for each output and input of the layer,

    output_j = layer(x_j) + mu r_j (U (s_j x_j) + u)

is the layer's output at its parameters + mu sigma_j U, sigma_j = r_j s_j^T (r_j for biases). Scale and shift of a
normalisation share one sign per channel. All entries of directions have symmetric distributions: sigma_j U is
distributed as U, and those of two samples are uncorrelated.

For B samples with gradients g_j, mean g, in d dimensions, the estimate's mean squared error is

    (d - 1)/B^2 sum_j |g_j|^2 + 2 |g|^2,   compared with (d + 1) |g|^2 of one common direction:

B times smaller if the g_j are equal, larger if they cancel. On 64 digits (GroupNorm, client and head of width 8, 1,362
parameters) it is larger: 4.4, 1.3, 1.7 and 1.1 times the second after 0, 50, 200 and 599 first-order steps.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from zofl_mpi.errors import UserError
from zofl_mpi.problems.device_cache import to_device
from zofl_mpi.problems.flat import Flat

CHANNELWISE = (nn.GroupNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
BATCHED = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Signs(NamedTuple):
    """Random signs (1 or -1) of one layer."""

    r: Tensor  # (B, outputs)
    s: Tensor  # (B, inputs); (B, 0) for a normalisation


class _Layer(NamedTuple):
    """A layer with perturbed parameters."""

    name: str
    module: Any
    weight: tuple[slice, torch.Size] | None  # slice of a direction, and shape
    bias: tuple[slice, torch.Size] | None

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of signs for outputs and inputs."""
        if isinstance(self.module, nn.Linear):
            return self.module.out_features, self.module.in_features
        if isinstance(self.module, nn.Conv2d):
            return self.module.out_channels, self.module.in_channels
        shape = (self.weight or self.bias or (None, torch.Size()))[1]
        return shape.numel(), 0


@final
class SignedLayers:
    """Layers with per-sample perturbations, whose parameters lie in a part of theta.

    Attributes:
        d: length of a direction.
    """

    def __init__(self, flat: Flat, modules: Sequence[nn.Module], part: slice, running: bool) -> None:
        """Finds the layers in the perturbed `part` of theta.

        Args:
            modules: modules of `flat` that the loss depends on.
            running: True if BatchNorm uses its running statistics.

        Raises:
            UserError: a layer of an unsupported kind, or BatchNorm that couples the samples of a batch.
        """
        self.d = part.stop - part.start
        self._layers: list[_Layer] = []
        places, seen = flat.places(), set[int]()
        for name, module in itertools.chain.from_iterable(m.named_modules() for m in modules):
            if isinstance(module, BATCHED) and not (running and module.track_running_stats):
                raise UserError(
                    f"--directions per-sample: {_shown(name, module)} normalises by the statistics of the batch, so a "
                    "sample's loss depends on the others' directions; use GroupNorm, --batchnorm running, or global"
                )
            held = {key: p for key, p in module.named_parameters(recurse=False) if id(p) in places}
            own = {key: _within(places[id(p)], part) for key, p in held.items()}
            if not any(own.values()):
                continue
            if not _takes_signs(module) or any(id(p) in seen for p in held.values()):
                raise UserError(
                    f"--directions per-sample: {_shown(name, module)} does not support signs; layers must be "
                    "Linear, Conv2d (padded by zeros), GroupNorm, LayerNorm or BatchNorm with running statistics, "
                    "without shared parameters; use --directions global"
                )
            seen |= {id(p) for p in held.values()}
            self._layers.append(_Layer(name, module, own.get("weight"), own.get("bias")))

    def draw(self, generator: torch.Generator, count: int, like: Tensor) -> list[Signs]:
        """Draws signs of `count` samples on the generator's device; returns them in `like`'s dtype and device."""

        def signs(n: int) -> Tensor:
            bits = torch.randint(0, 2, (count, n), generator=generator, device=generator.device)
            return to_device(bits, like.device).to(like.dtype).mul_(2).sub_(1)

        return [Signs(*map(signs, layer.sizes)) for layer in self._layers]

    @contextmanager
    def perturbed(self, u: Tensor, signs: Sequence[Signs], mu: float) -> Iterator[list[int]]:
        """Context manager: sample j passes the layers at theta + mu sigma_j u, u (d,); yields calls per layer."""
        calls = [0] * len(self._layers)
        with ExitStack() as stack:
            for k, (layer, own) in enumerate(zip(self._layers, signs, strict=True)):
                handle = layer.module.register_forward_hook(_hook(layer, u, own, mu, calls, k))
                stack.callback(handle.remove)
            yield calls

    def weighted(self, u: Tensor, signs: Sequence[Signs], weights: Tensor) -> Tensor:
        """Weighted sum (d,) of directions: sum_j weights_j sigma_j u, for weights (B,) and u (d,)."""
        total = torch.zeros_like(u)
        for layer, own in zip(self._layers, signs, strict=True):
            r = own.r * weights.to(u.dtype)[:, None]
            if layer.bias is not None:
                where, _ = layer.bias
                total[where] = u[where] * r.sum(dim=0)
            if layer.weight is not None:
                where, shape = layer.weight
                sums = r.sum(dim=0).view(shape) if own.s.shape[1] == 0 else _blocks(r.T @ own.s, layer.module, shape)
                total[where] = (u[where].view(shape) * sums).reshape(-1)
        return total

    def check(self, calls: Sequence[int]) -> None:
        """Raises UserError for a layer that a pass did not call: its parameters are then used directly."""
        if 0 in calls:
            layer = self._layers[calls.index(0)]
            raise UserError(
                f"--directions per-sample: {_shown(layer.name, layer.module)} is not called in a forward pass, so its "
                "perturbation would have no effect; use --directions global"
            )


def _shown(name: str, module: nn.Module) -> str:
    return f"{type(module).__name__} ({name or 'the whole part'})"


def _takes_signs(module: nn.Module) -> bool:
    if type(module) is nn.Conv2d:
        return module.padding_mode == "zeros"
    return type(module) in (nn.Linear, nn.LayerNorm, *CHANNELWISE)


def _within(place: tuple[slice, torch.Size], part: slice) -> tuple[slice, torch.Size] | None:
    """A parameter's slice of a direction, and shape; None if it is not in `part`."""
    span, shape = place
    if not part.start <= span.start < part.stop or span.stop > part.stop:
        return None
    return slice(span.start - part.start, span.stop - part.start), shape


def _blocks(sums: Tensor, module: nn.Module, shape: torch.Size) -> Tensor:
    """Entries of sums (outputs, inputs) for a weight of this shape; with groups, the diagonal blocks."""
    if not isinstance(module, nn.Conv2d):
        return sums
    groups = module.groups
    blocks = sums.view(groups, shape[0] // groups, groups, shape[1])
    diagonal = torch.stack([blocks[k, :, k] for k in range(groups)])
    return diagonal.reshape(shape[0], shape[1], 1, 1)


def _hook(
    layer: _Layer, u: Tensor, signs: Signs, mu: float, calls: list[int], k: int
) -> Callable[[nn.Module, Any, Tensor], Tensor]:
    weight, bias = (None if place is None else u[place[0]].view(place[1]) for place in (layer.weight, layer.bias))

    def hook(module: nn.Module, given: Any, output: Tensor) -> Tensor:
        calls[k] += 1
        x: Tensor = given[0]
        if len(x) != len(signs.r):
            raise UserError(
                f"--directions per-sample: {_shown(layer.name, module)} takes {len(x)} rows of a batch of "
                f"{len(signs.r)} samples; each sample must stay a row; use --directions global"
            )
        return output + mu * _effect(module, x, output, weight, bias, signs).to(output.dtype)

    return hook


def _effect(
    module: nn.Module, x: Tensor, output: Tensor, weight: Tensor | None, bias: Tensor | None, signs: Signs
) -> Tensor:
    """Effect of the perturbation on the output, divided by mu."""
    if isinstance(module, nn.LayerNorm):
        shape = [len(x), *[1] * (x.dim() - 1 - len(module.normalized_shape)), *module.normalized_shape]
        normed = functional.layer_norm(x, module.normalized_shape, eps=module.eps)
        return signs.r.view(shape) * _affine(normed, weight, bias)
    last = isinstance(module, nn.Linear)

    def spread(own: Tensor) -> Tensor:
        """Reshapes signs (B, channels) for broadcasting with the layer's inputs."""
        between = [1] * (x.dim() - 2)
        return own.view([len(own), *between, -1] if last else [len(own), -1, *between])

    if isinstance(module, nn.GroupNorm):
        normed = functional.group_norm(x, module.num_groups, eps=module.eps)
    elif isinstance(module, CHANNELWISE):
        statistics: Any = module
        normed = functional.batch_norm(x, statistics.running_mean, statistics.running_var, eps=module.eps)
    elif weight is None:
        return (spread(signs.r) * spread(cast(Tensor, bias)[None])).expand_as(output)
    elif isinstance(module, nn.Conv2d):
        signed = x * spread(signs.s).to(x.dtype)
        moved = functional.conv2d(signed, weight, bias, module.stride, module.padding, module.dilation, module.groups)
        return spread(signs.r) * moved
    else:
        return spread(signs.r) * functional.linear(x * spread(signs.s).to(x.dtype), weight, bias)
    own = [None if value is None else spread(value[None]) for value in (weight, bias)]
    return spread(signs.r) * _affine(normed, *own)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    scaled = x * weight if weight is not None else torch.zeros_like(x)
    return scaled if bias is None else scaled + bias
