"""Sensors: transforms by which clients see the same images x (B, channels, height, width), pixels in [0, 1].

clean     x
invert    1 - x
gain      min(1, 3 x): too bright, and clipped
tint      x / 1, x / 2, x / 4 in the first, second and third channel
contrast  1/2 + (x - 1/2) / 4
blur      mean of the image's pixels at most 2 rows and 2 columns away
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor
from torch.nn.functional import avg_pool2d

SENSORS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "clean": lambda x: x,
    "invert": lambda x: 1 - x,
    "gain": lambda x: (3 * x).clamp(max=1),
    "tint": lambda x: x * x.new_tensor([1.0, 0.5, 0.25])[: x.shape[1], None, None],
    "contrast": lambda x: 0.5 + (x - 0.5) / 4,
    "blur": lambda x: avg_pool2d(x, 5, stride=1, padding=2, count_include_pad=False),
}
"""{name in --shift: transform of images}"""
