"""The comparison of DenseCap's Table 1: baselines, FCLN and controls on the same images and boxes."""
