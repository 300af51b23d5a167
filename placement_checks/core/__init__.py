"""What all rooms speak of: devices, machines, programs, placements, measurements."""
