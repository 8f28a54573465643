"""Clouds and depth images into grids: voxels, signed distances, and the files that clouds come in."""
