"""Meshes of ranks, and the boxes in which they cut tensors."""

from intarsia.mesh.box import Box, Grid, Shape
from intarsia.mesh.mesh import Mesh, Place, Rule, share

__all__ = ["Box", "Grid", "Mesh", "Place", "Rule", "Shape", "share"]
