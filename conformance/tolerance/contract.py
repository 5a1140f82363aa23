"""The precision contract: which roundings a declaration allows, as numbers and in words."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from ..declare.declaration import Declaration
from . import model

# Where a computation rounds, in its order: projections of a layer, their 8-bit integers, logits,
# exponentials, weighted sums with their division, and the stored results of the core and the layer.
STAGES: Final = ("projection", "quantisation", "score", "exp", "accumulation", "rounding")


@dataclass(frozen=True, kw_only=True)
class Contract:
    """The roundings allowed to a conforming implementation; roundoffs are relative unless said.

    unit_roundoff, underflow
        Of the tensors' dtype: relative, and absolute for results too small to be represented.
    accumulator_roundoff, accumulator_underflow
        The same of the numbers in which products are added up and softmax is computed.
    operand_roundoff
        Rounding of matrix operands on their way into a product (TensorFloat-32), else 0.
    score_roundoff
        Rounding of a stored score matrix when that is coarser than the accumulator, else 0.
    weight_roundoff, weight_underflow
        Rounding of the softmax weights before they meet the values, else 0.
    pre_scaling_roundings
        How often query and key together are rounded when the scale is applied to them: 2, or 1
        where the scale is a power of four.
    exp_error
        Relative error of exp, in accumulator roundoffs.
    key_block
        The smallest block of keys of an online softmax.
    merge_roundings
        The error of the share by which partial results are merged, in accumulator roundoffs.
    activation_steps
        How many steps the 8-bit integers of a projection's tokens span; 0 where there are none.
    sides
        2 when the golden answer is itself as coarse as the accumulator (float64): two such
        computations are apart by at most twice the bound of one. Otherwise 1.
    exact
        The stages (of ``STAGES``) that are taken to be exact: what a single one contributes is the
        bound with all others exact.
    """

    unit_roundoff: float
    underflow: float
    accumulator_roundoff: float
    accumulator_underflow: float
    operand_roundoff: float = 0.0
    score_roundoff: float = 0.0
    weight_roundoff: float = 0.0
    weight_underflow: float = 0.0
    pre_scaling_roundings: int = model.PRE_SCALING_ROUNDINGS
    exp_error: float = model.EXP_ERROR
    key_block: int = model.SMALLEST_KEY_BLOCK
    merge_roundings: float = model.MERGE_ROUNDINGS
    activation_steps: int = 0
    sides: int = 1
    exact: frozenset[str] = frozenset()

    def at(self, stage: str) -> Contract:
        """Return the contract within one of ``STAGES``: without roundings for exact stages."""
        if stage not in self.exact:
            return self
        return replace(
            self,
            unit_roundoff=0.0,
            underflow=0.0,
            accumulator_roundoff=0.0,
            accumulator_underflow=0.0,
            operand_roundoff=0.0,
            score_roundoff=0.0,
            weight_roundoff=0.0,
            weight_underflow=0.0,
            activation_steps=0,
        )

    def only(self, stage: str) -> Contract:
        """Return the contract under which all stages but one are exact."""
        return replace(self, exact=frozenset(STAGES) - {stage})

    @property
    def scales_query_alone(self) -> bool:
        """Whether pre-scaling may round the query alone, not the keys.

        One rounding of the query moves all logits of the row by similar amounts, where the keys are
        nearly equal.
        """
        return self.pre_scaling_roundings == model.FOLDED_SCALE_ROUNDINGS

    @property
    def operand_error(self) -> float:
        """The relative error of a product of two rounded operands."""
        return 2.0 * self.operand_roundoff * (1.0 + self.operand_roundoff)


def contract_for(declaration: Declaration, dtype: str, scale: float) -> Contract:
    """The contract of a candidate for tensors of ``dtype`` ("float32", "float64" ...) and a scale.

    It follows from the declared ``accumulate``, ``tf32``, ``scores``, ``precision`` and ``devices``
    alone. Without a declared accumulator float16 and bfloat16 add in float32, as torch does, the
    others in themselves. Raises ValueError for a dtype without a model.
    """
    if dtype not in model.UNIT_ROUNDOFF:
        msg = f"dtype is {dtype!r}: known are {', '.join(model.UNIT_ROUNDOFF)}"
        raise ValueError(msg)
    accumulator = _accumulator(declaration, dtype)
    roundoff = model.UNIT_ROUNDOFF[accumulator]
    if _on_tensor_cores(declaration, dtype) and accumulator == "float32":
        roundoff = model.TENSOR_CORE_ROUNDOFF
    stored = model.UNIT_ROUNDOFF[dtype] if accumulator != dtype else 0.0
    return Contract(
        unit_roundoff=model.UNIT_ROUNDOFF[dtype],
        underflow=model.UNDERFLOW[dtype],
        accumulator_roundoff=roundoff,
        accumulator_underflow=model.UNDERFLOW[accumulator],
        operand_roundoff=model.TENSOR_FLOAT_32 if declaration.tf32 and dtype == "float32" else 0.0,
        score_roundoff=stored if declaration.scores == "eager" else 0.0,
        weight_roundoff=stored,
        weight_underflow=model.UNDERFLOW[dtype] if stored else 0.0,
        pre_scaling_roundings=_pre_scaling_roundings(scale),
        activation_steps=model.ACTIVATION_STEPS if declaration.precision == "int8-dynamic" else 0,
        sides=2 if accumulator == "float64" else 1,
    )


def scales_exactly(scale: float) -> bool:
    """Whether multiplying operands by the scale or by its square root is exact: a power of four."""
    mantissa, exponent = math.frexp(abs(scale))
    return scale == 0.0 or (mantissa == 0.5 and exponent % 2 == 1)  # noqa: PLR2004  (frexp's 2**k)


def gamma(count: int, roundoff: float) -> float:
    """Return the largest relative error of ``count`` roundings in a row: ``(1 - u)**-n - 1``.

    Higham (2002, lemma 3.1) bounds it by ``n u / (1 - n u)``; unlike this it is valid, though
    useless, for any count.
    """
    logarithm = -count * math.log1p(-roundoff)
    return math.expm1(min(logarithm, model.LARGEST_LOGARITHM))


def _pre_scaling_roundings(scale: float) -> int:
    """Count the roundings of a scale: an exact scale with log2(e) folded in rounds the query."""
    return model.FOLDED_SCALE_ROUNDINGS if scales_exactly(scale) else model.PRE_SCALING_ROUNDINGS


def _accumulator(declaration: Declaration, dtype: str) -> str:
    declared = declaration.accumulate
    if declared is None:
        return "float32" if dtype in ("float16", "bfloat16") else dtype
    return dtype if declared == "native" else declared


def _on_tensor_cores(declaration: Declaration, dtype: str) -> bool:
    halves = dtype in ("float16", "bfloat16")
    return (halves or declaration.tf32) and any(name != "cpu" for name in declaration.devices)


def describe(contract: Contract) -> list[str]:
    """Describe a contract, one sentence a freedom, in the order of the computation."""
    sentences = [
        f"tensors are rounded to a relative error of {_power(contract.unit_roundoff)}",
        f"products are added up with one of {_power(contract.accumulator_roundoff)} a step",
    ]
    if contract.activation_steps:
        sentences.append(
            f"tokens are rounded to {contract.activation_steps} steps of their range before each "
            "projection, its matrix to 7 bits or more"
        )
    if contract.operand_roundoff:
        sentences.append(f"operands of products are rounded to {_power(contract.operand_roundoff)}")
    sentences.append(_scaling(contract))
    sentences.append(_scores(contract))
    sentences.append(
        f"exp is accurate to {contract.exp_error:g} steps of the sum, in blocks of "
        f"{contract.key_block} keys or more"
    )
    sentences.append(_weights(contract))
    return sentences


def _scaling(contract: Contract) -> str:
    if contract.pre_scaling_roundings < model.PRE_SCALING_ROUNDINGS:
        return "the query may be scaled before its product with the key"
    return (
        "query and key may be scaled before their product, the scale being a number of the "
        "tensors' dtype (a power of four rounds the query only)"
    )


def _scores(contract: Contract) -> str:
    if contract.score_roundoff:
        return f"scores are stored with a relative error of {_power(contract.score_roundoff)}"
    return "scores stay as precise as the sums"


def _weights(contract: Contract) -> str:
    if contract.weight_roundoff:
        rounded = _power(contract.weight_roundoff)
        return f"weights are rounded to {rounded} before they meet the values"
    return "weights stay as precise as the sums"


def _power(roundoff: float) -> str:
    """Return a roundoff as a power of two, with the name of its format, if any."""
    formats = [name for name, unit in model.UNIT_ROUNDOFF.items() if unit == roundoff]
    power = f"2^{math.log2(roundoff):g}"
    return f"{power} ({formats[0]})" if formats else power
