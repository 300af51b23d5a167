"""The table of op types: how each acts on rows, and its normal form. One line for each type.

A type that is not here is unknown: terms that depend on it are not compared, and the verdict
names it. To add a type, find the line of a type that treats rows alike. Types that
`step.tensor_ops` turns into other types, such as ``Neg`` into a sum, need no line.
"""

from __future__ import annotations

from collections.abc import Mapping

from placement_checks.step import gradients, normal_forms, row_rules
from placement_checks.step.terms import OpType
from placement_checks.util.text import words

_ELEMENTWISE = OpType(
    row_rules.elementwise, is_elementwise=True, normal_form=normal_forms.elementwise
)
_COMMUTING = OpType(
    row_rules.elementwise,
    is_elementwise=True,
    commutes=True,
    normal_form=normal_forms.elementwise,
)
_LINEAR = OpType(row_rules.linear_elementwise, is_elementwise=True, is_linear=True)
_STOP = OpType(row_rules.linear_elementwise, is_elementwise=True, normal_form=normal_forms.stopped)
_CHOICE = OpType(row_rules.elementwise, is_elementwise=True, normal_form=normal_forms.choice)
_REDUCTION = OpType(row_rules.reduction)
_LAST_AXIS = OpType(row_rules.last_axis)
_FIRST_ON_AXIS_0 = OpType(row_rules.on_axis_0(0))
_BOTH_ON_AXIS_0 = OpType(row_rules.on_axis_0(0, 1))
_BATCH_NORM = OpType(row_rules.batch_norm)
_MIXING = OpType(row_rules.mixing)
_MATRIX_PRODUCT = OpType(row_rules.matrix_product, normal_form=normal_forms.matrix_product)
_SLICED = OpType(row_rules.sliced, is_linear=True)
_QUOTIENT = OpType(row_rules.quotient, is_elementwise=True, normal_form=normal_forms.quotient)

# Ops with results, or gradients, that are the same for many other operands.
INSENSITIVE = frozenset(
    words(
        """
        Sign Greater GreaterEqual Less LessEqual Equal NotEqual ArgMax ArgMin IsFinite IsInf IsNan
        Floor Ceil Round Rint FloatToInt TopKV2 InTopK InTopKV2 Log PadV2 Roll
        FloorDiv FloorMod Mod TruncateDiv TruncateMod
        """
    )
)

OP_TYPES: Mapping[str, OpType] = {
    # One element from one element of each operand.
    **dict.fromkeys(
        words(
            """
            Acos Acosh Asin Asinh Atan Atan2 Atanh Ceil Digamma Elu Erf Erfc Exp
            Expm1 Floor FloorDiv FloorMod Greater GreaterEqual  LeakyRelu Less
            LessEqual Lgamma Log Log1p LogicalNot Mod Pow Relu Relu6 Rint Round Rsqrt Selu Sigmoid
            Sign Sin Sinh Softplus Softsign Sqrt Tan Tanh TruncateDiv TruncateMod Xdivy Xlogy
            Xlog1py ClipByValue NextAfter FloatToInt StringToHashBucketFast StringToHashBucket
            StringToNumber StringLower AsString RegexReplace StaticRegexReplace StringLength
            Reciprocal Inv MulNoNan Zeta Igamma Igammac Erfinv Ndtri Polygamma Betainc
            BesselI0e BesselI1e Bucketize FakeQuantWithMinMaxArgs FakeQuantWithMinMaxVars
            Real Imag Conj Angle Complex ComplexAbs Invert LeftShift RightShift PopulationCount
            """
        ),
        _ELEMENTWISE,
    ),
    **dict.fromkeys(
        words("Abs Cos Cosh"),
        OpType(row_rules.elementwise, is_elementwise=True, normal_form=normal_forms.even),
    ),
    **dict.fromkeys(
        words(
            """
            Maximum Minimum Equal NotEqual LogicalAnd LogicalOr BitwiseAnd BitwiseOr BitwiseXor
            """
        ),
        _COMMUTING,
    ),
    **dict.fromkeys(
        words("IsFinite IsInf IsNan"),
        OpType(
            row_rules.elementwise, is_elementwise=True, normal_form=normal_forms.test_of_number
        ),
    ),
    **dict.fromkeys(words("Select SelectV2 Conditional"), _CHOICE),
    **dict.fromkeys(words("Chosen CustomGradient"), _LINEAR),
    "StopGradient": _STOP,
    "Mul": OpType(
        row_rules.product, is_elementwise=True, commutes=True, normal_form=normal_forms.product
    ),
    **dict.fromkeys(words("RealDiv"), _QUOTIENT),
    # Reductions.
    "Sum": OpType(
        row_rules.total,
        is_linear=True,
        normal_form=normal_forms.total,
        of_summand=normal_forms.total_of_summand,
    ),
    "Mean": OpType(row_rules.reduction, normal_form=normal_forms.mean),
    "L2Loss": OpType(row_rules.mixing, normal_form=normal_forms.half_of_squares),
    **dict.fromkeys(words("Max Min Prod All Any ArgMax ArgMin EuclideanNorm"), _REDUCTION),
    # Along the last axis.
    **dict.fromkeys(words("Softmax LogSoftmax TopKV2"), _LAST_AXIS),
    **dict.fromkeys(
        words("RGBToHSV HSVToRGB AdjustHue AdjustSaturation FFT IFFT RFFT IRFFT"),
        OpType(row_rules.inner_axes(1)),
    ),
    **dict.fromkeys(
        words(
            """
            MatrixBandPart MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 Cholesky
            MatrixInverse MatrixDeterminant FFT2D IFFT2D RFFT2D IRFFT2D
            """
        ),
        OpType(row_rules.inner_axes(2)),
    ),
    "AdjustContrastv2": OpType(row_rules.inner_axes(3)),
    # Rows on axis 0, each computed from its own row.
    **dict.fromkeys(
        words(
            """
            AvgPool MaxPool Conv2D Conv3D DepthwiseConv2dNative LRN ResizeBilinear
            ResizeNearestNeighbor ResizeBicubic ResizeArea SpaceToDepth DepthToSpace MaxPool3D
            AvgPool3D DecodeRaw ImageProjectiveTransformV2
            ExpectedCount Conv2DBackpropInput BiasAddOfChannels Dilation2D ExtractImagePatches
            ScaleAndTranslate MaxPoolV2 ExtractVolumePatches
            """
        ),
        _FIRST_ON_AXIS_0,
    ),
    **dict.fromkeys(
        words(
            """
            SparseSoftmaxCrossEntropyWithLogits SoftmaxCrossEntropyWithLogits InTopK InTopKV2
            """
        ),
        _BOTH_ON_AXIS_0,
    ),
    "ReverseSequence": OpType(row_rules.reversed_sequences),
    **dict.fromkeys(words("FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3"), _BATCH_NORM),
    # Products along axes.
    **dict.fromkeys(words("MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3"), _MATRIX_PRODUCT),
    "Einsum": OpType(row_rules.einsum),
    # Shapes, joins and slices.
    "Reshape": OpType(
        row_rules.reshape,
        is_linear=True,
        normal_form=normal_forms.reshape,
        of_summand=normal_forms.reshape_of_summand,
    ),
    "Transpose": OpType(row_rules.transpose, is_linear=True),
    "ConcatV2": OpType(row_rules.join, normal_form=normal_forms.join),
    "Pack": OpType(row_rules.stack, normal_form=normal_forms.stack),
    "Place": OpType(row_rules.placed, is_linear=True, of_summand=normal_forms.placed_of_summand),
    "Slice": OpType(row_rules.sliced, is_linear=True, of_summand=normal_forms.sliced_of_summand),
    **dict.fromkeys(words("Pad MirrorPad BroadcastTo Tile ReverseV2 Roll Cumsum"), _SLICED),
    **dict.fromkeys(words("PadV2 Cumprod"), OpType(row_rules.changed_along)),
    "GatherV2": OpType(row_rules.lookup),
    "Masked": OpType(row_rules.masked, is_linear=True),
    "OneHot": OpType(row_rules.one_hot),
    "Fill": OpType(row_rules.fill),
    # Lists of tensors.
    **dict.fromkeys(
        words(
            """
            TensorListReserve EmptyTensorList TensorListSetItem TensorListPushBack
            TensorListGetItem
            """
        ),
        OpType(row_rules.list_of_tensors),
    ),
    "TensorListFromTensor": OpType(row_rules.list_from_tensor),
    "TensorListStack": OpType(row_rules.stacked_list),
    # Gradients.
    "Grad": OpType(row_rules.gradient, normal_form=gradients.gradient),
    "Slices": OpType(row_rules.scattered, normal_form=gradients.gathered_gradient),
    "UnsortedSegmentSum": OpType(row_rules.mixing, normal_form=normal_forms.segment_sum),
    "Dim": OpType(row_rules.mixing, normal_form=normal_forms.extent),
    # Every element may depend on every row.
    **dict.fromkeys(
        words(
            """
            Unique RandomShuffle InvertPermutation Range Where Size Shape Rank StringFormat Qr Svd
            Feed Rows RowsOf SegmentSum SegmentMean
            SparseToDense Bincount DenseBincount Reverse GatherNd ScatterNd
            TensorScatterUpdate DynamicStitch DynamicPartition StridedSliceOf NthElement Random
            AlongUnknownAxis
            SparseTensorDenseMatMul MeanOf
            """
        ),
        _MIXING,
    ),
}


def op_type(op: str) -> OpType | None:
    """The line of an op type; None if the type is unknown."""
    found = OP_TYPES.get(op)
    if found is None and op.startswith(("Apply", "SparseApply")):
        return _MIXING  # an optimizer
    return found
