"""How a model rotates its queries and keys: the base and the scaling of its frequencies."""

from __future__ import annotations

from dataclasses import dataclass

from alula.errors import ModelError


@dataclass(frozen=True)
class LinearScaling:
    """Every frequency divided by `factor`."""

    factor: float


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1: long wavelengths divided by `factor`, short ones kept, a ramp between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max: int


@dataclass(frozen=True)
class YarnScaling:
    """YaRN, arXiv 2309.00071. `attention_factor` multiplies cosine and sine."""

    factor: float
    original_max: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True)
class FrequencyDivisors:
    """One divisor per frequency, as a GGUF file keeps Llama 3's scaling (`rope_freqs.weight`)."""

    values: tuple[float, ...]


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | FrequencyDivisors


@dataclass(frozen=True)
class RopeShape:
    """Rotary embedding over the whole head: base (theta) and scaling, None being plain."""

    base: float
    scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        """Refuse with a ModelError a base whose frequencies do not fall."""
        if self.base <= 1.0:
            raise ModelError(
                f"the model's rotary base {self.base:g} cannot be used",
                "its frequencies are powers of 1 / base, and must fall",
                "use the model as its maker published it",
            )
