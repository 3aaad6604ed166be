"""Models that train on a mesh: layers and experts that are cut, gradients, roles of dimensions."""
