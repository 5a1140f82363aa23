"""Every number of the error model, with its meaning: the tolerance has no other constants.

The first part describes number formats, the second counts the roundings a conforming implementation
may make, the third keeps the evaluation of the bound itself finite and fast.
"""

from __future__ import annotations

from typing import Final

# Number formats ---------------------------------------------------------------------------------

# Half the distance from 1 to the next number (IEEE 754; bfloat16 keeps 8 significant bits).
UNIT_ROUNDOFF: Final = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "bfloat16": 2.0**-8,
    "float16": 2.0**-11,
}
# The largest absolute error of a result that underflows: the smallest normal number, since hardware
# may flush subnormals to zero; float16 keeps them, so half its smallest subnormal.
UNDERFLOW: Final = {
    "float64": 2.0**-1022,
    "float32": 2.0**-126,
    "bfloat16": 2.0**-126,
    "float16": 2.0**-25,
}
# TensorFloat-32 keeps 10 explicit significant bits of a matrix operand (NVIDIA A100 whitepaper);
# hardware that is handed float32 cuts the others off rather than rounding.
TENSOR_FLOAT_32: Final = 2.0**-10
# Tensor cores add in float32 but truncate: twice the unit roundoff (Fasi, Higham, Mikaitis and
# Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021).
TENSOR_CORE_ROUNDOFF: Final = 2.0**-23

# ONNX, DynamicQuantizeLinear-11: activations become uint8, 255 steps from the smallest (or zero) to
# the largest (or zero).
ACTIVATION_STEPS: Final = 255
# A quotient of at most 255 in float32 errs by a few units of 255 * 2^-24 = 1.5e-5, by the division
# and by the rounding of the step: nearer than this to the middle of two integers either may come.
QUANTISATION_TIE: Final = 2.0**-13
# So a value is off by half a step and that much.
QUANTISATION_ERROR: Final = 0.5 + 2.0**-13
# onnxruntime.quantization makes weights of 8 bits, or of 7 with reduce_range, over a range of at
# most twice the largest entry: half a step is the largest over this (quant_utils.py, 1.31).
FEWEST_WEIGHT_STEPS: Final = 127.0
# The largest entry that such a quantiser leaves is one of these multiples of its step: 64 with
# reduce_range, 127 symmetric, 63 to 255 where the zero point moves.
FEWEST_LEVELS: Final = 63
MOST_LEVELS: Final = 255
# An entry that integers stand for is a multiple of the step up to its own rounding in float32 and
# that of the largest: 2 * 255 * 2^-24 = 3.0e-5. So near by chance are 16 random entries never.
OFF_GRID: Final = 2.0**-14
FEWEST_ON_GRID: Final = 16
# How many entries are looked at before all are.
GRID_SAMPLE: Final = 64

# Roundings of an implementation -----------------------------------------------------------------

# A dot product of n terms rounds n times: one product a term and n - 1 additions
# (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, section 3.1).
# A score adds: the scale as a number, the product with it, and a conversion on either side.
SCORE_ROUNDINGS: Final = 4
# Multiplying query and key by the root of the scale before their product rounds both.
PRE_SCALING_ROUNDINGS: Final = 2
# Exponentials to the base 2 fold log2(e) into the scale, which then is no power of two; kernels
# multiply the query by it (Triton's tutorial on fused attention, 2023). The root is not used so.
FOLDED_SCALE_ROUNDINGS: Final = 1
# tanh with its division and product (two units in the last place for the function itself), and,
# where scores are stored in the working dtype, one store after each of the three steps.
SOFTCAP_ROUNDINGS: Final = 8
SOFTCAP_STORES: Final = 3
# The sum of logit and bias, and the conversion of the bias.
BIAS_ROUNDINGS: Final = 2
# A stored score matrix is rounded after the product and after the scale.
SCORE_STORES: Final = 2
# From logit to the argument of exp: products with log2(e) of the logit and of the row maximum, the
# difference, a conversion. Each is relative to the logit or the maximum, not to their difference.
EXPONENT_ROUNDINGS: Final = 4
# Relative error of exp in unit roundoffs: two units in the last place (held for torch's kernels).
EXP_ERROR: Final = 4.0
# An online softmax rescales once a block by one more exp, with the product on sum and accumulator.
RESCALE_ROUNDINGS: Final = 2
SMALLEST_KEY_BLOCK: Final = 16
# The weighted sum over n keys in n/16 blocks: the accumulator of each block, its conversion, the
# merge of split parts.
SUM_ROUNDINGS: Final = 4
# Dividing by the sum of the weights: reciprocal, product, conversion.
DIVISION_ROUNDINGS: Final = 3
# Eager code may divide last, and may answer to two groups of keys apart (cached and new ones): each
# weighted sum of exponentials is stored then, and so is their sum.
PARTIAL_STORES: Final = 2
# exp(logit - log-sum-exp) uses the rounded log-sum-exp of a part and of the whole.
LOG_SUM_EXP_ROUNDINGS: Final = 2
# A returned log-sum-exp is multiplied for another base of logarithms, and stored.
LOG_SUM_EXP_STORES: Final = 2
# Partial results that are merged by ``a + s (b - a)`` or ``(1 - s) a + s b``, s being a sigmoid of
# the distance of their log-sum-exps (ring attention), know the other share as 1 - s: to within the
# rounding of s, however small it is. The sigmoid takes an exp, a sum and a division.
MERGE_ROUNDINGS: Final = EXP_ERROR + 2.0
# A head that is normalised is divided by the root of its mean square: D squares are added up, then
# divided by D, and epsilon is added. The root halves a relative error.
NORM_ROUNDINGS: Final = 3
# The root and the division, or the reciprocal root (two units in the last place) and the product.
NORM_FACTOR_ROUNDINGS: Final = 5
# Line by line in the working dtype: squares, mean and sum with epsilon are stored (half an error of
# the norm each), the root and the quotient.
NORM_STORES: Final = 4
# The gradient of a normalisation, line by line: the product with the heads, their dot product, two
# or three products with the reciprocal norm (its cube at most), the factor of the mean square, and
# the sum of two or three parts, for each use of the heads.
NORM_BACKWARD_ROUNDINGS: Final = 8
NORM_BACKWARD_FACTORS: Final = 3
# The mean that is taken off, and the difference.
MEAN_STORES: Final = 1
# A rotation in the working dtype stores two products and their sum; what was rotated in float32 is
# stored once. Cosine and sine are stored in the working dtype, too.
ROTATION_STORES: Final = 3
TABLE_STORES: Final = 1
# Frequencies for longer contexts: a quotient, a ramp between two of them and their sum.
SCALING_ROUNDINGS: Final = 8
# An angle and a length of a given cosine and sine, the cosine and sine of it, and their products.
GIVEN_TABLE_ROUNDINGS: Final = 8
# Angles are counted in float32 at least: in bfloat16 positions past 256 could not be told apart.
COARSEST_ANGLE: Final = 2.0**-24
# Biases by distance: the slope as a stored number, and its product with a distance.
DISTANCE_STORES: Final = 2
# What a user's function does to a score is not known: a handful of sums, products and functions.
MODIFICATION_ROUNDINGS: Final = 16
MODIFICATION_STORES: Final = 4
# Where such a function is looked at, in units of the error of its score: it may bend in between,
# though not by much, since the error is small.
MODIFICATION_STEPS: Final = (-1.0, -0.5, 0.5, 1.0)
# Its slope is made of products, so that what cancels there (1 - tanh^2) has twice the relative
# error of what the function itself is made of. It is as large as the slope at these shares of the
# way from zero to the score.
SLOPE_SQUARES: Final = 2.0
SLOPE_WAY: Final = (0.0, 0.25, 0.5, 0.75)
# The logits of a row with a sink may be stored once more, after their maximum is taken off (eager
# code of gpt-oss concatenates, subtracts and then takes the softmax).
SINK_STORES: Final = 1
# A sink behind the attention is a gate y = sigmoid(lse - sink) on its answer (gpt-oss on top of
# flex_attention): its slope y (1 - y) has the absolute error of 1 - y, and the row term of the
# attention without a sink is taken off and partly given back.
SINK_GATE_ROUNDINGS: Final = 4
# On the way to a frequency 10000^(-2j/d) of a position encoding: the exponent, the logarithm of the
# base and their product are each rounded once and pass through an exponential, which turns a
# relative error of its argument (at most log 10000) into that many relative errors of its result.
FREQUENCY_ROUNDINGS: Final = 3
# The exponential itself (two units in the last place), a division, the product with the position.
ANGLE_ROUNDINGS: Final = 6
# Sine and cosine: two units in the last place of a number below one.
SINE_ROUNDINGS: Final = 4

# Evaluation of the bound ------------------------------------------------------------------------

# exp(80) = 5.5e34 times any deviation exceeds the hull of the values; beyond it float64 overflows.
LARGEST_EXPONENT: Final = 80.0
# Past exp(300) a weight that float64 has lost (below exp(-745)) could matter; then logits are used.
LARGEST_GROWTH: Final = 300.0
SMALLEST_DENOMINATOR: Final = 1e-30
# Weights below this may have been rounded to zero by float64.
LOST_WEIGHT: Final = 1e-300
# Below this relative change of the weights the hull of the values cannot be the smaller bound: it
# is at least the standard deviation under the weights, which the change multiplies.
HULL_MATTERS: Final = 1e-3
# Elements of the table (row, key, channel) held at once, and in all: beyond the latter the hull is
# taken over the live keys of the head, which contains that of each row.
HULL_CHUNK: Final = 2**18
HULL_LIMIT: Final = 2**24
# Past exp(700) a power of (1 - u) is capped: float64 ends at exp(709).
LARGEST_LOGARITHM: Final = 700.0

# Statistical model -------------------------------------------------------------------------------
# Errors of independent roundings add in quadrature. A multiplier below is the variance of a step in
# squared roundoffs; a rounding counts with its largest size, not with its standard deviation (a
# third of the square), wherever errors may share a sign.

# The one choice of the model: how rarely a check may reject a correct candidate whose rounding
# errors are independent. Subgaussian tails turn it into a number of deviations.
FALSE_ALARM_PROBABILITY: Final = 1e-9
# Adding up n products in any order makes a random walk of partial sums. For terms of random sign
# the squared partial sums add up to n/2 of the sum of squares N; if they drift to the result y
# they add y^2 n/3 (the integral of t^2). The products themselves are rounded once each.
WALK: Final = 1.0 / 2.0
DRIFT: Final = 1.0 / 3.0
PRODUCTS: Final = 1.0
# The numerator drifts to the result and so does the denominator: twice a drift.
NORMALISED_DRIFT: Final = 2.0 * DRIFT
# Roundings relative to the result besides: SUM_ROUNDINGS of numerator and of denominator, which
# include the division. Each term of the numerator is a product and a conversion.
RATIO_ROUNDINGS: Final = 8
NUMERATOR_ROUNDINGS: Final = 2
# A weight below this many roundoffs of the sum may be absorbed by it, always with the same sign:
# it counts in full and linearly. Lost is what is below one roundoff of a sum that is growing still.
ABSORBED: Final = 4.0
# A row whose largest weight exceeds this may answer a small value that the rounding of a merge
# with larger ones shows in; elsewhere that is small compared with the roundings of the sum.
DOMINANT_WEIGHT: Final = 0.5
# Query rows that a long problem is judged on. Of 256 rows, 64 cost twice the golden; of more, less.
SAMPLED_ROWS: Final = 64
# Kernels work in blocks of at least this many rows, and of its doubles: the rows on either side of
# an edge are sampled.
SMALLEST_ROW_BLOCK: Final = 16
# Elements of the table (key, row, channel) that the coherent error of the query holds at once.
COHERENT_CHUNK: Final = 2**18
# Up to this many elements a head that table stays in float64: float32 would not be faster.
SMALL_TABLE: Final = 2**14
# Weights below this add nothing to the coherent error next to roundings of a weight of 1/n.
NEGLIGIBLE_WEIGHT: Final = 1e-30
# A root mean square or a fitted scale error says something about many errors that behave alike:
# not about fewer rows or channels than these, nor where one element in a hundred is saturated
# (its error is bounded by the values rather than by its roundings).
FEWEST_ROWS: Final = 16
NARROWEST: Final = 16
MOST_SATURATED: Final = 0.01
# Weights that a candidate brings are varied if no number makes up more than an eighth of a matrix
# (a format of eight bits repeats numbers, a constant or sparse matrix more), and if the mean
# squared cosine between its rows is at most four times that of random ones, 1 / width.
MOST_ALIKE: Final = 0.125
MOST_ALIGNED: Final = 4.0
# A raw statistical error above this part of the hull is saturated.
SATURATION: Final = 0.5
# Results that the scale moves by fewer typical errors than this do not count in its fit. A typical
# error is at least half the spacing of the results, so that counted ones span some roundings.
RESOLVED: Final = 4.0
# The products behind a score and behind a result: query with key, weights with values; in a layer
# also the projections of query and key, those of the values and of the output.
PRODUCTS_OF_CORE: Final = (1, 1)
PRODUCTS_OF_LAYER: Final = (3, 3)
# The fitted scale error of a correct candidate is noise of one deviation; twice the deviations of
# the bound leave room for errors that are not independent.
FIT_DEVIATIONS: Final = 2.0
# A wrong scale is blamed for errors that are too large when it explains half of their squares.
EXPLAINED_BY_SCALE: Final = 0.5

# Fitting a scale to an answer --------------------------------------------------------------------

# Random errors of eight elements are explained to 99 % by one number in fewer than one of 10^6
# cases (the explained part of n is Beta(1/2, (n - 1)/2) distributed).
FEWEST_FITTED: Final = 8
LARGEST_UNEXPLAINED: Final = 0.01
# The cube root of float64's unit roundoff: where a central difference is most accurate.
DIFFERENCE_STEP: Final = 2.0**-18
# Newton's method doubles the correct digits; a step changes the scale by half at most. What is
# still on its way after so many steps, and explains the error already, takes some more.
NEWTON_STEPS: Final = 6
MOST_NEWTON_STEPS: Final = 12
LARGEST_STEP: Final = 0.5
# A step that changes none of the three digits that are said of an error of a millionth or more,
# where the answer is explained already.
SETTLED_STEP: Final = 2.0**-36

# Judging without a bound of an answer ------------------------------------------------------------

# Dropout is a count. The chance that one example flags a correct implementation: as for a check of
# numbers, and a thousand times less because there are some hundred examples in every run.
DROPOUT_FALSE_ALARM: Final = 1e-12
# So many calls drop the same of a single weight with less than that chance, for p of at least 0.1:
# 0.9^263 = 9e-13.
DROPOUT_CALLS: Final = 263
# A weight that is kept is divided by 1 - p >= 1/2, which doubles the answer and its error; the
# common value that it is divided by errs as much again.
DROPOUT_SLACK: Final = 4.0
# Counts of kept keys are told apart while they are known to a quarter: half the distance from a
# whole number to the point between two of them.
COUNTABLE: Final = 0.25
# Heads are solved for through the output projection unless that loses more than three digits: such
# columns are no basis to count in.
SMALLEST_SINGULAR_VALUE: Final = 1e-3
# In self-attention a token is enlarged by the root of (target / its own logit). Smaller logits
# count as this one: the factor then stays below 10^6 for every target, and the token finite.
SMALLEST_OWN_LOGIT: Final = 1e-3
# No rounding of generic inputs, to eight bits at the coarsest, changes answers by so much of the
# largest: scores up to 8 in steps of 8/127 change weights by 6 %, values as much.
COARSEST_ROUNDING: Final = 0.25
# A mistake is named if its answers come a hundred times closer than the declared ones wherever
# those are wrong: a point with a wide bound (fills at huge logits) would else explain anything.
MUCH_CLOSER: Final = 0.01
# Or if they come as close as rounding lets anybody: a few times the bound of the declared point.
AS_CLOSE: Final = 4.0
# Where hidden keys are looked for: so much of an answer is theirs that their weight can be read,
# and so little that the kept keys still count. No verdict depends on it.
LEAST_PART: Final = 0.01
MOST_PART: Final = 0.25
# A backward pass is named if it leaves a hundredth of the squared errors of each wrong gradient: in
# half precision bounds are so wide that gradients of several mistakes lie within them.
EXPLAINED_GRADIENTS: Final = 0.01
# What a diagnosis reads from answers only proposes statements: each is acted out and judged by its
# own bound before it is said. These numbers decide what is proposed, beyond the bounds of weights.
# A weight so small a part of its row's largest has lost the digits that its logarithm would need.
SMALLEST_READ: Final = 1e-3
# Numbers read twice, from weights of SMALLEST_READ and more, agree to this part of them in float32
# (2^-24 / 1e-3 = 6e-5, and as much again for each of a dozen operations in between).
SAME_READ: Final = 1e-3
# How far from one a number is said to more digits, and below which these would be the rounding of
# some ten operations of float32 (10 * 2^-24 = 6e-7).
SAID_NEAR_ONE: Final = 0.1
SAID_AS_ONE: Final = 1e-6
# The relative error of a scale up to which it may be right but for roundings: bfloat16 rounds by
# 2^-9, and a scale is a root, a quotient and a product.
MOST_ROUNDED_SCALE: Final = 1e-2
# A scale that is fitted to an answer of many keys is known to a hundredth: the answer is a mean, in
# which it shows a hundred times less than in single weights.
SAME_FITTED: Final = 1e-2
# The same of logits: ln(1 + 6e-5), with room for the operations that make them.
LOGIT_READ_TO: Final = 2e-4
# Logits of keys that should be hidden have small weights: they are read to a twentieth.
FILL_READ_TO: Final = 0.05
# A mistake that changes a step of the computation has no bound of its own: it gets the widest of
# the point that it starts from, so often, and the square of what it enlarges the answers by, up to
# where float32 has no digits left.
ACTED_ROOM: Final = 8.0
MOST_GROWN: Final = 1e3
# Weights are solved from equations: one that is such a part of the largest says nothing, as float32
# leaves no digit of it.
NO_EQUATION: Final = 1e-6
# A constant ratio or difference is a fact if it leaves a millionth of the squared errors.
NEARLY_NOTHING: Final = 1e-6
# Columns of which so small a part differs in float64 say the same.
COLLINEAR: Final = 1e-9
# A factor read off many logits in float64 may be off by this part, whatever its standard error.
SAME_FACTOR: Final = 1e-6
# A value on the way to an answer is that of the golden if it is off by so many units of the largest
# one, for each unit of the largest logit: dozens of products are summed, and exponentials follow.
STEP_ROOM: Final = 32.0
# Where that is this part of the largest value or more, rounding hides which value it is.
STEP_UNKNOWN: Final = 1e-2
# A condition is blamed if as many answers would be right with this chance were it of no account.
COINCIDENCE: Final = 0.01
# Without known weights no bound exists. A convention: rounding in a candidate is like nudging its
# inputs a few times over, and four random nudges miss the worst one by some factor.
SPREAD_FACTOR: Final = 32.0
# Where activations become integers of 8 bits, a value that rounding moves over the middle between
# two of them moves by a whole step, 1/256 of the range. So that such values are among those that a
# nudge moves, it is the part of a step that the factor makes a step of.
NUDGE_OF_INTEGERS: Final = 2.0**-8 / SPREAD_FACTOR
# Which of two tokens a mask hides is read off a whole model where one of them moves its last answer
# by less than this part of what the other does: what leaks through a fill of -10000 rounds to
# nothing, while two tokens that are both seen rarely have weights a thousandfold apart.
HIDDEN_PART: Final = 1e-3
# A loss of precision that is acted out leaves a tenth of the squared errors at most: one rounding
# in a thousand goes the other way, and then errs by as much as was to be explained.
LARGEST_LEFT_BY_LOSS: Final = 0.1
# A loss beats simpler ones if it leaves at most this part of what they leave: many elements count,
# so the squared errors that two right explanations leave do not differ by ten.
CLEARLY_LESS: Final = 0.1
# Half of normally distributed numbers, made smaller by this, are below float16's normal ones.
SHRUNK: Final = 2.0**-13

# Gradients ----------------------------------------------------------------------------------------
# From weight gradient and row sum to the gradient of a score: their difference, the product with
# the weight, and up to four steps of a softcap (1 - tanh^2 and the products with it).
SCORE_GRADIENT_ROUNDINGS: Final = 6
# The gradient of a log-sum-exp: its factor for another base, the product with the weight (in place
# of that with the difference), and the sum with the row term or with a logit's gradient.
LSE_GRADIENT_ROUNDINGS: Final = 3
# The slope 1 - tanh^2 is off by twice tanh's own error, relative to 1 and not to the slope.
SLOPE_ROUNDINGS: Final = 2 * SOFTCAP_ROUNDINGS
# The steepest change of 1 - tanh(x)^2: 4 / (3 sqrt 3) at tanh(x)^2 = 1/3.
STEEPEST_SLOPE: Final = 4.0 / (3.0 * 3.0**0.5)
# Gradients of scores are rounded to the working dtype before they meet query and key; computed line
# by line (stored scores) also after softmax and after the scale, and thrice in a softcap.
SCORE_GRADIENT_STORES: Final = 1
EAGER_SCORE_GRADIENT_STORES: Final = 2
# Weights recomputed as exp(score - lse) keep the errors of exp and lse, for no sum of theirs
# divides them out. Torch's CPU flash kernel takes the lse from an exp with 20 units in the last
# place (``exp_u20``, pytorch pull request 115151); 7.6 roundoffs were measured in all (torch 2.13).
BACKWARD_EXP_ERROR: Final = 40.0
# Torch's CPU flash kernel adds each block to gradients in the working dtype (gemm with beta = 1 in
# FlashAttentionKernel.cpp): blocks of so many queries from so many queries on, and of keys.
GRADIENT_QUERY_BLOCKS: Final = ((0, 32), (192, 64), (768, 256))
GRADIENT_KEY_BLOCK: Final = 256
# In eager code torch.autograd adds up the parts, in the working dtype, wherever a tensor was used
# several times: by a loop over single queries, or over blocks of keys.
EAGER_QUERY_BLOCK: Final = 1
EAGER_KEY_BLOCK: Final = SMALLEST_KEY_BLOCK
# Elements of the table (row, channel, channel) of coherent errors that is held at once.
COHERENT_GRADIENT_CHUNK: Final = 2**22

# Where judging ends -------------------------------------------------------------------------------

# Gradients divide by the cube of what a head is normalised by, whose intermediate values float16
# cannot hold below 1/16 (with HEADROOM), and finite differences would step across the head's turn.
SHORTEST_NORM: Final = 1.0 / 8.0

# An epsilon of a normalisation below this says no more than that zeros are not divided by zero.
SMALLEST_NORMALISED: Final = 1e-6

# Every intermediate of the golden stays below this part of the largest finite number: beyond it a
# correct implementation may overflow, by the order in which it adds up.
HEADROOM: Final = 1.0 / 16.0

# Roundings as random numbers ---------------------------------------------------------------------

# A number that is evenly distributed within its bounds has a third of the square of these as its
# variance, and its square deviates from that by sqrt(4/5) of it: (1/5 - 1/9) / (1/9) = 4/5.
UNIFORM: Final = 3.0
UNIFORM_SQUARES: Final = 0.8**0.5
