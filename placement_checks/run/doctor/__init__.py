"""The list of devices and the training program of ``placement-checks doctor``."""
