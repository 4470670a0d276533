"""The model in torch and float32: the same weights as the exact one's, its mixing of tokens left to the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch

from .adapters import adapter_weights
from .arithmetic import Array
from .weights import DIM, STATE_DIM, STEP, Layer, Weights


def to_device(host: torch.Tensor, place: torch.device) -> torch.Tensor:
    """Copies without a wait: from memory that is not pinned, torch would wait for all that the stream has to do."""
    if place.type == "cpu" or not host.numel():
        return host.to(place)
    return host.pin_memory().to(place, non_blocking=True)


@dataclass(frozen=True, slots=True)
class Adapted:
    """The tokens [begin, end) of a batch are computed with an adapter."""

    begin: int
    end: int
    adapter: str


@dataclass(frozen=True, slots=True)
class Scanned:
    """What a state space takes of each token: x and delta [tokens, DIM], b and c [tokens, STATE_DIM]."""

    x: torch.Tensor
    delta: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor

    @classmethod
    def of(cls, mixed: torch.Tensor) -> Scanned:
        """From a recurrent layer's inputs [tokens, 3 * DIM]."""
        x, steps, b, c = (part.contiguous() for part in mixed.tensor_split((DIM, 2 * DIM, 2 * DIM + STATE_DIM), 1))
        return cls(x, (STEP / 2) * (steps + torch.sqrt(steps * steps + 1.0)), b, c)


class KernelModel:
    """Weights on a device. `mix(layer, mixed)` turns the inputs of attention or of the state space, [tokens, 3 * DIM],
    into outputs [tokens, DIM]."""

    def __init__(self, weights: Weights, device: torch.device) -> None:
        def moved(array: Array) -> torch.Tensor:
            return to_device(torch.from_numpy(array).float(), device)

        self.recurrent_layers = [index for index, layer in enumerate(weights.layers) if layer.recurrent]
        self._tokens, self._positions = moved(weights.tokens), moved(weights.positions)
        self._head, self._bias = moved(weights.head), moved(weights.bias)
        self._moved = [
            {field.name: moved(getattr(layer, field.name)) for field in fields(Layer) if field.name != "recurrent"}
            for layer in weights.layers
        ]

    def rates(self, layer: int) -> torch.Tensor:
        """Of a recurrent layer, [DIM, STATE_DIM]."""
        return self._moved[layer]["rates"]

    def skip(self, layer: int) -> torch.Tensor:
        """Of a recurrent layer, [DIM]."""
        return self._moved[layer]["skip"]

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        mix: Callable[[int, torch.Tensor], torch.Tensor],
        adapted: Sequence[Adapted] = (),
    ) -> torch.Tensor:
        """The last layer's output [tokens, DIM] for tokens and positions [tokens] int64."""
        x = self._tokens[tokens] + self._positions[positions]
        for index, layer in enumerate(self._moved):
            inputs = _normalize(x)
            mixed = inputs @ layer["mix_in"]
            for part in adapted:
                factors = adapter_weights(part.adapter, index, inputs.shape[1], mixed.shape[1])
                down, up = (to_device(torch.from_numpy(factor).float(), x.device) for factor in factors)
                mixed[part.begin : part.end] += inputs[part.begin : part.end] @ down * up
            x = x + mix(index, mixed) @ layer["mix_out"]
            x = x + torch.relu(_normalize(x) @ layer["up"]) @ layer["down"]
        return _normalize(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores of the next token, [tokens, vocabulary]."""
        return hidden @ self._head + self._bias


def _normalize(x: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt((x * x).mean(1, keepdim=True) + 1e-6)
