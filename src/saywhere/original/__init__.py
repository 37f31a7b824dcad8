"""The conventions of the published DenseCap program, at the edge of ours.

Everything else in saywhere counts pixels from 0, continuously, in boxes ``x1 y1 x2 y2``. The program counts from 1,
writes boxes as centre and size, and takes a box to reach from the centre of its first pixel to the centre of its last
one. The functions here keep its formats and quirks, so that its numbers can be repeated, and call ours for the
mathematics.
"""

from saywhere.original.anchors import (
    feature_map_size,
    field_center,
    make_anchors,
    make_boxes,
    reshape_box_features,
)
from saywhere.original.box_coding import OriginalBoxCoder
from saywhere.original.boxes import (
    apply_box_transform,
    box_iou,
    clip_boxes,
    corners_to_ours,
    invert_box_transform,
    iou_matrix,
    merge_boxes,
    nms,
    ours_to_corners,
    ours_to_xcycwh,
    scale_boxes_xywh,
    true_boxes,
    x1y1x2y2_to_xcycwh,
    x1y1x2y2_to_xywh,
    xcycwh_to_ours,
    xcycwh_to_x1y1x2y2,
    xcycwh_to_xywh,
    xywh_to_x1y1x2y2,
    xywh_to_xcycwh,
)
from saywhere.original.images import OriginalPreprocess, caffe_pixels, scale_image, scale_weights, scaled_size
from saywhere.original.language_model import LanguageModel, decode_sequences
from saywhere.original.losses import (
    balanced_cross_entropy,
    box_regression_loss,
    logistic_loss,
    offset_decay,
    offset_loss,
    two_way_cross_entropy,
)
from saywhere.original.optimizer import Adam
from saywhere.original.sampler import BoxSampler, inside_image, pick
from saywhere.original.sampling import box_to_affine, roi_pooling
from saywhere.original.sorting import ascending_order

__all__ = [
    "Adam",
    "BoxSampler",
    "LanguageModel",
    "OriginalBoxCoder",
    "OriginalPreprocess",
    "apply_box_transform",
    "ascending_order",
    "balanced_cross_entropy",
    "box_iou",
    "box_regression_loss",
    "box_to_affine",
    "caffe_pixels",
    "clip_boxes",
    "corners_to_ours",
    "decode_sequences",
    "feature_map_size",
    "field_center",
    "inside_image",
    "invert_box_transform",
    "iou_matrix",
    "logistic_loss",
    "make_anchors",
    "make_boxes",
    "merge_boxes",
    "nms",
    "offset_decay",
    "offset_loss",
    "ours_to_corners",
    "ours_to_xcycwh",
    "pick",
    "reshape_box_features",
    "roi_pooling",
    "scale_boxes_xywh",
    "scale_image",
    "scale_weights",
    "scaled_size",
    "true_boxes",
    "two_way_cross_entropy",
    "x1y1x2y2_to_xcycwh",
    "x1y1x2y2_to_xywh",
    "xcycwh_to_ours",
    "xcycwh_to_x1y1x2y2",
    "xcycwh_to_xywh",
    "xywh_to_x1y1x2y2",
    "xywh_to_xcycwh",
]
