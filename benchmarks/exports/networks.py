"""Networks written here, in the manner of published ones: what neither transformers nor diffusers has."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional


class HardSwish(nn.Module):
    """x * clip(x + 3, 0, 6) / 6 in the nodes that converters of other frameworks write."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The activation."""
        return x * torch.clamp(x + 3, 0, 6) / 6


class HardSigmoid(nn.Module):
    """clip(slope * x + 0.5, 0, 1) in its nodes."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope = slope

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The activation."""
        return torch.clamp(x * self.slope + 0.5, 0, 1)


def unit(inputs: int, outputs: int, kernel: int, stride: int | tuple[int, int] = 1, groups: int = 1) -> nn.Sequential:
    """A convolution, its normalization and HardSwish."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), HardSwish())


class SqueezeExcite(nn.Module):
    """Weights of channels from their means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)
        self.gate = HardSigmoid(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The weighted channels."""
        mean = functional.adaptive_avg_pool2d(x, 1)
        return x * self.gate(self.expand(functional.relu(self.reduce(mean))))


def separable(inputs: int, outputs: int, kernel: int, stride: int | tuple[int, int], *, excite: bool) -> nn.Sequential:
    """A depthwise unit, then one with kernel 1; PP-LCNet's block."""
    parts = [unit(inputs, inputs, kernel, stride, groups=inputs)]
    return nn.Sequential(*parts, *([SqueezeExcite(inputs)] if excite else []), unit(inputs, outputs, 1))


class Backbone(nn.Module):
    """PP-LCNet at a quarter of its depth: feature maps of several strides.

    Args:
        strides: Of each stage, down and across.
    """

    WIDTHS = (32, 64, 96, 128)

    def __init__(self, strides: Sequence[int | tuple[int, int]] = (2, 2, 2, 2)) -> None:
        super().__init__()
        self.stem = unit(3, 16, 3, 2)
        self.stages = nn.ModuleList()
        inputs = 16
        for place, (width, stride) in enumerate(zip(self.WIDTHS, strides, strict=True)):
            kernel = 5 if place > 1 else 3
            first = separable(inputs, width, kernel, stride, excite=False)
            self.stages.append(nn.Sequential(first, separable(width, width, kernel, 1, excite=place > 1)))
            inputs = width

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The maps, finest first."""
        maps = [self.stem(x)]
        for stage in self.stages:
            maps.append(stage(maps[-1]))
        return maps[1:]


class Detector(nn.Module):
    """A detector in the manner of PicoDet: HardSwish, features up and down, heads with a distribution for each side."""

    WIDTH, BINS, CLASSES = 64, 8, 20

    def __init__(self) -> None:
        super().__init__()
        width = self.WIDTH
        self.backbone = Backbone()
        self.lateral = nn.ModuleList(unit(inputs, width, 1) for inputs in Backbone.WIDTHS[1:])
        self.up = nn.ModuleList(separable(2 * width, width, 5, 1, excite=False) for _ in range(2))
        self.down = nn.ModuleList(separable(width, width, 5, 2, excite=False) for _ in range(2))
        self.joined = nn.ModuleList(separable(2 * width, width, 5, 1, excite=False) for _ in range(2))
        self.towers = nn.ModuleList(separable(width, width, 5, 1, excite=False) for _ in range(3))
        self.heads = nn.ModuleList(nn.Conv2d(width, self.CLASSES + 4 * self.BINS, 1) for _ in range(3))

    def forward(self, pixel_values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores and distances to the sides of boxes, for each place of each map."""
        low, middle, high = (one(x) for one, x in zip(self.lateral, self.backbone(pixel_values)[1:], strict=True))
        middle = self.up[0](torch.cat([functional.interpolate(high, scale_factor=2.0), middle], 1))
        low = self.up[1](torch.cat([functional.interpolate(middle, scale_factor=2.0), low], 1))
        middle = self.joined[0](torch.cat([self.down[0](low), middle], 1))
        high = self.joined[1](torch.cat([self.down[1](middle), high], 1))
        scores, sides = [], []
        for tower, head, x in zip(self.towers, self.heads, (low, middle, high), strict=True):
            found = head(tower(x)).flatten(2).transpose(1, 2)
            kind, box = found.split([self.CLASSES, 4 * self.BINS], 2)
            chance = box.reshape(box.shape[0], -1, 4, self.BINS).softmax(3)
            scores.append(kind.sigmoid())
            sides.append(chance @ torch.arange(self.BINS, dtype=chance.dtype))
        return torch.cat(scores, 1), torch.cat(sides, 1)


class TextDetector(nn.Module):
    """Text detection in the manner of DBNet on a mobile network: sums of enlarged features, two deconvolutions."""

    WIDTH = 96

    def __init__(self) -> None:
        super().__init__()
        self.backbone = Backbone()
        self.lateral = nn.ModuleList(nn.Conv2d(inputs, self.WIDTH, 1, bias=False) for inputs in Backbone.WIDTHS)
        self.smooth = nn.ModuleList(
            nn.Conv2d(self.WIDTH, self.WIDTH // 4, 3, padding=1, bias=False) for _ in Backbone.WIDTHS
        )
        width = self.WIDTH // 4
        self.head = nn.Sequential(
            nn.Conv2d(self.WIDTH, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.ConvTranspose2d(width, width, 2, 2), nn.BatchNorm2d(width), nn.ReLU(),
            nn.ConvTranspose2d(width, 1, 2, 2), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """The chance that a pixel is of a text."""
        maps = [one(x) for one, x in zip(self.lateral, self.backbone(pixel_values), strict=True)]
        for place in (2, 1, 0):
            maps[place] = maps[place] + functional.interpolate(maps[place + 1], scale_factor=2.0)
        smooth = [one(x) for one, x in zip(self.smooth, maps, strict=True)]
        enlarged = [
            functional.interpolate(x, scale_factor=2.0**place) if place else x for place, x in enumerate(smooth)
        ]
        return self.head(torch.cat(enlarged[::-1], 1))


class TextRecognizer(nn.Module):
    """Text recognition in the manner of CRNN on a mobile network: heights shrink, widths are read by LSTMs."""

    LETTERS, HIDDEN = 96, 48

    def __init__(self) -> None:
        super().__init__()
        self.backbone = Backbone(((2, 1), (2, 1), (2, 1), (2, 1)))
        self.read = nn.LSTM(Backbone.WIDTHS[-1], self.HIDDEN, 2, bidirectional=True, batch_first=True)
        self.letters = nn.Linear(2 * self.HIDDEN, self.LETTERS)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """The chance of each letter at each place."""
        x = functional.max_pool2d(self.backbone(pixel_values)[-1], (1, 2))
        read, _ = self.read(x.squeeze(2).transpose(1, 2))
        return self.letters(read).softmax(2)


class PitchDetector(nn.Module):
    """Pitch from a signal in the manner of CREPE: six wide convolutions over time, BatchNormalization behind Relu."""

    WIDTHS = (128, 16, 16, 16, 32, 64)

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        inputs = 1
        for place, width in enumerate(self.WIDTHS):
            kernel, stride, pads = (64, 1, (31, 32)) if place else (512, 4, (254, 254))
            layer = [nn.ConstantPad1d(pads, 0.0), nn.Conv1d(inputs, width, kernel, stride), nn.ReLU()]
            self.layers.append(nn.Sequential(*layer, nn.BatchNorm1d(width), nn.MaxPool1d(2)))
            inputs = width
        self.pitches = nn.Linear(256, 360)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """The chance of each pitch, for each frame of 1024 samples."""
        x = frames.unsqueeze(1)
        for layer in self.layers:
            x = layer(x)
        return self.pitches(x.transpose(1, 2).flatten(1)).sigmoid()
