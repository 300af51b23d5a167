"""Types that all rooms share: devices, machines, programs, placements, measurements."""
