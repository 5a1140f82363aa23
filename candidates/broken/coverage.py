"""Which mistakes stand for each attention bug that was seen in the wild.

``BUGS`` follows the numbers of the project's list of bugs from public issue threads, where each is
given with a thread. ``ELSEWHERE`` says of the others what will show them, or why nothing can.
"""

from __future__ import annotations

from typing import Final

BUGS: Final[dict[int, tuple[str, ...]]] = {
    1: ("ZeroTimesNan", "InfinityAdded"),  # NaN in a masked key or value, pytorch#101967
    2: ("EmptyRowIsNan",),  # a fully masked row, pytorch#103963
    3: ("EmptyTileIsNan",),  # the first 128 keys hidden, pytorch#109517
    4: ("EmptyTileIsNan",),  # a whole block hidden, pytorch#127055
    5: ("EmptyHeadIsNanWithWeights",),  # NaN only with the weights, pytorch#160064
    6: ("EmptyRowIsNan", "EmptyHeadIsNanWithWeights"),  # one path NaN, pytorch PR#190486
    7: ("EmptyRowIsMeanOfAll", "EmptyRowIsFirstValue"),  # uniform or garbage, mlx#2395
    8: ("MaskPerHeadRefused",),  # the fast path and masks of heads, pytorch#97408
    9: ("BiaslessRefused", "OddHeadsUnscaled"),  # the fast path, pytorch#97128
    10: ("BiasTakenForBoolean", "FloatMaskWhileRecording"),  # a mask cast, pytorch#107084
    11: ("LengthZeroRefused", "LengthZeroMeansAll"),  # a length of zero, pytorch#27968
    12: ("AnswerCutToLongest",),  # a shortened output, pytorch#97111
    13: ("CausalIgnored",),  # pytorch#96941
    14: ("CausalNeedsMask",),  # xformers#103
    15: ("CausalLostUnderMask", "MaskLostUnderCausal", "CausalLostUnderLengths"),  # pytorch#187801
    16: ("TopLeftForBottomRight", "BottomRightForTopLeft", "TilesLeftOfWrongDiagonal"),
    17: ("LongMaskCutOff", "LengthsInBytes"),  # a mask at long lengths, pytorch#162588
    18: ("PolarityInverted", "IntegersInverted"),  # x-transformers#160
    19: ("OneAddedToKept", "IntegersAdded"),  # tinygrad#2425
    20: ("LengthsRepeatedWhole", "MaskOfTheGroup"),  # repeat for repeat_interleave
    21: ("BatchOfMaskOnHeads", "ItemsTakenForHeads"),  # graph-transformer#2
    22: ("MaskResultDropped",),  # flamingo#10
    23: ("WindowOneShort",),  # transformers#39408, vllm#3385
    24: ("SoftcapAfterMask",),  # onnx#7865
    25: ("LowestAddedTwice",),  # transformers PR#17306
    26: ("FillOverflowsHalf",),  # apex#1105, fairseq#3575
    28: ("NoMaximumSubtracted", "ExponentialsOverflowHalf"),  # executorch#18407
    29: ("SoftmaxOverQueries", "SoftmaxOverHeads", "SoftmaxOverBatch"),  # labml#146
    30: ("ScaledByModelWidth",),  # vit-pytorch#65
    31: ("ScaledByNumHeads", "HeadSizeAndCountSwapped"),  # tt-metal#56789
    32: ("Unscaled", "ScaleArgumentIgnored"),  # mlc-llm#3426
    33: ("MultipliedBySqrtHeadSize",),  # perceiver-io#9
    34: ("ScaleZeroTakenForUnset",),  # pytorch#105190
    35: ("HeadsMergedByView", "HeadsSplitByView"),  # pytorch#67651, opacus#825
    36: ("GroupsTiled", "ValuesTiledKeysRepeated"),  # onnx PR#7274, onnxruntime#26813
    37: ("BatchTakenForTokens", "BatchSecondWhenSquare"),  # TDANet#3
    38: ("BatchesCutToFit",),  # pytorch#64888
    39: ("ValueSizeMustMatch", "ValuesFromKeys"),  # pytorch#27623, #120793
    40: ("OneProjectionForAllHeads",),  # MarcoMeter#22
    41: ("ContiguityAssumed", "ViewNeedsContiguity"),  # pytorch#181133, #163597
    42: ("QuerySizedAnswer",),  # pytorch#176767
    44: ("ZeroStrideTakenForUnset", "ExpandedInputsRefused"),  # pytorch PR#114173
    45: ("MaskReadAsContiguous", "BiasNeedsContiguity"),  # xformers#813
    46: ("ReadsPastTheEnd", "PaddedKeysCounted"),  # pytorch#174861
    50: ("SummedInRandomOrder", "ScaleDrifts"),  # flash-attention#359
    52: ("EmptyBatchRaises", "EmptyQueryRaises"),  # flash-attention#1159, pytorch#188765
    53: ("CausalFromFirstCached",),  # places without the cache, executorch#2010
    55: ("DropoutInEval", "NoiseInEval"),  # pytorch#124464, torchtune#1791
    57: ("WeightsAveraged",),  # fairseq#3365
    60: ("LastStrideAssumedOne",),  # a permuted key taken for a transpose, pytorch#195320
    61: ("NanAnsweredWithZeros",),  # pytorch#141128
    62: ("BiasInFloat32",),  # jax#37422
}
GRADIENTS: Final = "wrong in the backward pass only: for the clauses of gradients"
EXPORT: Final = "wrong in the exported graph only: for the clauses of export"
ELSEWHERE: Final[dict[int, str]] = {
    27: "dot products above a sixteenth of the largest number may overflow in correct kernels",
    43: GRADIENTS,
    47: GRADIENTS,
    48: GRADIENTS,
    49: GRADIENTS,
    51: "needs tensors of more than two thousand million elements: for the clauses of devices",
    54: "a declared position= only lifts the clauses on order: no clause computes its slopes",
    56: "the returned weights of a call with dropout: correct libraries return either ones",
    58: EXPORT,
    59: EXPORT,
}
