"""RoboCache on a Ray cluster; robocache.ray names what users see."""
