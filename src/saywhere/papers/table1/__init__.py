"""The comparison of DenseCap's Table 1: baselines and FCLN on the same images and boxes."""
